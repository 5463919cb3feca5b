#include "stop_signal.h"

#include <cstddef>
#include <time.h>
#include <unistd.h>

namespace octavo {
namespace {

volatile std::sig_atomic_t g_signal = 0;

volatile std::sig_atomic_t g_when = 0;  // seconds of the monotonic clock, at the first signal

void remember(int signal) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  // Launchers such as timeout(1) signal the process and then its group: the two arrive as one wish.
  if (g_signal != 0 && signal != SIGUSR1 && now.tv_sec > g_when + 1) _exit(exit_status_of(signal));
  if (g_signal != 0) return;
  g_when = static_cast<std::sig_atomic_t>(now.tv_sec);
  g_signal = signal;
}

std::array<struct sigaction, kStopSignals.size()> g_former;

}  // namespace

StopSignal::StopSignal() {
  g_signal = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART | SA_ONSTACK;  // see signal_stack.h
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    sigaction(kStopSignals[i], &action, &g_former[i]);
    // nohup(1) starts a program that is to outlive its terminal.
    if (kStopSignals[i] == SIGHUP && g_former[i].sa_handler == SIG_IGN)
      sigaction(SIGHUP, &g_former[i], nullptr);
  }
}
StopSignal::~StopSignal() {
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) sigaction(kStopSignals[i], &g_former[i], nullptr);
}

int StopSignal::received() const {
  return g_signal;
}

int exit_status_of(int signal) {
  return signal == SIGUSR1 ? 3 : 128 + signal;
}
const char* name_of_signal(int signal) {
  switch (signal) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    default:
      return "SIGUSR1";
  }
}

}  // namespace octavo
