// sweep_plan.h - what a sweep will do, run by run, found out before the first one starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run.h"
#include "sweep.h"

namespace octavo {

enum class RunState : std::uint8_t {
  fresh,
  unfinished,   // its folder holds the beginning of this very run
  finished,     // its folder holds all of it: kept
  unsupported,  // this machine or build cannot do it
};

struct PlannedRun {
  SweepRun run;
  RunRequest request;
  RunState state = RunState::fresh;
  std::string mode;  // precision that runs; of an unsupported run the one asked for
  std::int64_t seed = 0;
  std::int64_t steps_done = 0;  // of an unfinished run
  double peak_memory_gib = 0;   // of the sessions before this one
  std::string why_unsupported;
  bool on_cpu = true;
};

/// Checks every run, and what its folder holds: a finished run stays, an unfinished one goes on from its
/// checkpoint, and a run of another config is refused, with the ways out (settings that change nothing of
/// what is computed may differ: how often a checkpoint is written, time limits, names). With `overwrite` all
/// are done afresh. All runs split a step alike: a micro-batch left to "auto" is the largest that all can
/// use, up to the smallest that any of them chose; runs that have begun keep theirs, and the others take
/// that. Throws RequestError, also where no run can run here.
std::vector<PlannedRun> plan_sweep(const Sweep& sweep, bool overwrite, bool dry_run,
                                   const std::string& command);

}  // namespace octavo
