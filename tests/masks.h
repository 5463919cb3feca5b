// masks.h - one dropout mask, for the oracle and for a backend.
#pragma once

#include <cstdint>

#include "backends.h"
#include "oracle_ops.h"

namespace octavo::testing {

/// A mask for B sequences whose global indices exceed 32 bits from the second on.
inline oracle::Mask mask_of(double p, std::int64_t B, DropPlace place) {
  oracle::Mask m{.p = p, .seed = 77, .layer = 3, .place = place, .samples = {}, .step = 12};
  for (std::int64_t b = 0; b < B; ++b) m.samples.push_back((std::int64_t{1} << 32) * b + 1000 + 7 * b);
  return m;
}

/// A backend's form of the oracle's mask.
struct DeviceMask {
  DeviceArray<std::int64_t> samples;
  DeviceState state;
  Dropout dropout;

  DeviceMask(Backend& b, const oracle::Mask& m)
      : samples(b, m.samples, {static_cast<std::int64_t>(m.samples.size())}, "samples"),
        state(b, StepState{.step = m.step}),
        dropout{.p = static_cast<float>(m.p),
                .seed = m.seed,
                .layer = m.layer,
                .place = m.place,
                .samples = samples.tensor,
                .state = state.state} {}
};

/// A stored value after dropout, rounded to its type; dropped values are +0.
template <typename T>
T dropped(T x, double factor) {
  if (factor == 0) return T{};
  return narrow_to<T>(static_cast<double>(to_float(x) * static_cast<float>(factor)));
}

}  // namespace octavo::testing
