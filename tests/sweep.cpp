// Sweep files: which runs they mean, and every way in which they can be wrong.
#include "sweep.h"

#include <algorithm>

#include "catch.h"
#include "error.h"
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
  REQUIRE(s.runs.size() == 2);
  CHECK(f.config(s, 0).precision.mode == "fp32");
  CHECK(f.config(s, 1).precision.mode == "bf16");
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
}
