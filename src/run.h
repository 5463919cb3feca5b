// run.h - one training run from its config to its receipt. `octavo train` does one, `octavo sweep` several.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend.h"
#include "checkpoint.h"
#include "config.h"
#include "console.h"
#include "data/dataset.h"
#include "run_folder.h"
#include "run_plan.h"
#include "stop_signal.h"

namespace octavo {

/// Seconds of a clock that only goes forward.
double steady_seconds();

struct RunRequest {
  Config config;
  FolderUse use = FolderUse::fresh;
  std::string command;   // as typed, for run.json and the receipt
  std::string label;     // shown before the progress line; empty outside sweeps
  bool dry_run = false;  // to be planned only: data that does not exist is then no fault
  std::function<double()> now = steady_seconds;  // the run's clock; tests bring their own
};

/// A run that has been checked from end to end and has written nothing yet.
struct PreparedRun {
  RunRequest request;
  double started = 0;  // on the request's clock: train.max_minutes counts from here
  Dataset data;
  std::unique_ptr<Backend> backend;
  RunPlan plan;
  std::optional<ModelFolder> initial;    // of model.init_from, for a fresh start
  std::optional<Checkpoint> checkpoint;  // to go on from
  std::vector<float> weights, moment1,
      moment2;                            // of initial or checkpoint, flat arenas; empty for a fresh start
  std::optional<SavedFp8> fp8;            // scales of the checkpoint
  std::vector<std::string> resume_notes;  // what differs from the config of the run resumed
};

/// Opens config and data, reads starting weights, plans the run and holds its memory against what is free.
/// Throws RequestError; writes nothing.
PreparedRun prepare_run(RunRequest request);

/// What a small step on this machine tells of the run.
struct RunEstimate {
  double step_seconds = 0;              // of one optimizer step
  std::optional<double> seconds;        // training and evaluation of all steps left, where they are known
  std::int64_t measured_sequences = 0;  // in the small step
  std::size_t workspace_bytes = 0;      // scratch that the operators took for it
};
/// Times a step of a few sequences, and an evaluation of as many; allocates a model for that.
RunEstimate estimate_run(PreparedRun& run);

/// What a run's checkpoints take on disk.
struct CheckpointDisk {
  std::uint64_t bytes = 0;    // of one
  std::uint64_t at_most = 0;  // so many at a time, the one being written included
};
CheckpointDisk checkpoint_disk(const PreparedRun& run);

/// What --dry-run prints: parameters, memory by category, disk for checkpoints, tokens a step, steps, paths
/// and reasons, and the estimate. Ends with a line end.
std::string plan_text(const PreparedRun& run, const RunEstimate& estimate);

/// The fields of state.json that the plan fixes: seeds, sequence, data, tokenizer, mode, arithmetic.
CheckpointState checkpoint_state(const PreparedRun& run);

struct RunOutcome {
  int status = 0;       // exit status: 0, 3, 130 or 143
  std::string message;  // "finished", "stopped by SIGTERM after step 12, resumable"
  double peak_memory_gib = 0;
};

/// Trains, until `stop` has received a signal at the latest. Uses up the starting weights of `run`. Throws
/// RunError where the run fails (non-finite loss too often, disk full).
RunOutcome execute_run(PreparedRun& run, Console& console, const StopSignal& stop);

}  // namespace octavo
