// fp8_formats.h - the two 8-bit floating-point formats, value by value: E4M3 (sign, 4 bits of exponent, 3 of
// mantissa, no infinity) and E5M2 (an IEEE format with 2 bits of mantissa).
//
// Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022. Encoding rounds to nearest even and
// saturates: what lies beyond the largest value, infinity included, becomes the largest value; NaN becomes
// 0x7f. That is what the GPU's conversion does, so both backends give the same codes bit for bit.
//
// Included by host code and by CUDA sources. The largest values stand here and nowhere else.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor.h"

namespace octavo {

/// The constants of a format, E4M3 or E5M2.
template <DType Format>
struct Fp8Format {
  static_assert(Format == DType::e4m3 || Format == DType::e5m2);
  static constexpr int kMantissa = Format == DType::e4m3 ? 3 : 2;  // bits
  static constexpr int kBias = Format == DType::e4m3 ? 7 : 15;     // of the exponent
  static constexpr float kMax = Format == DType::e4m3 ? 448.0f : 57344.0f;
  static constexpr std::uint32_t kMaxCode = Format == DType::e4m3 ? 0x7e : 0x7b;
  static constexpr std::uint32_t kNan = 0x7f;  // the code that NaN is given
  /// Codes from here on (without the sign) are infinity or NaN.
  static constexpr std::uint32_t kFirstSpecial = Format == DType::e4m3 ? 0x7f : 0x7c;

  // Everything an integer implementation needs, as f32 bit patterns.
  static constexpr int kShift = 23 - kMantissa;                      // between the mantissas
  static constexpr std::uint32_t kRebias = (127u - kBias) << 23;     // between the exponents, in f32's place
  static constexpr std::uint32_t kMinNormal = (128u - kBias) << 23;  // 2^(1 - bias)
  static constexpr std::uint32_t kMaxBits = std::bit_cast<std::uint32_t>(kMax);
  /// 2^(23 + exponent of the smallest denormal): adding it rounds a denormal to a whole number of them.
  static constexpr std::uint32_t kDenormalShift = static_cast<std::uint32_t>(127 + 23 + 1 - kBias - kMantissa)
                                                  << 23;
  /// Value of the smallest denormal.
  static constexpr float kMinDenormal =
      std::bit_cast<float>(static_cast<std::uint32_t>(127 + 1 - kBias - kMantissa) << 23);
};

/// The code nearest to x: ties to even, saturating, NaN to 0x7f.
template <DType Format>
OCTAVO_HOST_DEVICE inline std::uint8_t encode_fp8(float x) {
  using F = Fp8Format<Format>;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x), magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(F::kNan);
  std::uint32_t code;
  if (magnitude >= F::kMaxBits) {
    code = F::kMaxCode;
  } else if (magnitude < F::kMinNormal) {
    code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) +
                                        std::bit_cast<float>(F::kDenormalShift)) -
           F::kDenormalShift;
  } else {
    const std::uint32_t odd = (magnitude >> F::kShift) & 1u;
    code = (magnitude - F::kRebias + (1u << (F::kShift - 1)) - 1u + odd) >> F::kShift;
  }
  return static_cast<std::uint8_t>(code | ((bits >> 24) & 0x80u));
}

/// The value of a code, exact; every value of both formats is a bf16 value as well.
template <DType Format>
OCTAVO_HOST_DEVICE inline float decode_fp8(std::uint8_t code) {
  using F = Fp8Format<Format>;
  const std::uint32_t magnitude = code & 0x7fu, sign = (code & 0x80u) << 24;
  std::uint32_t bits;
  if (magnitude >= F::kFirstSpecial) {
    if (Format == DType::e4m3 || (magnitude & 3u) != 0) return std::bit_cast<float>(0x7fff0000u);
    bits = 0x7f800000u;
  } else if (magnitude < (1u << F::kMantissa)) {
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * F::kMinDenormal);
  } else {
    bits = (magnitude << F::kShift) + F::kRebias;
  }
  return std::bit_cast<float>(bits | sign);
}

// The same with the format as a value.

constexpr bool is_fp8(DType type) {
  return type == DType::e4m3 || type == DType::e5m2;
}
OCTAVO_HOST_DEVICE inline float fp8_max(DType format) {
  return format == DType::e4m3 ? Fp8Format<DType::e4m3>::kMax : Fp8Format<DType::e5m2>::kMax;
}
OCTAVO_HOST_DEVICE inline std::uint8_t encode_fp8(DType format, float x) {
  return format == DType::e4m3 ? encode_fp8<DType::e4m3>(x) : encode_fp8<DType::e5m2>(x);
}
OCTAVO_HOST_DEVICE inline float decode_fp8(DType format, std::uint8_t code) {
  return format == DType::e4m3 ? decode_fp8<DType::e4m3>(code) : decode_fp8<DType::e5m2>(code);
}

}  // namespace octavo
