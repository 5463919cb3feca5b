// Sweep files: which runs they mean, and every way in which they can be wrong; and the command: runs that
// fail, sweeps that are interrupted.
#include "sweep.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "catch.h"
#include "error.h"
#include "small_run.h"
#include "temp_dir.h"

using namespace octavo;

namespace {

struct Files {
  testing::TempDir dir;
  std::string base = dir.file("base.json", R"({ "data": { "train": "x.txt" }, "train": { "seed": 5 } })");

  Sweep load(const std::string& text, const SweepOptions& options = {}) const {
    return load_sweep(dir.file("s.json", text), options);
  }
  Config config(const Sweep& sweep, std::size_t i) const {
    return load_config(sweep.base, sweep.runs.at(i).overrides);
  }
};

}  // namespace

TEST_CASE("named runs, with the base beside the sweep file") {
  const Files f;
  const Sweep s = f.load(R"({ "base": "base.json", "output": { "dir": "out" },
    "runs": [ { "name": "a", "set": { "precision.mode": "fp32", "optimizer.lr": 0.5 } }, { "name": "b" } ] })");
  REQUIRE(s.runs.size() == 2);
  CHECK(s.dir == "out");
  CHECK(f.config(s, 0).precision.mode == "fp32");
  CHECK(f.config(s, 0).optimizer.lr == 0.5);
  CHECK(f.config(s, 0).output.dir == "out/a");
  CHECK(f.config(s, 0).name == "a");
  CHECK(f.config(s, 1).precision.mode == "bf16");
}

TEST_CASE("a grid is the product of its lists") {
  const Files f;
  const Sweep s = f.load(R"({ "base": "base.json",
    "grid": { "precision.mode": ["fp32", "bf16"], "optimizer.lr": [0.1, 0.01] } })");
  std::vector<std::string> names;
  for (const SweepRun& run : s.runs) names.push_back(run.name);
  CHECK(names == std::vector<std::string>{"fp32,lr=0.1", "fp32,lr=0.01", "bf16,lr=0.1", "bf16,lr=0.01"});
  CHECK(f.config(s, 3).optimizer.lr == 0.01);
  CHECK(s.dir == "runs/s");
}

TEST_CASE("repeats share a name, with a folder and a seed each") {
  const Files f;
  const Sweep s =
      f.load(R"({ "base": "base.json", "grid": { "precision.mode": ["fp32", "bf16"] }, "repeats": 2 })");
  REQUIRE(s.runs.size() == 4);
  CHECK(s.runs[0].folder == "fp32");  // as without repeats, which can so be added later
  CHECK(s.runs[2].name == "fp32");
  CHECK(s.runs[2].folder == "fp32_2");
  CHECK(f.config(s, 0).train.seed == 5);
  CHECK(f.config(s, 2).train.seed == 6);
  CHECK(f.load(R"({ "base": "base.json", "runs": [ { "name": "a" } ] })",
               {.modes = {}, .repeats = 3, .overrides = {}})
            .runs.size() == 3);
}

TEST_CASE("a plain config is swept over modes") {
  const Files f;
  const Sweep s = load_sweep(f.base, {});
  REQUIRE(s.runs.size() == 3);
  CHECK(f.config(s, 0).precision.mode == "fp32");
  CHECK(f.config(s, 1).precision.mode == "bf16");
  CHECK(f.config(s, 2).precision.mode == "fp8");
  CHECK(s.dir == "runs/base_sweep");
  CHECK(load_sweep(f.base, {.modes = {"bf16"}, .repeats = 0, .overrides = {}}).runs.size() == 1);
}

TEST_CASE("modes on the command line pick runs of a sweep file, --set reaches all") {
  const Files f;
  const std::string text = R"({ "base": "base.json", "grid": { "precision.mode": ["fp32", "bf16"] } })";
  const Sweep s = f.load(text, {.modes = {"bf16"}, .repeats = 0, .overrides = {{"train.steps", "7"}}});
  REQUIRE(s.runs.size() == 1);
  CHECK(f.config(s, 0).train.steps == 7);
  const Sweep moved = f.load(text, {.modes = {}, .repeats = 0, .overrides = {{"output.dir", "elsewhere"}}});
  CHECK(moved.dir == "elsewhere");
  CHECK(f.config(moved, 1).output.dir == "elsewhere/bf16");
  CHECK_THROWS_WITH(f.load(text, {.modes = {"fp8"}, .repeats = 0, .overrides = {}}),
                    ContainsSubstring("--modes: found fp8"));
}

