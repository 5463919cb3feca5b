// tensor.h - element types, the non-owning Tensor view, and Operand: a tensor in every form its readers need.
//
// Included by host code and by CUDA sources, so it uses the standard library only.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

#ifdef __CUDACC__
#define OCTAVO_HOST_DEVICE __host__ __device__
#else
#define OCTAVO_HOST_DEVICE
#endif

namespace octavo {

enum class DType : std::uint8_t { f32, bf16, e4m3, e5m2, i32, i64, u8 };

constexpr std::size_t size_of(DType t) {
  switch (t) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::i64:
      return 8;
    case DType::e4m3:
    case DType::e5m2:
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr const char* name_of(DType t) {
  switch (t) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::e4m3:
      return "e4m3";
    case DType::e5m2:
      return "e5m2";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
  }
  return "?";
}

/// A bfloat16 value: the upper half of an IEEE binary32.
struct bf16 {
  std::uint16_t bits;
};

OCTAVO_HOST_DEVICE inline float to_float(bf16 v) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(v.bits) << 16);
}
OCTAVO_HOST_DEVICE inline float to_float(float v) {
  return v;
}

/// Round to nearest even; NaN stays NaN (quiet), overflow goes to infinity.
OCTAVO_HOST_DEVICE inline bf16 to_bf16(float v) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

template <typename T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of<std::uint8_t> {
  static constexpr DType value = DType::u8;
};

/// A dense row-major view of memory owned by somebody else. `data == nullptr` means "absent".
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<std::int64_t, 4> shape{};
  const char* name = "";  // for messages; must outlive the tensor

  Tensor() = default;
  Tensor(void* data_, DType dtype_, std::initializer_list<std::int64_t> dims, const char* name_ = "")
      : data(data_), dtype(dtype_), rank(static_cast<int>(dims.size())), name(name_) {
    int i = 0;
    for (std::int64_t d : dims) shape[static_cast<std::size_t>(i++)] = d;
  }

  explicit operator bool() const { return data != nullptr; }
  std::int64_t dim(int i) const { return shape[static_cast<std::size_t>(i)]; }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim(i);
    return n;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype); }

  /// The elements as T; throws std::logic_error when T is not the tensor's element type.
  template <typename T>
  T* as() const {
    if (dtype != dtype_of<T>::value)
      throw std::logic_error(std::string("tensor ") + name + " holds " + name_of(dtype) + ", read as " +
                             name_of(dtype_of<T>::value));
    return static_cast<T*>(data);
  }

  /// Rows [first, first + count) of the leading dimension.
  Tensor rows(std::int64_t first, std::int64_t count) const {
    Tensor r = *this;
    if (dim(0) == 0 || first < 0 || count < 0 || first + count > dim(0))
      throw std::logic_error(std::string("tensor ") + name + ": rows out of range");
    r.data = static_cast<char*>(data) +
             bytes() / static_cast<std::size_t>(dim(0)) * static_cast<std::size_t>(first);
    r.shape[0] = count;
    return r;
  }
  /// The same memory under another shape of equal size.
  Tensor view(std::initializer_list<std::int64_t> dims) const {
    Tensor r(data, dtype, dims, name);
    if (r.numel() != numel())
      throw std::logic_error(std::string("tensor ") + name + ": view changes the size");
    return r;
  }
};

struct Fp8Slot;  // scale and amax of one tensor: precision/fp8_recipe.h

/// What a matrix product reads: a tensor in every form that some reader needs. The producer of the value
/// writes all the forms that are present, in one pass. The codes are those of the values rounded to bf16,
/// whether these are written or not: q = quantise(t), q_t = transpose(q), exactly.
struct Operand {
  Tensor t;       // [rows,columns] values, f32 or bf16; absent where nobody reads them
  Tensor q, q_t;  // FP8 codes [rows,columns] and transposed [columns,rows]; absent outside FP8
  const Fp8Slot* slot = nullptr;  // scale of the codes; present where q or q_t is
  bool record = true;             // the producer folds the amax and counts into the slot (training only)

  explicit operator bool() const { return t || q || q_t; }
};

}  // namespace octavo
