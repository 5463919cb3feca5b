// comparison.h - the table that ends a sweep: one row a run (repeats folded), as text, comparison.md, .csv,
// .json and .png.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "plot.h"

namespace octavo {

/// One run of a sweep, finished or failed. Runs with the same `name` are repeats of each other.
struct SweptRun {
  std::string name;  // "bf16"
  std::string mode;  // precision.mode
  std::filesystem::path folder;
  double peak_memory_gib = 0;
  std::string failure;  // why it failed; empty: it finished
};

/// Mean over repeats, and its standard error (sample deviation / sqrt(n)) where there are two or more.
struct Estimate {
  double mean = 0;
  std::optional<double> standard_error;
};

struct ComparisonRow {
  std::string name, mode;
  int repeats = 0;                    // that finished; 0: there is nothing to compare
  std::vector<std::string> failures;  // reasons of those that did not
  Estimate train_loss;                // trailing_loss()
  std::optional<Estimate> val_loss;
  std::optional<double> gap;   // of the validation loss (of the training loss where the first row has no
                               // other) to the first row that has one
  Estimate tokens_per_s;       // median_tokens_per_s()
  double speedup = 1;          // against the first row that has one
  double peak_memory_gib = 0;  // largest of the repeats, as given and as logged
};

struct Comparison {
  std::vector<ComparisonRow> rows;  // in the order in which names first appear
  bool on_cpu = true;               // heads the speed columns with "says nothing of GPUs"
  std::vector<Curve> curves;  // of every finished run, for the picture; they hold the reference entropies
};

/// Reads the logs of the runs that finished. Throws RequestError where one has no metrics.
Comparison compare_runs(const std::vector<SweptRun>& runs, bool on_cpu);

/// The aligned table for the terminal, with the reference entropies below; ends with a line end.
std::string comparison_text(const Comparison& comparison);
std::string comparison_markdown(const Comparison& comparison);
std::string comparison_csv(const Comparison& comparison);

/// Writes comparison.md, .csv, .json and (where gnuplot is there) .png into `folder`, each atomically.
PlotResult write_comparison(const Comparison& comparison, const std::filesystem::path& folder);

}  // namespace octavo