TEST_CASE("faults of a sweep file name file, key and value") {
  const Files f;
  const auto refused = [&](const std::string& text, const std::string& part) {
    CHECK_THROWS_WITH(f.load(text), ContainsSubstring(part));
    CHECK_THROWS_AS(f.load(text), RequestError);
  };
  refused(R"({ "base": "base.json", "gird": {} })", "did you mean \"grid\"?");
  refused(R"({ "base": "base.json" })", "neither runs nor grid");
  refused(R"({ "base": "base.json", "grid": { "a": [1] }, "runs": [] })", "both runs and grid");
  refused(R"({ "base": 3, "grid": { "a": [1] } })", "base in");
  refused(R"({ "base": "base.json", "grid": { "train.seed": 3 } })", "grid.train.seed");
  refused(R"({ "base": "base.json", "runs": [ { "name": "../x" } ] })", "runs[0].name");
  refused(R"({ "base": "base.json", "runs": [ { "set": {} } ] })", "runs[0].name");
  refused(R"({ "base": "base.json", "runs": [ { "name": "a", "sett": {} } ] })", "did you mean \"set\"?");
  refused(R"({ "base": "base.json", "runs": [ { "name": "a" }, { "name": "a" } ] })", "two runs are named a");
  refused(R"({ "base": "base.json", "runs": [ { "name": "a" } ], "repeats": 0 })", "repeats in");
  refused(R"({ "base": "base.json", "runs": [ { "name": "a" } ], "output": { "path": "x" } })",
          "output.path");
  refused(R"({ "base": "missing.json", "runs": [ { "name": "a" } ], "repeats": 2 })", "missing.json");
  refused("[]", "allowed: a JSON object");
  for (const char* baseline : {"\"c\"", "3"})
    refused(
        fmt::format(
            R"({{ "base": "base.json", "runs": [ {{ "name": "a" }}, {{ "name": "b" }} ], "baseline": {} }})",
            baseline),
        "allowed: the name of a run, a, b");
  for (const char* loss : {"0", "\"low\"", "null"})
    refused(
        fmt::format(R"({{ "base": "base.json", "runs": [ {{ "name": "a" }} ], "target_loss": {} }})", loss),
        "target_loss in ");
}

TEST_CASE("the baseline is the name of a run, also of one that --modes leaves out") {
  const Files f;
  const std::string text = R"({ "base": "base.json", "grid": { "precision.mode": ["fp32", "bf16"] },
    "baseline": "bf16", "target_loss": 2.5 })";
  CHECK(f.load(text).baseline == "bf16");
  CHECK(f.load(text).target_loss == 2.5);
  CHECK(f.load(text, {.modes = {"fp32"}, .repeats = 0, .overrides = {}}).baseline == "bf16");
  CHECK(load_sweep(f.base, {}).baseline.empty());
}

namespace {

/// A sweep of three small runs in fp32 into `out`; `second` is set on the middle one.
void write_sweep(const testing::SmallRun& s, const nlohmann::json& second) {
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 6;
  config["train"]["checkpoint_every"] = 0;
  config["train"]["eval_every"] = 0;
  s.dir.file("base.json", config.dump());
  s.dir.file("s.json", nlohmann::json{{"base", "base.json"},
                                      {"output", {{"dir", "out"}}},
                                      {"runs",
                                       {{{"name", "one"}},
                                        {{"name", "two"}, {"set", second}},
                                        {{"name", "three"}, {"set", {{"train.seed", 3}}}}}}}
                           .dump());
}

}  // namespace

TEST_CASE("a run that fails is listed in the comparison, the others run, and the status is 1") {
  const testing::SmallRun s;
  write_sweep(s, {{"optimizer.lr", 1000},
                  {"optimizer.weight_decay", 1000},
                  {"train.max_bad_steps", 2},
                  {"train.steps", 60}});
  const testing::ProgramResult r = testing::run_program(s.dir.path, {"sweep", "s.json"});
  INFO(r.err);
  CHECK(r.status == 1);
  CHECK_THAT(r.err, ContainsSubstring("octavo: 1 of 3 runs failed: out/comparison.md has the reasons\n"));
  CHECK_THAT(r.out, ContainsSubstring("two    fp32  failed ") && ContainsSubstring("two failed: step ") &&
                        ContainsSubstring("2 steps in a row were not finite"));
  CHECK_THAT(r.out + r.err, !ContainsSubstring("-nan"));
  CHECK_THAT(testing::slurp(s.dir.path / "out" / "two" / "train.log"),
             ContainsSubstring("two failed: step "));
  const auto json = nlohmann::json::parse(testing::slurp(s.dir.path / "out" / "comparison.json"));
  REQUIRE(json["rows"].size() == 3);
  CHECK(json["rows"][0]["failures"].empty());
  CHECK(json["rows"][1]["failures"].size() == 1);
  CHECK(json["rows"][2]["train_loss"].is_number());
  CHECK(read_metrics(s.dir.path / "out" / "three" / "metrics.jsonl").size() == 6);
}

