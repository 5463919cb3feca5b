// backend_cpu.cpp - the CPU backend: memory, what it supports, and each operator handed to its file.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <omp.h>
#include <sched.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/mman.h>

#include "backend.h"
#include "cpu/bf16_products.h"
#include "cpu/instruction_set.h"
#include "cpu/operators.h"
#include "cpu/scratch.h"
#include "error.h"
#include "machine.h"

namespace octavo {

namespace {

/// The first number in a file; `otherwise` where there is none ("max", or no such file).
std::int64_t number_in(const std::string& file, std::int64_t otherwise) {
  std::ifstream in(file);
  std::int64_t value = 0;
  return in >> value ? value : otherwise;
}

/// The folders of this process's control groups, innermost first, of version 2 or of a version 1 controller.
/// In a container the path that the process sees may not exist below the mount; the mount itself always does.
std::vector<std::string> control_groups(const std::string& controller) {
  std::vector<std::string> folders;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/path", version 2: "0::/path"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string mount = "/sys/fs/cgroup", path = line.substr(second + 1);
    if (names.find("," + controller + ",") != std::string::npos)
      mount += "/" + controller;
    else if (names != ",,")
      continue;
    for (;; path.resize(path.rfind('/'))) {
      if (!path.empty() && path.back() == '/') path.pop_back();
      folders.push_back(mount + path);
      if (path.empty()) break;
    }
  }
  return folders;
}

/// Cores that this process may use: its affinity, and its control groups' quota of processor time, rounded up.
int usable_cores() {
  int cores = static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
  const auto hold_to = [&](std::int64_t quota, std::int64_t period) {
    if (quota > 0 && period > 0)
      cores = static_cast<int>(std::min<std::int64_t>(cores, (quota + period - 1) / period));
  };
  for (const std::string& folder : control_groups("cpu")) {
    hold_to(number_in(folder + "/cpu.cfs_quota_us", -1), number_in(folder + "/cpu.cfs_period_us", -1));
    std::ifstream in(folder + "/cpu.max");  // "max 100000" or "200000 100000"
    std::int64_t quota = 0, period = 0;
    if (in >> quota >> period) hold_to(quota, period);
  }
  return cores;
}

/// Memory that may still be taken: the machine's, or less where a control group limits it. What a group holds
/// as cache of files counts as free: the kernel gives it up first.
std::size_t available_memory() {
  std::int64_t available = INT64_MAX;
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("MemAvailable:", 0) == 0) available = std::atoll(line.c_str() + 13) * 1024;
  const auto hold_to = [&](std::int64_t limit, const std::string& used, const std::string& folder,
                           const std::string& cache) {
    if (limit == INT64_MAX) return;
    std::int64_t cached = 0;
    std::ifstream statistics(folder + "/memory.stat");
    std::string key;
    for (std::int64_t value = 0; statistics >> key >> value;)
      if (key == cache) cached = value;
    const std::int64_t held = number_in(folder + "/" + used, 0) - cached;
    available = std::min(available, std::max<std::int64_t>(0, limit - std::max<std::int64_t>(0, held)));
  };
  for (const std::string& folder : control_groups("memory")) {
    hold_to(number_in(folder + "/memory.max", INT64_MAX), "memory.current", folder, "file");
    hold_to(number_in(folder + "/memory.limit_in_bytes", INT64_MAX), "memory.usage_in_bytes", folder,
            "total_cache");
  }
  return static_cast<std::size_t>(available);
}

/// Numbers of either activation type; the reason why a product of another type is not done here.
std::string why_not(const OpDesc& desc) {
  if (desc.tf32) return "a CPU has no TF32 products";
  if (desc.dtype == DType::e4m3 || desc.dtype == DType::e5m2)
    return std::string("the CPU backend has no ") + name_of(desc.dtype) + " kernels";
  if (desc.dtype != DType::f32 && desc.dtype != DType::bf16)
    return std::string("activations are f32 or bf16, not ") + name_of(desc.dtype);
  if (desc.op == "attention" && (desc.head_size < 8 || desc.head_size > 256 || desc.head_size % 8 != 0))
    return fmt::format("attention has heads of a multiple of 8 up to 256 channels, not {}", desc.head_size);
  return "";
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int threads) : threads_(threads > 0 ? threads : usable_cores()) {
    omp_set_num_threads(threads_);
  }

  std::string name() const override { return "cpu"; }
  std::string description() const override {
    return fmt::format("{}; kernels for {}, oneDNN for {}; {} thread{}", this_machine().processor,
                       cpu::name_of(cpu::instruction_set()), cpu::onednn_instruction_set(), threads_,
                       threads_ == 1 ? "" : "s");
  }
  int threads() const override { return threads_; }

  Support supports(const OpDesc& desc) const override {
    Support support{.yes = true, .path = "", .reason = why_not(desc)};
    support.yes = support.reason.empty();
    if (!support.yes) return support;
    if (desc.op == "matmul") {
      support.path = desc.dtype == DType::f32      ? "onednn f32"
                     : cpu::has_bf16_products() ? "onednn bf16"
                                                : "bf16 operands widened, onednn f32";
    } else if (desc.op == "attention") {
      support.path = desc.dtype == DType::f32          ? "own kernel, f32 tiles"
                     : cpu::attention_multiplies_bf16() ? "own kernel, bf16 tiles"
                                                        : "own kernel, bf16 operands widened to f32 tiles";
    } else {
      support.path = "own kernel";
    }
    return support;
  }

  void* allocate(std::size_t bytes) override {
    // Of large blocks whole huge pages, so that walking them misses the address cache less. Either way fresh
    // pages are zero, but aligned_alloc may hand out used ones.
    constexpr std::size_t kHugePage = std::size_t{2} << 20, kLine = 64;
    const std::size_t unit = bytes >= 2 * kHugePage ? kHugePage : kLine;
    const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + unit - 1) / unit * unit;
    void* memory = rounded >= bytes ? std::aligned_alloc(unit, rounded) : nullptr;
    if (memory == nullptr)
      fail("memory: found {} bytes available, {} asked for at once; allowed: a smaller model or micro_batch",
           available_bytes(), bytes);
    if (unit == kHugePage) ::madvise(memory, rounded, MADV_HUGEPAGE);  // a hint, which may be refused
    std::memset(memory, 0, rounded);
    return memory;
  }
  void release(void* p) noexcept override { std::free(p); }
  void copy_to_device(void* device, const void* host, std::size_t bytes) override { copy(device, host, bytes); }
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

  int threads_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads) {
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace octavo
