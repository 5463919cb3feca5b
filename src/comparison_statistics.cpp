#include "comparison_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace octavo {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? kNaN : sum / static_cast<double>(values.size());
}

std::vector<double> values_of(const std::map<std::int64_t, double>& by_seed) {
  std::vector<double> values;
  for (const auto& [seed, value] : by_seed) values.push_back(value);
  return values;
}

}  // namespace

std::optional<double> sample_deviation(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  const double m = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - m) * (value - m);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

Estimate estimate(const std::vector<double>& values) {
  Estimate result{.mean = mean(values), .standard_error = sample_deviation(values)};
  if (result.standard_error) *result.standard_error /= std::sqrt(static_cast<double>(values.size()));
  return result;
}

Quartiles quartiles(std::vector<double> values) {
  if (values.empty()) return {kNaN, kNaN, kNaN};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - std::floor(place)) * (values[above] - values[below]);
  };
  return {at(0.25), at(0.5), at(0.75)};
}

std::vector<double> steady_speeds(const std::vector<StepRecord>& records) {
  std::vector<double> speeds;
  for (std::size_t i = std::min<std::size_t>(5, records.size() / 2); i < records.size(); ++i)
    if (std::isfinite(records[i].tokens_per_s)) speeds.push_back(records[i].tokens_per_s);
  return speeds;
}

std::int64_t trailing_span(std::int64_t steps) {
  return std::min<std::int64_t>(100, (steps + 9) / 10);
}

std::vector<double> trailing_means(const std::vector<StepRecord>& records) {
  std::vector<double> means;
  if (records.empty()) return means;
  const std::int64_t span = trailing_span(records.back().step);
  for (auto last = records.begin(); last != records.end(); ++last) {
    // Summed anew for each row, newest first: a sliding sum would carry rounding, and a NaN, along.
    double sum = 0, count = 0;
    for (auto row = last + 1; row != records.begin();) {
      --row;
      if (row->step <= last->step - span) break;
      if (!std::isfinite(row->loss)) continue;
      sum += row->loss;
      ++count;
    }
    means.push_back(count > 0 ? sum / count : kNaN);
  }
  return means;
}

std::vector<double> training_seconds(const std::vector<StepRecord>& records) {
  std::vector<double> seconds;
  double sum = 0;
  std::int64_t step = 0;
  for (const StepRecord& record : records) {
    if (std::isfinite(record.step_ms)) sum += 1e-3 * record.step_ms * static_cast<double>(record.step - step);
    step = record.step;
    seconds.push_back(sum);
  }
  return seconds;
}

double value_at(const std::vector<double>& times, const std::vector<double>& values, double time) {
  const auto after = std::lower_bound(times.begin(), times.end(), time);
  if (after == times.end()) return values.empty() ? kNaN : values.back();
  const auto i = static_cast<std::size_t>(after - times.begin());
  if (i == 0 || times[i] == time) return values[i];
  return values[i - 1] + (values[i] - values[i - 1]) * (time - times[i - 1]) / (times[i] - times[i - 1]);
}

std::optional<double> first_time_at(const std::vector<double>& times, const std::vector<double>& values,
                                    double target) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!(values[i] <= target)) continue;
    if (i == 0 || !std::isfinite(values[i - 1])) return times[i];
    const double share = (values[i - 1] - target) / (values[i - 1] - values[i]);
    return times[i - 1] + share * (times[i] - times[i - 1]);
  }
  return std::nullopt;
}

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::inside:
      return "inside";
    case Verdict::outside:
      return "outside";
    case Verdict::unresolved:
      return "not resolved";
  }
  throw std::logic_error("unknown verdict");
}

std::optional<LossGap> paired_gap(const std::map<std::int64_t, double>& losses,
                                  const std::map<std::int64_t, double>& baseline) {
  if (losses.empty() || baseline.empty()) return std::nullopt;
  for (const auto& [seed, base] : baseline)
    if (!std::isfinite(base)) return std::nullopt;
  LossGap gap;
  std::vector<double> nats, percent;
  for (const auto& [seed, loss] : losses) {
    const auto base = baseline.find(seed);
    if (base == baseline.end()) continue;
    nats.push_back(loss - base->second);
    percent.push_back(100 * (loss - base->second) / base->second);
  }
  gap.pairs = static_cast<int>(nats.size());
  if (gap.pairs == 0) {
    const double base = mean(values_of(baseline));
    nats.push_back(mean(values_of(losses)) - base);
    percent.push_back(100 * nats.back() / base);
  }
  gap.nats = estimate(nats);
  gap.percent = estimate(percent);
  return gap;
}

Judgement judge(const LossGap& gap) {
  const double percent = gap.percent.mean;
  if (!std::isfinite(percent)) return {Verdict::outside, 0};
  if (gap.pairs < kLeastPairs) return {Verdict::unresolved, kLeastPairs};
  const double error = *gap.percent.standard_error;
  if (percent > std::max(kGapAllowed, 2 * error)) return {Verdict::outside, 0};
  if (error <= kGapAllowed) return {Verdict::inside, 0};
  // The error falls with the root of the number of seeds.
  const double ratio = error / kGapAllowed, seeds = std::ceil(gap.pairs * ratio * ratio - 1e-9);
  return {Verdict::unresolved, static_cast<int>(std::clamp(seeds, gap.pairs + 1.0, 1e6))};
}

}  // namespace octavo
