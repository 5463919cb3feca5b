#include "stop_signal.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>
#include <unistd.h>
#include <vector>

#include "backends.h"
#include "catch.h"

using namespace octavo;
using namespace octavo::testing;

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

TEST_CASE("signals that come while a product runs write over nothing") {
  // Without a stack of their own for handlers this corrupts the heap within a few hundred signals (oneDNN's
  // f32 kernel for AVX-512); elsewhere it holds anyway.
  Backend& backend = *backends().front();
  constexpr std::int64_t N = 96, C = 144;
  DeviceArray<float> a(backend, random_values<float>(N * C, 1), {N, C}),
      b(backend, random_values<float>(C * C, 2), {C, C});
  DeviceArray<float> d(backend, {N, C});
  const auto multiply = [&] {
    backend.run(Matmul{.gemm = Gemm::dgrad, .a = {.t = a.tensor}, .b = {.t = b.tensor}, .d = d.tensor});
  };
  multiply();
  const std::vector<float> expected = d.read();
  const StopSignal stop;
  std::atomic<bool> done{false};
  std::thread sender([&] {
    while (!done) {
      kill(getpid(), SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(30));
    }
  });
  int wrong = 0;
  for (int i = 0; i < 4000; ++i) {
    multiply();
    if (i % 100 == 0 && d.read() != expected) ++wrong;
  }
  done = true;
  sender.join();
  CHECK(wrong == 0);
  CHECK(d.read() == expected);
  CHECK(stop.received() == SIGUSR1);
}

TEST_CASE("exit statuses of signals") {
  CHECK(exit_status_of(SIGINT) == 130);
  CHECK(exit_status_of(SIGTERM) == 143);
  CHECK(exit_status_of(SIGHUP) == 129);
  CHECK(exit_status_of(SIGUSR1) == 3);
}
