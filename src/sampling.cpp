#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "error.h"
#include "rng.h"

namespace octavo {

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t index) {
  std::vector<std::int32_t> order;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (std::isfinite(logits[i])) order.push_back(static_cast<std::int32_t>(i));
  if (order.empty())
    fail("generate: no logit is finite; the model's weights are damaged or training diverged");

  const auto more_probable = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (options.temperature == 0) return *std::min_element(order.begin(), order.end(), more_probable);
  std::sort(order.begin(), order.end(), more_probable);
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(options.top_k)));

  const double largest = logits[static_cast<std::size_t>(order.front())];
  std::vector<double> weight(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    weight[i] = std::exp((logits[static_cast<std::size_t>(order[i])] - largest) / options.temperature);
  double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  if (options.top_p < 1.0) {
    double sum = 0;
    std::size_t kept = 0;
    while (kept < weight.size() && sum < options.top_p * total) sum += weight[kept++];
    kept = std::max<std::size_t>(kept, 1);
    order.resize(kept);
    weight.resize(kept);
    total = std::accumulate(weight.begin(), weight.end(), 0.0);
  }

  const Philox4 r = philox(philox_key(options.seed, kRandomSample), static_cast<std::uint32_t>(index),
                           static_cast<std::uint32_t>(index >> 32), 0, 0);
  const double threshold = uniform53(r.v[0], r.v[1]) * total;
  double sum = 0;
  for (std::size_t i = 0; i < weight.size(); ++i) {
    sum += weight[i];
    if (threshold < sum) return order[i];
  }
  return order.back();
}

}  // namespace octavo