TEST_CASE(
    "a sweep that was interrupted goes on: finished runs stay, the unfinished one resumes, the rest runs") {
  const testing::SmallRun s;
  write_sweep(s, nlohmann::json::object());
  REQUIRE(testing::run_program(s.dir.path, {"sweep", "s.json", "--set", "output.dir=whole"}).status == 0);
  write_sweep(s, {{"train.max_minutes", 1e-6}});  // stops after its first step
  const testing::ProgramResult stopped = testing::run_program(s.dir.path, {"sweep", "s.json", "--resume"});
  INFO(stopped.err);
  CHECK(stopped.status == 3);
  CHECK_THAT(stopped.err, ContainsSubstring("the sweep stops here; the same command goes on with it"));
  CHECK_FALSE(std::filesystem::exists(s.dir.path / "out" / "three"));
  CHECK_FALSE(std::filesystem::exists(s.dir.path / "out" / "comparison.md"));
  const std::string one = testing::slurp(s.dir.path / "out" / "one" / "metrics.jsonl");
  CHECK(read_metrics(s.dir.path / "out" / "two" / "metrics.jsonl").size() == 1);

  write_sweep(s, nlohmann::json::object());
  const testing::ProgramResult r = testing::run_program(s.dir.path, {"sweep", "s.json", "--resume"});
  INFO(r.err);
  CHECK(r.status == 0);
  CHECK(testing::slurp(s.dir.path / "out" / "one" / "metrics.jsonl") == one);  // its times, too
  for (const char* name : {"one", "two", "three"})
    CHECK(testing::training_bits(s.dir.path / "out" / name) ==
          testing::training_bits(s.dir.path / "whole" / name));
  CHECK(nlohmann::json::parse(testing::slurp(s.dir.path / "out" / "comparison.json"))["rows"].size() == 3);
}

TEST_CASE("a signal stops a sweep after a checkpoint of the run that it reached") {
  const testing::SmallRun s;
  write_sweep(s, {{"train.steps", 1000000}});
  const std::filesystem::path metrics = s.dir.path / "out" / "two" / "metrics.jsonl";
  const testing::ProgramResult r = testing::run_program(s.dir.path, {"sweep", "s.json"}, [&](pid_t child) {
    for (int i = 0; i < 3000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (std::filesystem::exists(metrics) && !read_metrics(metrics).empty()) break;
    }
    kill(child, SIGTERM);
  });
  INFO(r.err);
  CHECK(r.status == 143);
  CHECK(newest_checkpoint(s.dir.path / "out" / "two" / "checkpoints").has_value());
  CHECK_FALSE(std::filesystem::exists(s.dir.path / "out" / "three"));
}

TEST_CASE("modes that hold an empty mode are refused, and take no other option for their value") {
  const testing::SmallRun s;
  write_sweep(s, nlohmann::json::object());
  for (const char* modes : {",", "fp32,", "", "fp32,,bf16"}) {
    const testing::ProgramResult r =
        testing::run_program(s.dir.path, {"sweep", "s.json", std::string("--modes=") + modes, "--dry-run"});
    CHECK(r.status == 2);
    CHECK_THAT(r.err, ContainsSubstring("--modes: found "));
  }
  const testing::ProgramResult r =
      testing::run_program(s.dir.path, {"sweep", "s.json", "--modes", ",", "--repeats", "2"});
  CHECK(r.err ==
        "octavo: --modes: found \",\", with an empty mode; allowed: modes separated by commas, such as "
        "fp32,bf16\n");
}

TEST_CASE("a sweep whose data does not exist can be planned") {
  const testing::SmallRun s;
  write_sweep(s, {{"train.steps", nlohmann::json()}, {"train.epochs", 1}});
  const testing::ProgramResult r = testing::run_program(
      s.dir.path,
      {"sweep", "s.json", "--dry-run", "--set", "data.train=none.txt", "--set", "model.vocab=300"});
  INFO(r.err);
  CHECK(r.status == 0);
  CHECK_THAT(r.out, ContainsSubstring("none.txt does not exist: a vocabulary of 300 is assumed") &&
                        ContainsSubstring("3 runs, estimated time in all: not known"));
  CHECK_FALSE(std::filesystem::exists(s.dir.path / "out"));
}
