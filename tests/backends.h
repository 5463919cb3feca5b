// backends.h - the backends under test, and tensors in their memory with guards around them.
//
// A test of an operator runs over backends(), so that a backend that is added is held to the same oracle.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <omp.h>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend.h"
#include "catch.h"
#include "cpu/instruction_set.h"
#include "rng.h"
#include "tensor.h"

namespace octavo::testing {

/// Every backend of this build, each made once.
inline const std::vector<Backend*>& backends() {
  static const std::unique_ptr<Backend> cpu = make_cpu_backend(0);
  static const std::vector<Backend*> all = {cpu.get()};
  return all;
}

/// A tensor in a backend's memory between two guards that no operator may touch. Outputs start as a pattern
/// that reads as NaN, so that what is not written is seen.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Backend& backend, const std::vector<T>& values, std::initializer_list<std::int64_t> dims,
              const char* name = "")
      : backend_(backend), count_(values.size()) {
    std::vector<unsigned char> image(2 * kGuard + count_ * sizeof(T), kFill);
    if (count_ > 0) std::memcpy(image.data() + kGuard, values.data(), count_ * sizeof(T));
    memory_ = static_cast<char*>(backend.allocate(image.size()));
    backend.copy_to_device(memory_, image.data(), image.size());
    tensor = Tensor(memory_ + kGuard, dtype_of<T>::value, dims, name);
    if (tensor.numel() != static_cast<std::int64_t>(count_))
      throw std::logic_error("values do not fill the shape");
  }
  /// An output, not yet written.
  DeviceArray(Backend& backend, std::initializer_list<std::int64_t> dims, const char* name = "")
      : DeviceArray(backend, unwritten(dims), dims, name) {}
  ~DeviceArray() { backend_.release(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  /// The values; throws when a guard was written over.
  std::vector<T> read() const {
    std::vector<unsigned char> image(2 * kGuard + count_ * sizeof(T));
    backend_.synchronize();
    backend_.copy_to_host(image.data(), memory_, image.size());
    for (std::size_t i = 0; i < kGuard; ++i)
      if (image[i] != kFill || image[image.size() - 1 - i] != kFill)
        throw std::runtime_error(std::string("the guard of ") + tensor.name + " was written over");
    std::vector<T> values(count_);
    if (count_ > 0) std::memcpy(values.data(), image.data() + kGuard, count_ * sizeof(T));
    return values;
  }

  Tensor tensor;

 private:
  static constexpr std::size_t kGuard = 128;
  static constexpr unsigned char kFill = 0xff;  // as f32 and bf16: NaN

  static std::vector<T> unwritten(std::initializer_list<std::int64_t> dims) {
    std::size_t n = 1;
    for (const std::int64_t d : dims) n *= static_cast<std::size_t>(d);
    std::vector<T> values(n);
    if (n > 0) std::memset(static_cast<void*>(values.data()), kFill, n * sizeof(T));
    return values;
  }

  Backend& backend_;
  std::size_t count_;
  char* memory_ = nullptr;
};

/// A StepState in a backend's memory.
class DeviceState {
 public:
  explicit DeviceState(Backend& backend, const StepState& initial = {})
      : state(static_cast<StepState*>(backend.allocate(sizeof(StepState)))), backend_(backend) {
    backend.copy_to_device(state, &initial, sizeof initial);
  }
  ~DeviceState() { backend_.release(state); }
  DeviceState(const DeviceState&) = delete;
  DeviceState& operator=(const DeviceState&) = delete;

  StepState read() const {
    StepState s;
    backend_.synchronize();
    backend_.copy_to_host(&s, state, sizeof s);
    return s;
  }

  StepState* const state;

 private:
  Backend& backend_;
};

template <typename T>
T narrow_to(double x) {
  if constexpr (std::is_same_v<T, bf16>)
    return to_bf16(static_cast<float>(x));
  else
    return static_cast<T>(x);
}

/// n values, uniform in [-scale, scale), fixed by the seed.
template <typename T>
std::vector<T> random_values(std::int64_t n, std::uint32_t seed, double scale = 1) {
  std::vector<T> v;
  for (std::int64_t i = 0; i < n; ++i) {
    const Philox4 r = philox({seed, 0x7e57}, static_cast<std::uint32_t>(i), 0, 0, 0);
    v.push_back(narrow_to<T>(scale * (2 * uniform53(r.v[0], r.v[1]) - 1)));
  }
  return v;
}

/// n ids in [0, below), fixed by the seed.
inline std::vector<std::int32_t> random_ids(std::int64_t n, std::uint32_t seed, std::int32_t below) {
  std::vector<std::int32_t> v;
  for (std::int64_t i = 0; i < n; ++i)
    v.push_back(static_cast<std::int32_t>(philox({seed, 0x1d5}, static_cast<std::uint32_t>(i), 0, 0, 0).v[0] %
                                          static_cast<std::uint32_t>(below)));
  return v;
}

template <typename T>
std::vector<double> widen(const std::vector<T>& v) {
  std::vector<double> w;
  for (const T& x : v) w.push_back(static_cast<double>(to_float(x)));
  return w;
}

/// The bits of values, to be compared and concatenated.
template <typename T>
std::string bits_of(const std::vector<T>& v) {
  return std::string(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(T));
}

/// Calls `bits(backend)`, which returns the bits of an operator's results, on the CPU with 1, 2 and 3 threads
/// and with every instruction set that this processor has: all must be equal.
template <typename F>
void check_same_bits_everywhere(F bits) {
  std::string first;
  const cpu::InstructionSet best = cpu::native_instruction_set();
  for (const int threads : {1, 2, 3}) {
    const std::unique_ptr<Backend> backend = make_cpu_backend(threads);
    for (const cpu::InstructionSet set :
         {cpu::InstructionSet::avx512, cpu::InstructionSet::avx2, cpu::InstructionSet::baseline}) {
      if (set > best) continue;
      cpu::limit_instruction_set(set);
      const std::string here = bits(*backend);
      cpu::limit_instruction_set(best);
      if (first.empty()) first = here;
      INFO(threads << " threads, " << cpu::name_of(set));
      REQUIRE(here.size() > 0);
      CHECK(here == first);
    }
  }
  // The number of threads belongs to the process; the shared backend gets its own back.
  omp_set_num_threads(omp_get_num_procs());
}

}  // namespace octavo::testing
