#include "schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "error.h"

namespace octavo {

double Schedule::at(std::int64_t step) const {
  if (step <= warmup_steps) return lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
  const std::int64_t decay_start = shape == Shape::wsd ? steps - decay_steps : warmup_steps;
  if (shape == Shape::constant || step <= decay_start) return lr;
  const double progress =
      decay_steps > 0
          ? std::min(1.0, static_cast<double>(step - decay_start) / static_cast<double>(decay_steps))
          : 1.0;
  const double share =
      shape == Shape::cosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * progress)) : 1.0 - progress;
  return min_lr + (lr - min_lr) * share;
}

Schedule make_schedule(const OptimizerConfig& c, std::int64_t steps) {
  Schedule s;
  s.shape = c.schedule == "constant" ? Schedule::Shape::constant
            : c.schedule == "linear" ? Schedule::Shape::linear
            : c.schedule == "wsd"    ? Schedule::Shape::wsd
                                     : Schedule::Shape::cosine;
  s.lr = c.lr;
  s.min_lr = c.min_lr.value_or(c.lr / 10);
  s.steps = steps;
  s.warmup_steps = c.warmup_steps.value_or((steps + 49) / 50);
  const std::int64_t rest = std::max<std::int64_t>(0, steps - s.warmup_steps);
  s.decay_steps =
      c.decay_steps.value_or(s.shape == Schedule::Shape::wsd ? std::min(rest, (steps + 4) / 5) : rest);
  if (s.warmup_steps > steps)
    refuse("optimizer.warmup_steps: found {}, the run has {} steps; allowed: 0 to {}", s.warmup_steps, steps,
           steps);
  // A cosine or line may reach beyond this run's last step; wsd counts its decay back from there.
  if (s.shape == Schedule::Shape::wsd && s.decay_steps > rest)
    refuse("optimizer.decay_steps: found {}, after {} steps of warm-up {} are left; allowed: 0 to {}",
           s.decay_steps, s.warmup_steps, rest, rest);
  return s;
}

}  // namespace octavo
