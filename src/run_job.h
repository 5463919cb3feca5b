// run_job.h - one run of a sweep, in a process of its own: what the sweep hands over, and what it hears back.
#pragma once

#include <string>

#include "run.h"

namespace octavo {

/// How a run in its own process ended.
struct RunReport {
  enum class End { finished, stopped, failed, unsupported };

  End end = End::failed;
  int status = 1;       // exit status of the process
  std::string message;  // what it says of its end: why it stopped or failed, or cannot run here
  double peak_memory_gib = 0;
  bool told = false;  // the child has shown the message itself, and written it to train.log
};

/// Trains in a child, `octavo train FOLDER --job SOCKET`, which gets config, folder use, command line and
/// label over the socket: just the run that was planned, whatever happened to the config file since. Progress
/// and log go where this process's go.
RunReport run_in_child(const RunRequest& request, const StopSignal& stop);

/// The child's side: what `octavo train --job SOCKET` does. Returns the exit status, and throws nothing.
int train_for_parent(int socket);

}  // namespace octavo
