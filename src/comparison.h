// comparison.h - what ends a sweep: one row a run (repeats folded) of losses, gaps to the baseline and
// speeds, as text, comparison.md, .csv, .json and .png. The statistics are in comparison_statistics.h.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "comparison_statistics.h"
#include "plot.h"

namespace octavo {

/// One run of a sweep. Runs with the same `name` are repeats of each other, each with its own seed.
struct SweptRun {
  std::string name;  // "bf16"
  std::string mode;  // precision.mode
  std::filesystem::path folder;
  std::int64_t seed = 0;
  double peak_memory_gib = 0;
  std::string failure;      // why it failed; empty: it finished, or is
  std::string unsupported;  // why it cannot run here; empty: it can
};

/// What one finished run's log says.
struct MeasuredRun {
  std::int64_t seed = 0, steps = 0, tokens = 0;
  double train_loss = 0;  // trailing mean at the end
  std::optional<double> val_loss;
  double tokens_per_s = 0;  // median
  double seconds = 0;       // of training
  double peak_memory_gib = 0;
  double loss_at_equal_time = 0;  // trailing mean at Comparison::equal_seconds
  std::optional<double> seconds_to_target;
};

/// A loss of a row over its seeds, and against the baseline's.
struct LossColumn {
  Estimate loss;
  std::optional<double> noise;  // seed to seed: sample deviation over this row's seeds
  std::optional<LossGap> gap;   // not of the baseline itself
  // Where there is a gap, and the row did the baseline's number of steps on as many tokens.
  std::optional<Judgement> judgement;
};

struct ComparisonRow {
  std::string name, mode;
  std::vector<MeasuredRun> runs;      // that finished; empty: there is nothing to compare
  std::vector<std::string> failures;  // reasons of those that failed
  std::string unsupported;            // why it cannot run here
  LossColumn train;
  std::optional<LossColumn> val;
  std::optional<Judgement> judgement;  // of both losses together: the worse
  Quartiles tokens_per_s;              // over the steps of all repeats
  double speedup = 1;                  // of the median over the baseline's
  double peak_memory_gib = 0;          // largest of the repeats, as given and as logged
  Estimate seconds, loss_at_equal_time;
  std::optional<Estimate> seconds_to_target;  // where every repeat got there
};

/// What the rows are held against.
struct ComparisonOptions {
  bool on_cpu = true;                 // heads the speed columns with "says nothing of GPUs"
  std::string baseline;               // a run's name; empty: the first
  std::optional<double> target_loss;  // empty: the baseline's final training loss and 1 % more
};

struct Comparison {
  std::vector<ComparisonRow> rows;  // in the order in which names first appear
  bool on_cpu = true;
  std::size_t baseline = 0;    // index of its row: the one asked for, or where that has no result the first
                               // that has one; rows.size() where none has
  std::string asked_baseline;  // where that has no result
  double equal_seconds = 0;    // training time of the run that was done first
  double target_loss = 0;      // nats per token
  std::vector<std::string> notes;  // on what is not quite comparable, one line each
  std::vector<Curve> curves;  // of every finished run, for the picture; they hold the reference entropies
};

/// Reads the logs of the runs that finished. Throws RequestError where one has no metrics.
Comparison compare_runs(const std::vector<SweptRun>& runs, const ComparisonOptions& options);

/// The aligned tables for the terminal, what they cost and what they buy, with notes and the reference
/// entropies below; ends with a line end.
std::string comparison_text(const Comparison& comparison);
std::string comparison_markdown(const Comparison& comparison);
/// Every number of every row.
std::string comparison_csv(const Comparison& comparison);

/// Writes comparison.md, .csv, .json and (where gnuplot is there) .png into `folder`, each atomically.
PlotResult write_comparison(const Comparison& comparison, const std::filesystem::path& folder);
/// Removes those files, so that none of an earlier sweep stands beside newer runs.
void remove_comparison(const std::filesystem::path& folder);

}  // namespace octavo
