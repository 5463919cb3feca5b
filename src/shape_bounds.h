// shape_bounds.h - how large a model, its step and its run may be: one set of bounds for config files, for
// the config.json of models from elsewhere and for data. No real model meets them; below them no product of
// sizes leaves 64 bits.
#pragma once

#include <cstdint>

namespace octavo {

inline constexpr std::int64_t kMaxLayers = 1024;
inline constexpr std::int64_t kMaxChannels = std::int64_t{1} << 20;  // and heads
inline constexpr std::int64_t kMaxContext = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24;  // small enough to count ids in memory
inline constexpr std::int64_t kMaxTokensPerStep = std::int64_t{1} << 32;
inline constexpr std::int64_t kMaxSteps = 1'000'000'000;

}  // namespace octavo
