// backend_cpu.cpp - the CPU backend: memory, what it supports, and each operator handed to its file.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <omp.h>
#include <optional>
#include <string>
#include <utility>

#include <sys/mman.h>

#include "backend.h"
#include "cpu/bf16_products.h"
#include "cpu/instruction_set.h"
#include "cpu/operators.h"
#include "cpu/scratch.h"
#include "error.h"
#include "machine.h"
#include "precision/fp8_support.h"
#include "process_limits.h"

namespace octavo {

namespace {

/// Why something is not done here; empty where it is.
std::string why_not(const OpDesc& desc, const std::optional<Capability>& pretended) {
  if (desc.tf32) return "a CPU has no TF32 products";
  if (is_fp8(desc.dtype) && desc.op == "matmul")
    return pretended ? why_no_fp8(*pretended, desc.n, desc.k) : "";
  if (desc.dtype != DType::f32 && desc.dtype != DType::bf16)
    return std::string("activations are f32 or bf16, not ") + name_of(desc.dtype);
  if (desc.op == "attention" && (desc.head_size < 8 || desc.head_size > 256 || desc.head_size % 8 != 0))
    return fmt::format("attention has heads of a multiple of 8 up to 256 channels, not {}", desc.head_size);
  return "";
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, std::optional<Capability> pretended)
      : threads_(threads > 0 ? threads : usable_cores()), pretended_(pretended) {
    omp_set_num_threads(threads_);
  }

  std::string name() const override { return "cpu"; }
  std::string description() const override {
    return fmt::format("{}; {}; {} thread{}{}", this_machine().processor, arithmetic(), threads_,
                       threads_ == 1 ? "" : "s",
                       pretended_ ? "; pretending compute capability " + text_of(*pretended_) : "");
  }
  std::string arithmetic() const override {
    return fmt::format("kernels for {}, oneDNN {} for {}", cpu::name_of(cpu::instruction_set()),
                       onednn_version(), cpu::onednn_instruction_set());
  }
  int threads() const override { return threads_; }

  Support supports(const OpDesc& desc) const override {
    Support support{.yes = true, .path = "", .reason = why_not(desc, pretended_)};
    support.yes = support.reason.empty();
    if (!support.yes) return support;
    if (desc.op == "matmul") {
      const bool bf16 = cpu::has_bf16_products();
      if (is_fp8(desc.dtype))
        support.path = bf16 ? "fp8 codes widened to bf16, onednn bf16" : "fp8 codes widened, onednn f32";
      else if (desc.dtype == DType::bf16)
        support.path = bf16 ? "onednn bf16" : "bf16 operands widened, onednn f32";
      else
        support.path = "onednn f32";
    } else if (desc.op == "attention") {
      support.path = desc.dtype == DType::f32   ? "own kernel, f32 tiles"
                     : cpu::has_bf16_products() ? "own kernel, bf16 tiles"
                                                : "own kernel, bf16 operands widened to f32 tiles";
    } else {
      support.path = "own kernel";
    }
    return support;
  }

  void* allocate(std::size_t bytes) override {
    void* memory = bytes >= kMapped
                       ? map(bytes)
                       : std::aligned_alloc(64, std::max<std::size_t>(64, (bytes + 63) / 64 * 64));
    if (memory == nullptr)
      fail("memory: found {} bytes available, {} asked for at once; allowed: a smaller model or micro_batch",
           available_bytes(), bytes);
    if (bytes < kMapped) std::memset(memory, 0, bytes);
    return memory;
  }
  void release(void* p) noexcept override {
    const auto found = mapped_.find(p);
    if (found == mapped_.end()) return std::free(p);
    ::munmap(found->second.first, found->second.second);
    mapped_.erase(found);
  }
  void copy_to_device(void* device, const void* host, std::size_t bytes) override {
    copy(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, std::size_t bytes) override { copy(host, device, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void fill_zero(void* p, std::size_t bytes) override {
    if (bytes > 0) std::memset(p, 0, bytes);
  }
  void synchronize() override {}  // every operator has finished when it returns
  bool host_readable() const override { return true; }
  std::size_t available_bytes() const override { return available_memory(); }
  std::size_t workspace_bytes() const override { return cpu::scratch_bytes.load(); }

 private:
  void do_run(const EmbeddingForward& op) override { cpu::embedding_forward(op); }
  void do_run(const EmbeddingBackward& op) override { cpu::embedding_backward(op); }
  void do_run(const NormForward& op) override { cpu::norm_forward(op); }
  void do_run(const NormBackward& op) override { cpu::norm_backward(op); }
  void do_run(const Matmul& op) override { cpu::matmul(op); }
  void do_run(const BiasGradient& op) override { cpu::bias_gradient(op); }
  void do_run(const AttentionForward& op) override { cpu::attention_forward(op); }
  void do_run(const AttentionBackward& op) override { cpu::attention_backward(op); }
  void do_run(const ActivationForward& op) override { cpu::activation_forward(op); }
  void do_run(const ActivationBackward& op) override { cpu::activation_backward(op); }
  void do_run(const CrossEntropy& op) override { cpu::cross_entropy(op); }
  void do_run(const LossSum& op) override { cpu::loss_sum(op); }
  void do_run(const GradientNorm& op) override { cpu::gradient_norm(op); }
  void do_run(const AdamW& op) override { cpu::adamw(op); }
  void do_run(const Cast& op) override { cpu::cast(op); }
  void do_run(const Fp8Update& op) override { cpu::fp8_update(op); }

  /// From this size on memory is mapped: the kernel zeroes a page when it is first used, in large pages where
  /// it can (products of large matrices then miss the address cache less), and has it back on release.
  static constexpr std::size_t kMapped = std::size_t{4} << 20, kHugePage = std::size_t{2} << 20;

  void* map(std::size_t bytes) {
    if (bytes > SIZE_MAX / 2) return nullptr;
    const std::size_t total = (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;  // to align in
    void* base = ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return nullptr;
    void* aligned = base;
    std::size_t room = total;
    std::align(kHugePage, total - kHugePage, aligned, room);
    ::madvise(aligned, total - kHugePage, MADV_HUGEPAGE);  // a hint: it may be refused
    mapped_[aligned] = {base, total};
    return aligned;
  }

  int threads_;
  std::optional<Capability> pretended_;                    // answers supports() for FP8 as such a GPU would
  std::map<void*, std::pair<void*, std::size_t>> mapped_;  // large blocks: what to give back
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads, std::optional<Capability> pretended) {
  return std::make_unique<CpuBackend>(threads, pretended);
}

}  // namespace octavo
