#include "time_limit.h"

namespace octavo {
namespace {

constexpr double kMargin = 1.1;          // on what was measured or guessed
constexpr double kClosingSeconds = 2.0;  // receipt, picture, the end of the process

}  // namespace

bool TimeLimit::reached(double elapsed, const Ahead& ahead) const {
  if (!seconds_) return false;
  const double one_step = step.seconds(0), one_save = save.seconds(save_seconds_);
  double ahead_seconds = one_step + one_save;
  if (ahead.saves) ahead_seconds += one_save;
  if (ahead.evaluates) ahead_seconds += evaluation.seconds(evaluation_steps_ * one_step);
  return elapsed + kMargin * ahead_seconds + kClosingSeconds > *seconds_;
}

}  // namespace octavo
