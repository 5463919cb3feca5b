// time_limit.h - train.max_minutes: whether a run that makes one more step still ends in time.
#pragma once

#include <algorithm>
#include <optional>

namespace octavo {

/// What a kind of work costs, in seconds: the slowest of late (with each newer measurement the older ones
/// count a tenth less), or before the first one a guess.
class Cost {
 public:
  void took(double seconds) { slowest_ = std::max(seconds, 0.9 * slowest_.value_or(0)); }
  double seconds(double guess) const { return slowest_.value_or(guess); }

 private:
  std::optional<double> slowest_;
};

/// Holds a run to a limit that covers its checkpoint, its evaluation if one is due, and its closing files.
class TimeLimit {
 public:
  /// Before anything has been measured an evaluation is taken for `evaluation_steps` steps, and a save for
  /// `save_seconds`. No `seconds`: no limit.
  TimeLimit(std::optional<double> seconds, double evaluation_steps, double save_seconds)
      : seconds_(seconds), evaluation_steps_(evaluation_steps), save_seconds_(save_seconds) {}

  Cost step, evaluation, save;

  /// What a further step would bring with it.
  struct Ahead {
    bool saves = false;      // a checkpoint is due before it
    bool evaluates = false;  // an evaluation is due after it
  };
  /// Whether, `elapsed` seconds after the run's start, a further step, what it brings, a checkpoint and the
  /// closing files no longer fit.
  bool reached(double elapsed, const Ahead& ahead) const;

 private:
  std::optional<double> seconds_;
  double evaluation_steps_, save_seconds_;
};

}  // namespace octavo
