// `octavo diff`: the first step and quantity where two runs part, and what of config and paths differs.
#include "diff.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "captured_output.h"
#include "catch.h"
#include "commands/commands.h"
#include "error.h"
#include "run_example.h"
#include "temp_dir.h"

using namespace octavo;
using octavo::testing::write_example_run;
namespace fs = std::filesystem;

namespace {

std::vector<StepRecord> log_of(int steps) {
  std::vector<StepRecord> records;
  for (int step = 1; step <= steps; ++step) {
    StepRecord record;
    record.step = record.updates = step;
    record.tokens = 100 * step;
    record.loss = 1.0 / step;
    record.grad_norm = 2;
    record.lr = 1e-3;
    records.push_back(record);
  }
  return records;
}

}  // namespace

TEST_CASE("diff: one bit of one number is found, with its step") {
  const auto left = log_of(9);
  CHECK_FALSE(first_parting(left, left));
  CHECK_FALSE(first_parting(left, {}));

  auto right = left;
  right[6].loss = std::nextafter(right[6].loss, 1);
  right[7].lr = 5;
  const auto loss = first_parting(left, right);
  REQUIRE(loss);
  CHECK(loss->step == 7);
  CHECK(loss->quantity == "loss");
  CHECK(loss->left == left[6].loss);
  CHECK(loss->right == right[6].loss);
  CHECK(loss->relative > 0);
  CHECK(loss->relative < 3e-16);

  const auto quantity = [&](const std::function<void(StepRecord&)>& change) {
    auto other = left;
    change(other[4]);
    const auto found = first_parting(left, other);
    return found && found->step == 5 ? found->quantity : std::string("none");
  };
  CHECK(quantity([](StepRecord& r) { r.lr *= 2; }) == "lr");
  CHECK(quantity([](StepRecord& r) { r.tokens = 7; }) == "tokens");
  CHECK(quantity([](StepRecord& r) { r.grad_norm = 3; }) == "grad_norm");
  CHECK(quantity([](StepRecord& r) { r.updates = 4; }) == "updates");
  CHECK(quantity([](StepRecord& r) { r.loss = std::nan(""); }) == "loss");
  CHECK(quantity([](StepRecord& r) { r.val_loss = 3; }) == "none");  // only one run evaluated there
  CHECK(quantity([](StepRecord& r) { r.tokens_per_s = 3; }) == "none");
  CHECK(quantity([](StepRecord& r) { r.lr = r.grad_norm = 9; }) == "lr");  // the first that a step comes by
}

TEST_CASE("diff: steps that only one run logged are passed over; NaN equals NaN; -0 does not equal 0") {
  auto left = log_of(8), right = log_of(12);
  left.erase(left.begin() + 2);
  right.erase(right.begin() + 4, right.begin() + 6);
  CHECK_FALSE(first_parting(left, right));
  left[1].grad_norm = right[1].grad_norm = std::nan("");
  left[2].val_loss = right[3].val_loss = 2.0;  // step 4
  CHECK_FALSE(first_parting(left, right));
  right[3].val_loss = 3.0;
  const auto val = first_parting(left, right);
  REQUIRE(val);
  CHECK(val->step == 4);
  CHECK(val->quantity == "val_loss");
  CHECK(val->relative == Approx(1.0 / 3));
  left[0].loss = 0.0;
  right[0].loss = -0.0;
  REQUIRE(first_parting(left, right));
  CHECK(first_parting(left, right)->relative == 0);
  right[0].loss = std::numeric_limits<double>::infinity();
  CHECK(std::isnan(first_parting(left, right)->relative));
}

