// scratch.h - memory that an operator keeps between calls, so that the hot path allocates nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace octavo::cpu {

/// Bytes held by all Scratch objects of all threads.
inline std::atomic<std::size_t> scratch_bytes{0};

/// A buffer that only grows. Use as `static thread_local Scratch`.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { release(); }

  /// Room for n elements, 64-byte aligned, contents undefined.
  template <class T>
  T* get(std::size_t n) {
    const std::size_t wanted = (n * sizeof(T) + 63) / 64 * 64;
    if (wanted > bytes_) {
      release();
      data_ = std::aligned_alloc(64, wanted);
      if (data_ == nullptr) throw std::bad_alloc();
      bytes_ = wanted;
      scratch_bytes += wanted;
    }
    return static_cast<T*>(data_);
  }

 private:
  void release() {
    std::free(data_);
    scratch_bytes -= bytes_;
    data_ = nullptr;
    bytes_ = 0;
  }

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace octavo::cpu
