// sampling.h - the next token from a row of logits.
#pragma once

#include <cstdint>
#include <span>

namespace octavo {

struct SamplingOptions {
  double temperature = 1.0;  // 0: the most probable token (greedy)
  std::int64_t top_k = 0;    // keep the k most probable; 0: all
  double top_p = 1.0;        // then the smallest set whose probability reaches p; 1: all
  std::uint64_t seed = 1;
};

/// Draws a token id. The draw depends on (seed, index) alone, so a generated text can be reproduced from any
/// place. Ties are broken towards the smaller id. Throws RunError where no logit is finite.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, std::uint64_t index);

}  // namespace octavo
