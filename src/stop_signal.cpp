#include "stop_signal.h"

#include <csignal>
#include <initializer_list>
#include <unistd.h>

namespace octavo {
namespace {

volatile std::sig_atomic_t g_signal = 0;

void remember(int signal) {
  if (g_signal != 0 && signal != SIGUSR1) _exit(exit_status_of(signal));
  g_signal = signal;
}

void set_handlers(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
}

}  // namespace

StopSignal::StopSignal() {
  g_signal = 0;
  set_handlers(remember);
}
StopSignal::~StopSignal() {
  set_handlers(SIG_DFL);
}

int StopSignal::received() const {
  return g_signal;
}

int exit_status_of(int signal) {
  return signal == SIGINT ? 130 : signal == SIGTERM ? 143 : 3;
}
const char* name_of_signal(int signal) {
  return signal == SIGINT ? "SIGINT" : signal == SIGTERM ? "SIGTERM" : "SIGUSR1";
}

}  // namespace octavo
