#include "stop_signal.h"

#include <csignal>

#include "catch.h"

using namespace octavo;

TEST_CASE("signals are remembered, and forgotten by the next watcher") {
  for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    if (signal == SIGHUP) std::signal(SIGHUP, SIG_DFL);  // the tests themselves may run under nohup
    StopSignal stop;
    CHECK(stop.received() == 0);
    std::raise(signal);
    CHECK(stop.received() == signal);
  }
  CHECK(StopSignal().received() == 0);
}

TEST_CASE("the same signal sent twice at once is one wish, and the former handlers come back") {
  struct sigaction before {
  }, after{};
  sigaction(SIGTERM, nullptr, &before);
  {
    StopSignal stop;
    std::raise(SIGTERM);
    std::raise(SIGTERM);
    std::raise(SIGINT);
    CHECK(stop.received() == SIGTERM);
  }
  sigaction(SIGTERM, nullptr, &after);
  CHECK(before.sa_handler == after.sa_handler);
}

TEST_CASE("exit statuses of signals") {
  CHECK(exit_status_of(SIGINT) == 130);
  CHECK(exit_status_of(SIGTERM) == 143);
  CHECK(exit_status_of(SIGHUP) == 129);
  CHECK(exit_status_of(SIGUSR1) == 3);
}
