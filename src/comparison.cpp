// comparison.cpp - from the logs of a sweep's runs to the rows of its comparison.
#include "comparison.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "error.h"

namespace octavo {
namespace {

constexpr double kDefaultTarget = 1.01;  // of the baseline's final training loss

/// A finished run with its log as curves over training time.
struct Log {
  std::vector<double> seconds, means;  // trailing means of the training loss
};

using Losses = std::map<std::int64_t, double>;  // by seed

Losses train_losses(const ComparisonRow& row) {
  Losses losses;
  for (const MeasuredRun& run : row.runs) losses[run.seed] = run.train_loss;
  return losses;
}

Losses val_losses(const ComparisonRow& row) {
  Losses losses;
  for (const MeasuredRun& run : row.runs)
    if (run.val_loss) losses[run.seed] = *run.val_loss;
  return losses;
}

LossColumn column(const Losses& losses) {
  std::vector<double> values;
  for (const auto& [seed, loss] : losses) values.push_back(loss);
  return {.loss = estimate(values), .noise = sample_deviation(values), .gap = {}, .judgement = {}};
}

template <typename Get>
Estimate over_runs(const ComparisonRow& row, Get get) {
  std::vector<double> values;
  for (const MeasuredRun& run : row.runs) values.push_back(get(run));
  return estimate(values);
}

/// Whether all runs of both rows trained alike long: else their losses at the end say little.
bool same_length(const ComparisonRow& a, const ComparisonRow& b) {
  std::set<std::pair<std::int64_t, std::int64_t>> lengths;
  for (const ComparisonRow* row : {&a, &b})
    for (const MeasuredRun& run : row->runs) lengths.emplace(run.steps, run.tokens);
  return lengths.size() == 1;
}

/// A row is inside where both its losses are, and outside where one is.
Judgement together(const Judgement& a, const Judgement& b) {
  for (const Judgement& j : {a, b})
    if (j.verdict == Verdict::outside) return j;
  return a.pairs_needed > b.pairs_needed ? a : b;
}

void hold_against(ComparisonRow& row, const ComparisonRow& baseline, std::vector<std::string>& notes) {
  row.train.gap = paired_gap(train_losses(row), train_losses(baseline));
  if (row.val) row.val->gap = paired_gap(val_losses(row), val_losses(baseline));
  if (!row.train.gap) return;
  if (row.train.gap->pairs == 0)
    notes.push_back(fmt::format("{} has no seed in common with {}: its gap holds the seeds' noise as well",
                                row.name, baseline.name));
  if (!same_length(row, baseline)) {
    notes.push_back(fmt::format("{} and {} did not train on the same steps and tokens: no verdict", row.name,
                                baseline.name));
    return;
  }
  row.judgement = row.train.judgement = judge(*row.train.gap);
  if (!row.val || !row.val->gap) return;
  row.val->judgement = judge(*row.val->gap);
  row.judgement = together(*row.train.judgement, *row.val->judgement);
}

/// The baseline asked for, or the first row with something to compare.
void choose_baseline(const std::string& asked, Comparison& comparison) {
  const auto& rows = comparison.rows;
  if (rows.empty()) return;
  const std::string name = asked.empty() ? rows.front().name : asked;
  const auto has_result = [](const ComparisonRow& row) { return !row.runs.empty(); };
  auto found = std::find_if(rows.begin(), rows.end(),
                            [&](const ComparisonRow& row) { return row.name == name && has_result(row); });
  if (found == rows.end()) {
    comparison.asked_baseline = name;
    found = std::find_if(rows.begin(), rows.end(), has_result);
  }
  comparison.baseline = static_cast<std::size_t>(found - rows.begin());
}

}  // namespace

Comparison compare_runs(const std::vector<SweptRun>& runs, const ComparisonOptions& options) {
  Comparison comparison;
  comparison.on_cpu = options.on_cpu;
  std::vector<std::vector<Log>> logs;
  std::vector<std::vector<double>> speeds;
  for (const SweptRun& run : runs) {
    const auto found = std::find_if(comparison.rows.begin(), comparison.rows.end(),
                                    [&](const ComparisonRow& row) { return row.name == run.name; });
    const auto index = static_cast<std::size_t>(found - comparison.rows.begin());
    if (found == comparison.rows.end()) {
      comparison.rows.emplace_back().name = run.name;
      comparison.rows.back().mode = run.mode;
      logs.emplace_back(), speeds.emplace_back();
    }
    ComparisonRow& row = comparison.rows[index];
    if (!run.unsupported.empty()) row.unsupported = run.unsupported;
    if (!run.failure.empty()) row.failures.push_back(run.failure);
    if (!run.unsupported.empty() || !run.failure.empty()) continue;

    Curve curve = load_curve(run.folder);
    Log log{.seconds = training_seconds(curve.records), .means = trailing_means(curve.records)};
    const std::vector<double> steady = steady_speeds(curve.records);
    speeds[index].insert(speeds[index].end(), steady.begin(), steady.end());
    MeasuredRun measured{.seed = run.seed,
                         .steps = curve.records.back().step,
                         .tokens = curve.records.back().tokens,
                         .train_loss = log.means.back(),
                         .val_loss = last_val_loss(curve.records),
                         .tokens_per_s = quartiles(steady).median,
                         .seconds = log.seconds.back(),
                         .peak_memory_gib = run.peak_memory_gib};
    for (const StepRecord& record : curve.records)  // of a resumed run an earlier session may have taken more
      if (record.memory_gib > measured.peak_memory_gib) measured.peak_memory_gib = record.memory_gib;
    row.peak_memory_gib = std::max(row.peak_memory_gib, measured.peak_memory_gib);
    row.runs.push_back(measured);
    logs[index].push_back(std::move(log));
    curve.name = row.runs.size() == 1 ? run.name : fmt::format("{} #{}", run.name, row.runs.size());
    curve.series = index;
    comparison.curves.push_back(std::move(curve));
  }
  choose_baseline(options.baseline, comparison);
  if (comparison.baseline == comparison.rows.size()) return comparison;

  std::vector<double> lengths;
  for (ComparisonRow& row : comparison.rows) {
    if (row.runs.empty()) continue;
    row.train = column(train_losses(row));
    if (const Losses val = val_losses(row); val.size() == row.runs.size()) row.val = column(val);
    for (const MeasuredRun& run : row.runs) lengths.push_back(run.seconds);
  }
  const ComparisonRow& baseline = comparison.rows[comparison.baseline];
  comparison.equal_seconds = *std::min_element(lengths.begin(), lengths.end());
  comparison.target_loss = options.target_loss.value_or(kDefaultTarget * baseline.train.loss.mean);
  const double base_speed = quartiles(speeds[comparison.baseline]).median;
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) {
    ComparisonRow& row = comparison.rows[i];
    if (row.runs.empty()) continue;
    for (std::size_t r = 0; r < row.runs.size(); ++r) {
      const Log& log = logs[i][r];
      row.runs[r].loss_at_equal_time = value_at(log.seconds, log.means, comparison.equal_seconds);
      row.runs[r].seconds_to_target = first_time_at(log.seconds, log.means, comparison.target_loss);
    }
    row.tokens_per_s = quartiles(speeds[i]);
    row.speedup = row.tokens_per_s.median / base_speed;
    row.seconds = over_runs(row, [](const MeasuredRun& run) { return run.seconds; });
    row.loss_at_equal_time = over_runs(row, [](const MeasuredRun& run) { return run.loss_at_equal_time; });
    if (std::all_of(row.runs.begin(), row.runs.end(),
                    [](const MeasuredRun& run) { return run.seconds_to_target.has_value(); }))
      row.seconds_to_target = over_runs(row, [](const MeasuredRun& run) { return *run.seconds_to_target; });
    if (i != comparison.baseline) hold_against(row, baseline, comparison.notes);
  }
  return comparison;
}

}  // namespace octavo
