// comparison_statistics.h - what a sweep's logs say of its runs: losses as trailing means, speeds, training
// time, gaps that are paired by seed, and the rule by which a gap counts as none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "metrics.h"

namespace octavo {

/// Mean over repeats, and its standard error (sample deviation / sqrt(n)) where there are two or more.
struct Estimate {
  double mean = 0;
  std::optional<double> standard_error;
};
Estimate estimate(const std::vector<double>& values);

/// Sample standard deviation (n - 1); empty of fewer than two values.
std::optional<double> sample_deviation(const std::vector<double>& values);

/// Median and quartiles, linearly interpolated between values; NaN of none.
struct Quartiles {
  double low = 0, median = 0, high = 0;
};
Quartiles quartiles(std::vector<double> values);

/// Tokens/s of the steps that count: finite, the first ones (warm-up: 5, or half of a shorter log) left out.
std::vector<double> steady_speeds(const std::vector<StepRecord>& records);

/// How many steps a trailing mean covers in a run of that many: 100, in runs of under 1000 a tenth, rounded
/// up.
std::int64_t trailing_span(std::int64_t steps);

/// For every row the mean of the training loss over the last trailing_span() steps up to it (at the start of
/// a log over what there is). Rows that are not finite are passed over; NaN where no other is in the span.
std::vector<double> trailing_means(const std::vector<StepRecord>& records);

/// For every row the seconds trained until its end: sums of the steps' times, evaluations and saves not
/// counted. Steps that were not logged count as the next row that was.
std::vector<double> training_seconds(const std::vector<StepRecord>& records);

/// The curve's value at `time`, linear between its points, flat before the first and after the last.
/// `times` ascends.
double value_at(const std::vector<double>& times, const std::vector<double>& values, double time);

/// When the curve first is at `target` or below; empty where it never is.
std::optional<double> first_time_at(const std::vector<double>& times, const std::vector<double>& values,
                                    double target);

/// Whether a run lost convergence against the baseline: the rule that a precision is held to.
enum class Verdict { inside, outside, unresolved };
const char* name_of(Verdict verdict);  // "inside", "outside", "not resolved"

inline constexpr double kGapAllowed = 0.25;  // percent
inline constexpr int kLeastPairs = 3;

/// How much higher the losses of a run are than the baseline's: means of the differences between runs of the
/// same seed, so that what a seed does to both cancels.
struct LossGap {
  int pairs = 0;     // seeds that both have; 0: the means over all seeds are compared, without an error
  Estimate nats;     // per token
  Estimate percent;  // of the baseline's loss
};

/// Losses by seed. Empty where either side has none, or the baseline has one that is not finite.
std::optional<LossGap> paired_gap(const std::map<std::int64_t, double>& losses,
                                  const std::map<std::int64_t, double>& baseline);

struct Judgement {
  Verdict verdict = Verdict::unresolved;
  int pairs_needed = 0;  // about so many seeds would resolve it; 0: it is resolved
};

/// In percent: a mean gap over max(0.25, 2 standard errors), or one that is not finite, is outside. Else it
/// is inside where at least 3 seeds give a standard error of 0.25 at most, and not resolved where they do
/// not.
Judgement judge(const LossGap& gap);

}  // namespace octavo
