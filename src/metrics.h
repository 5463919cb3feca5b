// metrics.h - the numbers of every step, as metrics.jsonl (one object a line) and metrics.csv.
//
// A key that does not apply to a step (val_loss between evaluations, mfu where the peak is unknown) is left
// out; a number that is not finite is null, and the row then says "finite": false. Every line is valid JSON,
// and each goes to the disk in one write, so that a killed run loses at most its last line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace octavo {

/// How the FP8 tensors of a step fared, all slots together.
struct Fp8Record {
  double scale_min = 0, scale_max = 0;  // after the step's update
  double amax_min = 0, amax_max = 0;    // of the tensors that were cast in the step
  double saturated = 0;                 // share of all values that lay beyond the format's largest
  double underflowed = 0;               // share that became zero without being it
};

struct StepRecord {
  std::int64_t step = 0;           // 1-based
  std::int64_t updates = 0;        // optimizer updates done so far
  std::int64_t skipped = 0;        // steps skipped so far because loss or gradient was not finite
  std::int64_t tokens = 0;         // tokens trained on so far
  double loss = 0;                 // mean over all tokens of the step, nats per token
  std::optional<double> val_loss;  // where an evaluation followed this step
  double lr = 0;
  double grad_norm = 0;          // global L2 norm before clipping
  double step_ms = 0;            // evaluation and saves excluded
  double tokens_per_s = 0;       // global, evaluation and saves excluded
  double tflops = 0;             // model TFLOP/s: flops_per_token * tokens_per_s / 1e12
  std::optional<double> mfu;     // tflops / peak, where the peak is known
  double memory_gib = 0;         // peak so far of the device (on the CPU: of the process)
  bool finite = true;            // false: the update was skipped, or some number of the row is not finite
  std::optional<Fp8Record> fp8;  // in FP8 runs; an object of its own in the JSON, columns fp8_... in the CSV
};

/// One row as JSON text without the line's end.
std::string metrics_json(const StepRecord& record);
/// One row of metrics.csv, and the row of names above it. What does not apply or is not finite is an empty
/// field.
std::string metrics_csv(const StepRecord& record);
std::string metrics_csv_header();

/// Writes metrics.jsonl and metrics.csv in a run's folder.
class MetricsLog {
 public:
  /// Keeps the rows of steps <= `keep_through_step` that the folder already has (0: starts empty), rewriting
  /// both files atomically: later rows and a torn last line vanish, and so does what is no row (see
  /// warning()): a log is no reason to lose a training. Throws RequestError where metrics.jsonl cannot be
  /// read, RunError where the files cannot be written.
  MetricsLog(const std::filesystem::path& folder, std::int64_t keep_through_step);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  /// Appends one row to both files. A write error (disk full) takes back what was written of the row and
  /// throws RunError with the path, once: later rows are dropped, so that the way out of the run is not
  /// blocked by the same error again.
  void append(const StepRecord& record);

  /// Forces the rows to the disk: before a checkpoint is finished, so that a power cut leaves no checkpoint
  /// that is ahead of its log. Throws as append() does.
  void sync();

  const std::filesystem::path& file() const { return jsonl_path_; }
  /// What of the former log was missing or dropped as damaged, in one line; else empty.
  const std::string& warning() const { return warning_; }

 private:
  std::filesystem::path jsonl_path_, csv_path_;
  std::string warning_;
  int jsonl_ = -1, csv_ = -1;
  bool failed_ = false;
};

/// Reads metrics.jsonl. A torn last line (no line end, no whole object) is ignored. Throws RequestError
/// naming file, line and fault where the file is missing, a line is no row, or steps do not increase.
std::vector<StepRecord> read_metrics(const std::filesystem::path& file);

/// Mean of the training loss over the last `count` rows that are finite; NaN where there is none.
double trailing_loss(const std::vector<StepRecord>& records, std::size_t count = 20);
/// The last validation loss; empty where none was taken.
std::optional<double> last_val_loss(const std::vector<StepRecord>& records);
/// Median tokens/s, the first rows (warm-up of caches and thread pools: 5, or half of a shorter log) left
/// out; NaN without rows.
double median_tokens_per_s(const std::vector<StepRecord>& records);

}  // namespace octavo
