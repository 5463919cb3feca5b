// fp8_reference.h - FP8 once more, slowly and from the definitions of the formats and of the recipe: what the
// kernels' codes are held to. Nothing here is shared with the code under test.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tensor.h"

namespace octavo::testing::reference {

inline constexpr DType kFormats[] = {DType::e4m3, DType::e5m2};

/// The value of a code: sign, then 4 bits of exponent (bias 7) and 3 of mantissa, or 5 (bias 15) and 2. An
/// exponent of zero has no hidden bit. E4M3 has no infinity, and one NaN; E5M2 has both as IEEE formats do.
inline double value_of(DType format, int code) {
  const int mantissa_bits = format == DType::e4m3 ? 3 : 2, bias = format == DType::e4m3 ? 7 : 15;
  const int magnitude = code & 0x7f, mantissa = magnitude & ((1 << mantissa_bits) - 1),
            exponent = magnitude >> mantissa_bits;
  const double sign = (code & 0x80) != 0 ? -1 : 1;
  if (format == DType::e4m3 && magnitude == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  if (format == DType::e5m2 && exponent == 31)
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

/// Values of all finite codes without a sign; the code is the index.
inline const std::vector<double>& finite_values(DType format) {
  const auto list = [](DType f) {
    std::vector<double> values;
    for (int code = 0; code < 0x80 && std::isfinite(value_of(f, code)); ++code)
      values.push_back(value_of(f, code));
    return values;
  };
  static const std::vector<double> e4m3 = list(DType::e4m3), e5m2 = list(DType::e5m2);
  return format == DType::e4m3 ? e4m3 : e5m2;
}

inline double largest_of(DType format) {
  return finite_values(format).back();
}

/// The code of the nearest value, of two equally near ones the even code; the largest value for all beyond
/// it.
inline std::uint8_t nearest(DType format, double x) {
  if (std::isnan(x)) return 0x7f;
  const std::vector<double>& values = finite_values(format);
  const double size = std::abs(x);
  const int sign = std::signbit(x) ? 0x80 : 0;
  const int above = static_cast<int>(std::lower_bound(values.begin(), values.end(), size) - values.begin());
  if (above == static_cast<int>(values.size())) return static_cast<std::uint8_t>((above - 1) | sign);
  if (above == 0) return static_cast<std::uint8_t>(sign);
  const double middle =
      (values[static_cast<std::size_t>(above) - 1] + values[static_cast<std::size_t>(above)]) / 2;
  const bool up = size > middle || (size == middle && above % 2 == 0);
  return static_cast<std::uint8_t>((up ? above : above - 1) | sign);
}

/// A tensor's codes at a scale, and what it adds to its slot.
struct Coded {
  float scale = 1, scale_inv = 1;
  std::vector<std::uint8_t> q;
  std::uint32_t amax = 0;  // the bits of max |x|, where NaN is above infinity
  std::int64_t saturated = 0, underflowed = 0;
};

inline std::uint32_t amax_of(const std::vector<bf16>& x) {
  std::uint32_t amax = 0;
  for (const bf16 v : x) amax = std::max(amax, static_cast<std::uint32_t>(v.bits & 0x7fffu) << 16);
  return amax;
}

/// x * scale is rounded to f32 once: the product of a bf16 and an f32 is exact in double.
inline Coded quantise(DType format, const std::vector<bf16>& x, float scale) {
  Coded c{.scale = scale, .scale_inv = 1.0f / scale, .q = {}, .amax = amax_of(x)};
  for (const bf16 v : x) {
    const float scaled = static_cast<float>(static_cast<double>(to_float(v)) * static_cast<double>(scale));
    c.q.push_back(nearest(format, static_cast<double>(scaled)));
    c.saturated += std::abs(static_cast<double>(scaled)) > largest_of(format) ? 1 : 0;
    c.underflowed += (v.bits & 0x7fff) != 0 && (c.q.back() & 0x7f) == 0 ? 1 : 0;
  }
  return c;
}

/// The scale of current scaling: the largest value over amax; 1 for an amax of zero, infinity or NaN; where
/// the quotient overflows the largest bf16.
inline float current_scale(DType format, const std::vector<bf16>& x) {
  const float amax = std::bit_cast<float>(amax_of(x));
  if (!std::isfinite(amax) || amax == 0) return 1;
  const double quotient = largest_of(format) / static_cast<double>(amax);
  if (quotient > static_cast<double>(std::numeric_limits<float>::max()))
    return std::bit_cast<float>(0x7f7f0000u);
  return static_cast<float>(quotient);
}

/// A [rows,columns] matrix, transposed.
template <typename T>
std::vector<T> transpose(const std::vector<T>& x, std::int64_t rows, std::int64_t columns) {
  std::vector<T> out;
  for (std::int64_t c = 0; c < columns; ++c)
    for (std::int64_t r = 0; r < rows; ++r) out.push_back(x[static_cast<std::size_t>(r * columns + c)]);
  return out;
}

/// Delayed scaling as NVIDIA Transformer Engine describes it: history[0] is where amaxes are collected, [1]
/// the oldest and [L - 1] the newest of the past.
struct Delayed {
  std::vector<float> history;
  float scale = 1;

  void update(bool most_recent, float last, double format_max, int margin) {
    if (last == 0) return;
    std::vector<float> window(history.begin() + 1, history.end());
    window.push_back(last);
    float amax = 0;
    for (const float a : window)
      if (a > amax) amax = a;  // NaN compares false
    if (most_recent) amax = last;
    history = window;
    history[0] = 0;
    if (!(amax > 0) || std::isinf(amax)) return;
    const double quotient = std::ldexp(format_max, -margin) / static_cast<double>(amax);
    const double most = static_cast<double>(std::numeric_limits<float>::max());
    scale = quotient > most ? std::numeric_limits<float>::max() : static_cast<float>(quotient);
  }
};

}  // namespace octavo::testing::reference
