// The CPU backend itself: memory, what it says that it supports, and its threads.
#include <cstdint>
#include <cstring>
#include <omp.h>

#include "backend.h"
#include "catch.h"
#include "cpu/bf16_products.h"
#include "cpu/instruction_set.h"
#include "error.h"
#include "machine.h"
#include "process_limits.h"

using namespace octavo;

namespace {

struct RestoreThreads {
  ~RestoreThreads() { omp_set_num_threads(omp_get_num_procs()); }
};

}  // namespace

TEST_CASE("memory is aligned, zeroed, and copied both ways") {
  const RestoreThreads restore;
  const std::unique_ptr<Backend> b = make_cpu_backend(1);
  // twice each: memory that was used before must come back zeroed as well
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{3} << 20,
                                  (std::size_t{4} << 20) + 3, std::size_t{9} << 20})
    for (int again = 0; again < 2; ++again) {
      INFO(bytes << " bytes");
      unsigned char* p = static_cast<unsigned char*>(b->allocate(bytes));
      REQUIRE(p != nullptr);
      CHECK(reinterpret_cast<std::uintptr_t>(p) % 64 == 0);
      bool zero = true;
      for (std::size_t i = 0; i < bytes; ++i) zero = zero && p[i] == 0;
      CHECK(zero);
      std::memset(p, 0xab, bytes);
      b->release(p);
    }
  const int values[3] = {1, -2, 3};
  int back[3] = {};
  void* here = b->allocate(sizeof values);
  void* there = b->allocate(sizeof values);
  b->copy_to_device(here, values, sizeof values);
  b->copy(there, here, sizeof values);
  b->fill_zero(here, sizeof(int));
  b->copy_to_host(back, there, sizeof back);
  CHECK(std::memcmp(back, values, sizeof values) == 0);
  b->copy_to_host(back, here, sizeof back);
  CHECK((back[0] == 0 && back[1] == -2 && back[2] == 3));
  b->release(here);
  b->release(there);
  b->release(nullptr);
  CHECK(b->host_readable());
}

TEST_CASE("memory that cannot be had is an error with sizes") {
  const RestoreThreads restore;
  const std::unique_ptr<Backend> b = make_cpu_backend(1);
  for (const std::size_t bytes : {std::size_t{1} << 60, SIZE_MAX})
    CHECK_THROWS_WITH(b->allocate(bytes), ContainsSubstring("memory: found ") &&
                                              ContainsSubstring(std::to_string(bytes) + " asked for"));
  CHECK_THROWS_AS(b->allocate(SIZE_MAX - 10), RunError);
  CHECK(b->available_bytes() > (std::size_t{1} << 20));
  CHECK(b->available_bytes() <= memory_limit());
}

TEST_CASE("the backend has the threads that were asked for, else those of the process") {
  const RestoreThreads restore;
  CHECK(make_cpu_backend(3)->threads() == 3);
  CHECK(omp_get_max_threads() == 3);
  const std::unique_ptr<Backend> b = make_cpu_backend(0);
  CHECK(b->threads() == usable_cores());
  CHECK(omp_get_max_threads() == usable_cores());
  CHECK(b->name() == "cpu");
  CHECK_THAT(b->description(), ContainsSubstring(b->arithmetic()) &&
                                   ContainsSubstring(std::to_string(usable_cores()) + " thread"));
  CHECK(b->arithmetic() == fmt::format("kernels for {}, oneDNN {} for {}",
                                       cpu::name_of(cpu::instruction_set()), onednn_version(),
                                       cpu::onednn_instruction_set()));
}

TEST_CASE("what the CPU does, by which path, and why not") {
  const RestoreThreads restore;
  const std::unique_ptr<Backend> b = make_cpu_backend(1);
  const auto matmul = [&](DType type, bool tf32 = false) {
    return b->supports({.op = "matmul", .dtype = type, .m = 8, .n = 8, .k = 8, .tf32 = tf32});
  };
  CHECK(matmul(DType::f32).yes);
  CHECK(matmul(DType::f32).path == "onednn f32");
  CHECK(matmul(DType::bf16).path ==
        (cpu::has_bf16_products() ? "onednn bf16" : "bf16 operands widened, onednn f32"));
  CHECK_FALSE(matmul(DType::f32, true).yes);
  CHECK(matmul(DType::f32, true).reason == "a CPU has no TF32 products");
  for (const DType type : {DType::e4m3, DType::e5m2}) {
    const Support s = matmul(type);
    CHECK(s.yes);
    CHECK(s.path == (cpu::has_bf16_products() ? "fp8 codes widened to bf16, onednn bf16"
                                              : "fp8 codes widened, onednn f32"));
  }
  const auto attention = [&](std::int64_t D) {
    return b->supports({.op = "attention", .dtype = DType::bf16, .head_size = D, .dropout = true});
  };
  for (const std::int64_t D : {8, 64, 72, 256}) CHECK(attention(D).yes);
  for (const std::int64_t D : {0, 7, 12, 264}) {
    CHECK_FALSE(attention(D).yes);
    CHECK_THAT(attention(D).reason, ContainsSubstring("not " + std::to_string(D)));
  }
}
