// Each run of a sweep is a process of its own: what it is told, and every way in which it or the sweep ends.
#include "run_job.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "catch.h"
#include "error.h"
#include "small_run.h"

using namespace octavo;
using namespace octavo::testing;
namespace fs = std::filesystem;

namespace {

/// A sweep of the runs "one" and "two" into out/; the first has many steps.
void write_sweep(const SmallRun& s, std::int64_t steps = 1000000) {
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 4;
  config["train"]["eval_every"] = 0;
  config["train"]["checkpoint_every"] = 0;
  s.dir.file("base.json", config.dump());
  s.dir.file(
      "s.json",
      nlohmann::json{{"base", "base.json"},
                     {"output", {{"dir", "out"}}},
                     {"runs", {{{"name", "one"}, {"set", {{"train.steps", steps}}}}, {{"name", "two"}}}}}
          .dump());
}

bool within_a_minute(const std::function<bool()>& true_at_last) {
  for (int i = 0; i < 6000; ++i) {
    if (true_at_last()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

/// Waits for the first step of run "one"; its process, which holds the lock of its folder.
pid_t training_process(const SmallRun& s, pid_t sweep) {
  const fs::path one = s.dir.path / "out/one";
  const bool begun = within_a_minute(
      [&] { return fs::exists(one / "metrics.jsonl") && !slurp(one / "metrics.jsonl").empty(); });
  if (!begun) kill(sweep, SIGKILL);
  return static_cast<pid_t>(std::stol(slurp(one / ".lock")));  // throws where there is none
}

bool is_there(pid_t process) {
  return kill(process, 0) == 0;
}

}  // namespace

TEST_CASE("a run is what was planned, whatever happens to the config file meanwhile") {
  const SmallRun s;
  write_sweep(s, 150);
  pid_t child = -1;
  const ProgramResult r = run_program(s.dir.path, {"sweep", "s.json"}, [&](pid_t sweep) {
    child = training_process(s, sweep);
    CHECK(child != sweep);
    s.dir.file("base.json", "no config any more");
  });
  INFO(r.err);
  CHECK(r.status == 0);
  CHECK(read_metrics(s.dir.path / "out/two/metrics.jsonl").size() == 4);
  CHECK_FALSE(is_there(child));
  const auto run = nlohmann::json::parse(slurp(s.dir.path / "out/two/run.json"));
  CHECK_THAT(run["command"].get<std::string>(), ContainsSubstring("sweep s.json"));
  CHECK_THAT(r.err, ContainsSubstring("[one]  step 1/150") && ContainsSubstring("[two]  step 4/4"));
  // Each process has its own peak: the sweep's does not hold a model.
  const auto rows = nlohmann::json::parse(slurp(s.dir.path / "out/comparison.json"))["rows"];
  const double seen = rows[1]["peak_memory_gib"],
               logged = read_metrics(s.dir.path / "out/two/metrics.jsonl").back().memory_gib;
  CHECK(seen >= logged);
  CHECK(seen < 1.5 * logged);
}

TEST_CASE("every stop signal reaches the run, which saves; the same command goes on") {
  for (const auto& [signal, status] : {std::pair(SIGTERM, 143), {SIGINT, 130}, {SIGUSR1, 3}}) {
    const SmallRun s;
    write_sweep(s);
    pid_t child = -1;
    const ProgramResult r = run_program(s.dir.path, {"sweep", "s.json"}, [&, signal = signal](pid_t sweep) {
      child = training_process(s, sweep);
      kill(sweep, signal);
    });
    INFO(r.err);
    CHECK(r.status == status);
    CHECK_FALSE(is_there(child));
    const auto checkpoint = newest_checkpoint(s.dir.path / "out/one/checkpoints");
    REQUIRE(checkpoint.has_value());
    CHECK_THAT(r.err, ContainsSubstring("the sweep stops here; the same command goes on with it\n"));
    CHECK_FALSE(fs::exists(s.dir.path / "out/two"));
    if (signal != SIGTERM) continue;
    const ProgramResult again = run_program(s.dir.path, {"sweep", "s.json"}, [&](pid_t sweep) {
      within_a_minute([&] {
        return read_metrics(s.dir.path / "out/one/metrics.jsonl").back().step > checkpoint->state.step;
      });
      kill(sweep, SIGTERM);
    });
    INFO(again.err);
    CHECK_THAT(again.err, ContainsSubstring(fmt::format("run 1 of 2: one: goes on after step {}\n",
                                                        checkpoint->state.step)));
    CHECK(newest_checkpoint(s.dir.path / "out/one/checkpoints")->state.step > checkpoint->state.step);
  }
}

TEST_CASE("when a sweep is killed outright its run saves and ends") {
  const SmallRun s;
  write_sweep(s);
  pid_t child = -1;
  const ProgramResult r = run_program(s.dir.path, {"sweep", "s.json"}, [&](pid_t sweep) {
    child = training_process(s, sweep);
    kill(sweep, SIGKILL);
  });
  CHECK(r.status == 128 + SIGKILL);
  REQUIRE(child > 0);
  CHECK(within_a_minute([&] { return !fs::exists(s.dir.path / "out/one/.lock"); }));
  CHECK(newest_checkpoint(s.dir.path / "out/one/checkpoints").has_value());
}

TEST_CASE("a run whose process is killed is a failed run, and the others go on") {
  const SmallRun s;
  write_sweep(s);
  const ProgramResult r = run_program(s.dir.path, {"sweep", "s.json"},
                                      [&](pid_t sweep) { kill(training_process(s, sweep), SIGKILL); });
  INFO(r.err);
  CHECK(r.status == 1);
  CHECK_THAT(r.err, ContainsSubstring("warning: one failed: the process was ended by signal 9 (Killed); was "
                                      "memory short?\n"));
  CHECK_THAT(r.out, ContainsSubstring("one failed: the process was ended by signal 9"));
  CHECK(read_metrics(s.dir.path / "out/two/metrics.jsonl").size() == 4);
}

TEST_CASE("the option with which a sweep starts its runs is told to nobody") {
  const SmallRun s;
  CHECK_THAT(run_program(s.dir.path, {"train", "--help"}).out, !ContainsSubstring("--job"));
  CHECK_THAT(run_program(s.dir.path, {"train", "a", "--jib"}).err,
             !ContainsSubstring("--job") && ContainsSubstring("allowed: CONFIG"));
}
