// sweep.h - a sweep file: one base config and the named runs that differ from it.
//
//   { "base": "x.json", "output": { "dir": "runs/sweep" },
//     "runs": [ { "name": "fp8", "set": { "precision.mode": "fp8" } } ]      or
//     "grid": { "precision.mode": ["bf16", "fp8"], "optimizer.lr": [1e-3, 3e-4] },
//     "repeats": 3, "baseline": "bf16", "target_loss": 3.2 }
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config.h"

namespace octavo {

struct SweepRun {
  std::string name;  // of the table's row; repeats share it
  // Below the sweep's folder; "bf16", or "bf16_2" for the second repeat: the first has no number, so that
  // repeats can be added to a sweep that had none.
  std::string folder;
  std::vector<Override> overrides;  // on the base, the repeat's seed included
};

struct Sweep {
  std::string base;                   // config file
  std::filesystem::path dir;          // holds the run folders and the comparison
  std::vector<SweepRun> runs;         // in the order in which they run
  std::string baseline;               // name of the run that others are compared to; empty: the first
  std::optional<double> target_loss;  // nats per token, for the time that each run takes to get there
};

/// What the command line adds to a sweep file or a plain config.
struct SweepOptions {
  std::vector<std::string>
      modes;                 // one run a precision mode; with a sweep file: only the runs of these modes
  std::int64_t repeats = 0;  // 0: the file's
  std::vector<Override> overrides;  // --set, on every run
};

/// Reads a sweep file, or makes a sweep over precision modes (default fp32, bf16, fp8) of a plain config.
/// `base` is relative to the sweep file. Repeat r trains with seed train.seed + r. Throws RequestError naming
/// file and key.
Sweep load_sweep(const std::string& file, const SweepOptions& options);

}  // namespace octavo
