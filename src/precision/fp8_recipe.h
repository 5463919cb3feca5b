// fp8_recipe.h - how a tensor comes to its FP8 codes: the whole recipe, in one file, for host and device.
//
// Each tensor that is read as FP8 has a slot with one scale. Its producer writes
//
//     q = encode(round_bf16(x) * scale)           x ~ decode(q) * scale_inv,  scale_inv = 1 / scale
//
// and folds amax = max |round_bf16(x)| into the slot on the way. Two recipes choose the scale:
//
//   delayed   from the amaxes of past steps: every value can be written as FP8 the moment it is computed.
//   Once
//             a step, when the amaxes of all micro-batches are folded (and reduced over ranks), each slot's
//             history takes in the new amax, and the scale moves. This is NVIDIA Transformer Engine's
//             DelayedScaling, edge cases included (tests/fp8_recipe.cpp holds it to golden vectors).
//   current   from the tensor's own amax, so that the values must be complete before the first code is
//   written:
//             a second pass over memory. For comparison, and for the calibration of the delayed recipe.
//
// What a step does, in order: forward and backward of every micro-batch (fold) -> reduce amaxes over ranks,
// one call -> Fp8Update, one launch (history, scale) -> AdamW, which casts the new weights at the new scale
// and folds their amax for the next update. A skipped step (non-finite loss or gradient) leaves scales and
// histories as they are and clears the amaxes, so that one inf never sits in a history.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "precision/fp8_formats.h"
#include "tensor.h"

namespace octavo {

enum class Fp8Scaling : std::uint8_t { delayed, current };
enum class Fp8AmaxAlgorithm : std::uint8_t { max, most_recent };

/// The settings of precision.fp8 that the arithmetic depends on.
struct Fp8Recipe {
  Fp8Scaling scaling = Fp8Scaling::delayed;
  bool hybrid = true;  // gradients in E5M2; false: E4M3 as everything else
  std::int64_t history = 1024;
  Fp8AmaxAlgorithm algorithm = Fp8AmaxAlgorithm::max;
  std::int64_t margin = 0;  // scales are 2^margin smaller than the amax would allow

  DType gradient_format() const { return hybrid ? DType::e5m2 : DType::e4m3; }
};

/// The scale state of one tensor: where its numbers lie in backend memory, and how to use them.
///
/// Amaxes are kept as the bit patterns of non-negative floats, whose order as integers is that of the values,
/// with inf above everything finite and NaN above inf: the fold is exact and independent of order on every
/// device and transport.
struct Fp8Slot {
  DType format = DType::e4m3;
  Fp8Scaling scaling = Fp8Scaling::delayed;
  float* scale = nullptr;
  float* scale_inv = nullptr;           // of the codes last written; their producer writes it
  std::int32_t* amax = nullptr;         // folded since the last update
  std::int32_t* own_amax = nullptr;     // of the tensor last written, under `current`
  std::int64_t* saturated = nullptr;    // values beyond the format's largest, since the counts were cleared
  std::int64_t* underflowed = nullptr;  // values not zero whose code is
};

/// The largest value a scaled tensor may reach: the format's, less the margin.
inline float fp8_scaled_max(DType format, std::int64_t margin) {
  return std::ldexp(fp8_max(format), static_cast<int>(-margin));
}

OCTAVO_HOST_DEVICE inline bool fp8_usable(float amax) {  // positive and finite; false for NaN
  return amax > 0 && amax <= FLT_MAX;
}

/// Delayed scaling: the scale that follows `scale` where the window's amax is `amax`. An amax of zero, inf or
/// NaN leaves it; where the quotient overflows it is the largest float.
OCTAVO_HOST_DEVICE inline float fp8_delayed_scale(float amax, float scale, float scaled_max) {
  if (!fp8_usable(amax)) return scale;
  const float quotient = scaled_max / amax;
  return quotient <= FLT_MAX ? quotient : FLT_MAX;
}

/// Current scaling: the scale of a tensor with this amax; 1 where that is zero, inf or NaN, and at most the
/// largest bf16, the type that is scaled.
OCTAVO_HOST_DEVICE inline float fp8_current_scale(float amax, float scaled_max) {
  if (!fp8_usable(amax)) return 1.0f;
  constexpr float kLargestBf16 = 0x1.fep127f;
  const float quotient = scaled_max / amax;
  return quotient <= FLT_MAX ? quotient : kLargestBf16;
}

/// One slot's update. history[0..length) holds the amaxes of past updates, oldest first, history[0] being the
/// place of the one that is collected (it lies apart, in Fp8Slot::amax, and arrives here as `last`; 0 stands
/// in its place). All `length` values count, then the window moves on by one:
///   last == 0 (nothing was cast): history and scale stay.
///   else: the window is history[1..length), last; amax is its largest (NaN is passed over, inf is not), or
///         `last` for most_recent; the history becomes 0 and the newest length - 1 of the window.
/// Returns the new scale. `amax` receives what the scale was chosen from, 0 where nothing was cast.
inline float fp8_update(float* history, std::int64_t length, Fp8AmaxAlgorithm algorithm, float last,
                        float scale, float scaled_max, float& amax) {
  amax = 0;
  if (last == 0) return scale;
  for (std::int64_t i = 1; i < length; ++i) {
    amax = std::fmax(amax, history[i]);
    history[i - 1] = history[i];
  }
  history[length - 1] = last;
  amax = std::fmax(amax, last);
  history[0] = 0;
  if (algorithm == Fp8AmaxAlgorithm::most_recent) amax = last;
  return fp8_delayed_scale(amax, scale, scaled_max);
}

}  // namespace octavo