TEST_CASE("diff: the report of two equal runs and of two that differ") {
  const testing::TempDir dir;
  RunInfo info;
  info.paths = {{"qkv fprop", "m=8", "oneDNN f32", ""}, {"attention", "", "own", ""}};
  const auto at_step_12 = [](double loss) {
    return [loss](StepRecord& record) {
      if (record.step == 12) record.loss = loss;
    };
  };
  write_example_run(dir.path / "a", "a", 20, at_step_12(3.25), info,
                    R"({"name": "a", "data": {"train": "x.txt"}})");
  write_example_run(dir.path / "same", "a", 20, at_step_12(3.25), info,
                    R"({"name": "a", "data": {"train": "x.txt"}})");
  const std::string equal = diff_runs(dir.path / "a", dir.path / "same");
  CHECK_THAT(equal,
             ContainsSubstring("config: equal\n") && ContainsSubstring("environment: equal\n") &&
                 ContainsSubstring("paths chosen: equal\n") &&
                 ContainsSubstring("steps: A logged 20, B logged 20, both 20\n  every logged step that both "
                                   "have is equal to the bit\n"));

  info.paths[0].path = "oneDNN bf16";
  info.paths[0].reason = "AVX512_BF16";
  info.paths.pop_back();
  info.threads = 3;
  write_example_run(dir.path / "b", "b", 15, at_step_12(3.5), info,
                    R"({"name": "a", "data": {"train": "x.txt"}, "train": {"seed": 5}})");
  const std::string report = diff_runs(dir.path / "a", dir.path / "b");
  CHECK_THAT(report, ContainsSubstring("config: 1 difference\n  train.seed  A 1\n              B 5\n"));
  CHECK_THAT(report, ContainsSubstring("environment: 1 difference\n  threads  A 0\n           B 3\n"));
  CHECK_THAT(report, ContainsSubstring(
                         "paths chosen: 2 differences\n  attention      A own\n                 B -\n"
                         "  qkv fprop m=8  A oneDNN f32\n                 B oneDNN bf16 (AVX512_BF16)\n"));
  CHECK_THAT(report, ContainsSubstring("first difference: step 12, loss\n    A 3.25\n    B 3.5\n"
                                       "    relative 0.0714\n"));
  CHECK_THAT(report, ContainsSubstring("step                                20              15\n"));
  CHECK_THAT(report, ContainsSubstring("tokens/s (median)                 1000            1000\n"));
}

TEST_CASE("diff: what is no run is refused by name; the command's status is 0 whether runs differ or not") {
  const testing::TempDir dir;
  write_example_run(dir.path / "a", "a", 5);
  write_example_run(dir.path / "b", "b", 5, [](StepRecord& record) { record.loss += 1; });
  const auto command = [&](const std::string& other) {
    CLI::App app;
    std::function<int()> action;
    register_diff(app, action);
    app.parse(std::vector<std::string>{(dir.path / other).string(), (dir.path / "a").string(), "diff"});
    return testing::captured_output([&] {
      const int status = action();  // what it throws passes through
      CHECK(status == 0);
    });
  };
  CHECK_THAT(command("a"), ContainsSubstring("equal to the bit"));
  CHECK_THAT(command("b"), ContainsSubstring("first difference: step 1, loss"));
  CHECK_THROWS_AS(command("none"), RequestError);
  CHECK_THROWS_WITH(command("none"), ContainsSubstring("none: no resolved.json there"));
  fs::remove(dir.path / "b" / "run.json");
  CHECK_THROWS_WITH(command("b"), ContainsSubstring("b: no run.json there; allowed: the folder of a run"));
  write_example_run(dir.path / "b", "b", 5);
  dir.file("b/metrics.jsonl", "{\"step\": 1\n" + metrics_json({}) + "\n");
  CHECK_THROWS_WITH(command("b"), ContainsSubstring("b/metrics.jsonl line 1: not valid JSON"));
  dir.file("b/metrics.jsonl", "");
  CHECK_THROWS_AS(command("b"), RequestError);
  CHECK_THROWS_WITH(command("b"),
                    ContainsSubstring("b/metrics.jsonl: has no row; allowed: the log of a run"));
}
