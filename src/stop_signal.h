// stop_signal.h - a wish to stop, asked for by a signal and answered at the end of a step.
#pragma once

#include <array>
#include <csignal>

namespace octavo {

inline constexpr std::array<int, 4> kStopSignals = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};

/// Catches SIGINT, SIGTERM, SIGUSR1 and (unless nohup ignores it) SIGHUP for as long as it lives. The first
/// signal is remembered; a second SIGINT or SIGTERM ends the process at once, for a person who cannot wait
/// for the checkpoint.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The signal that came, or 0.
  int received() const;
};

/// Exit status after a checkpoint made because of `signal`: 130 SIGINT, 143 SIGTERM, 129 SIGHUP, 3 SIGUSR1.
int exit_status_of(int signal);
const char* name_of_signal(int signal);

}  // namespace octavo
