// schedule.h - the learning rate of every step.
#pragma once

#include <cstdint>
#include <string>

#include "config.h"

namespace octavo {

/// A learning rate over `steps` optimizer steps, every default decided.
struct Schedule {
  enum class Shape : std::uint8_t { constant, linear, cosine, wsd };
  Shape shape = Shape::cosine;
  double lr = 0, min_lr = 0;
  std::int64_t steps = 0, warmup_steps = 0, decay_steps = 0;

  /// Learning rate of 1-based step s.
  ///   warm-up (s <= warmup_steps):  lr * s / warmup_steps, so that step 1 already moves and step
  ///   warmup_steps has lr; linear, cosine:  from lr at the end of the warm-up to min_lr, reached after
  ///   decay_steps and kept; wsd (warm-up, stable, decay; Hu et al., "MiniCPM", 2024):  lr, then linearly to
  ///   min_lr over the last decay_steps.
  double at(std::int64_t step) const;
};

/// Defaults: min_lr = lr / 10; warmup_steps = 2 % of the steps; decay_steps = the rest (wsd: 20 % of the
/// steps). Throws RequestError where warm-up and decay do not fit into the steps.
Schedule make_schedule(const OptimizerConfig& config, std::int64_t steps);

}  // namespace octavo
