// fp8_update.cpp - the histories and scales of all slots move on: once a step.
#include <algorithm>
#include <bit>

#include "backend.h"
#include "cpu/operators.h"

namespace octavo::cpu {

void fp8_update(const Fp8Update& op) {
  const std::int64_t slots = op.amax.dim(0);
  std::int32_t *amax = op.amax.as<std::int32_t>(), *frozen = op.frozen.as<std::int32_t>();
  float *scale = op.scale.as<float>(), *last = op.last.as<float>();
  const float* scaled_max = op.scaled_max.as<float>();
  const bool moves = op.scaling == Fp8Scaling::delayed && op.state->skip == 0;
  for (std::int64_t s = 0; s < slots; ++s) {
    last[s] = std::bit_cast<float>(amax[s]);
    amax[s] = 0;
    frozen[s] = 0;
    if (!moves) continue;
    const std::int64_t length = op.history.dim(1);
    float chosen = 0;
    scale[s] = octavo::fp8_update(op.history.as<float>() + s * length, length, op.algorithm, last[s],
                                  scale[s], scaled_max[s], chosen);
    frozen[s] = last[s] != 0 && !fp8_usable(chosen) ? 1 : 0;
  }
}

}  // namespace octavo::cpu
