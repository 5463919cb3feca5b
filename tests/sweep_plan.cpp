// What a sweep does with what its folder holds already, and with runs that this machine cannot do.
#include "sweep_plan.h"

#include <algorithm>

#include "catch.h"
#include "environment.h"
#include "error.h"
#include "small_run.h"

using namespace octavo;
using namespace octavo::testing;
namespace fs = std::filesystem;

namespace {

/// A small config of `steps` steps, base.json, whose products can run in FP8.
void write_base(const SmallRun& s, int steps, double lr = 1e-2) {
  nlohmann::json config = s.json("fp32");
  config["model"]["context"] = 32;
  config["train"] = {{"steps", steps},
                     {"tokens_per_step", 192},
                     {"eval_every", 0},
                     {"eval_tokens", 300},
                     {"checkpoint_every", 0}};
  config["optimizer"]["lr"] = lr;
  config.erase("output");
  s.dir.file("base.json", config.dump());
}

ProgramResult sweep(const SmallRun& s, std::vector<std::string> more,
                    const std::vector<std::pair<std::string, std::string>>& environment = {}) {
  more.insert(more.begin(), {"sweep", "base.json"});
  return run_program(s.dir.path, more, {}, environment);
}

nlohmann::json rows_of(const SmallRun& s) {
  return nlohmann::json::parse(slurp(s.dir.path / "runs/base_sweep/comparison.json"))["rows"];
}

}  // namespace

TEST_CASE("a sweep started again keeps what is finished, also when seeds are added") {
  const SmallRun s;
  write_base(s, 4);
  const fs::path out = s.dir.path / "runs/base_sweep";
  REQUIRE(sweep(s, {"--modes", "fp32,bf16"}).status == 0);
  CHECK(rows_of(s)[1]["verdict"] == "not resolved");
  const std::string fp32 = slurp(out / "fp32/metrics.jsonl");  // holds times: a second run would differ
  const auto written = fs::last_write_time(out / "fp32/receipt.md");
  fs::remove_all(out / "bf16/checkpoints");  // to save disk: the run is no less finished
  const std::string bf16 = slurp(out / "bf16/metrics.jsonl");

  const ProgramResult more = sweep(s, {"--modes", "fp32,bf16", "--repeats", "3"});
  INFO(more.err);
  REQUIRE(more.status == 0);
  CHECK_THAT(more.err,
             ContainsSubstring("run 1 of 6: fp32: finished, kept\nrun 2 of 6: bf16: finished, kept\n"
                               "run 3 of 6: fp32_2\n"));
  CHECK(slurp(out / "fp32/metrics.jsonl") == fp32);
  CHECK(slurp(out / "bf16/metrics.jsonl") == bf16);
  CHECK(fs::last_write_time(out / "fp32/receipt.md") == written);
  CHECK(rows_of(s)[1]["repeats"] == 3);
  CHECK(rows_of(s)[1]["verdict"].is_string());
  CHECK(rows_of(s)[0]["peak_memory_gib"].get<double>() > 0.001);
}

TEST_CASE("a folder with other runs than the sweep's is refused with the ways out, and --overwrite is one") {
  const SmallRun s;
  write_base(s, 4);
  const fs::path out = s.dir.path / "runs/base_sweep";
  REQUIRE(sweep(s, {"--modes", "fp32"}).status == 0);
  const std::string before = slurp(out / "fp32/metrics.jsonl");
  write_base(s, 4, 2e-2);
  for (const std::vector<std::string>& flags : {std::vector<std::string>{}, {"--resume"}}) {
    std::vector<std::string> arguments{"--modes", "fp32,bf16"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ProgramResult other = sweep(s, arguments);
    CHECK(other.status == 2);
    CHECK(
        other.err ==
        "octavo: runs/base_sweep/fp32 holds a run that is not this sweep's: optimizer.lr was 0.01, now 0.02, "
        "optimizer.min_lr was 0.001, now 0.002; allowed: the config that it had, --overwrite to do all runs "
        "of "
        "the sweep afresh, or another folder with --set output.dir=DIR\n");
    CHECK(slurp(out / "fp32/metrics.jsonl") == before);
    CHECK(fs::exists(out / "comparison.md"));
    CHECK_FALSE(fs::exists(out / "bf16"));
  }
  // More steps are another run, too; how often a checkpoint is written is not.
  write_base(s, 5);
  CHECK_THAT(sweep(s, {"--modes", "fp32"}).err, ContainsSubstring("train.steps was 4, now 5"));
  write_base(s, 4);
  CHECK(sweep(s, {"--modes", "fp32", "--set", "train.checkpoint_every=1"}).status == 0);
  CHECK(sweep(s, {"--modes", "fp32", "--set", "precision.fp8.margin=1"}).status == 0);  // it is no FP8 run
  CHECK(slurp(out / "fp32/metrics.jsonl") == before);
  REQUIRE(sweep(s, {"--modes", "fp32", "--overwrite"}).status == 0);
  CHECK(slurp(out / "fp32/metrics.jsonl") != before);
}

TEST_CASE("runs that are only unsupported are marked, and the status is 0") {
  const SmallRun s;
  write_base(s, 4);
  const ProgramResult dry =
      sweep(s, {"--modes", "fp32,fp8,tf32", "--dry-run"}, {{"OCTAVO_PRETEND_CAPABILITY", "8.0"}});
  CHECK(dry.status == 0);
  CHECK_THAT(dry.out,
             ContainsSubstring("run 2 of 3: fp8: unsupported: FP8 products need compute capability 8.9") &&
                 ContainsSubstring("3 runs, disk for checkpoints in all: up to ") &&
                 ContainsSubstring("3 runs, estimated time in all: "));
  CHECK_FALSE(fs::exists(s.dir.path / "runs"));
  const ProgramResult r = sweep(s, {"--modes", "fp32,fp8,tf32"}, {{"OCTAVO_PRETEND_CAPABILITY", "8.0"}});
  INFO(r.err);
  CHECK(r.status == 0);
  CHECK_THAT(r.out,
             ContainsSubstring("\nfp8   unsupported ") &&
                 ContainsSubstring("fp8 unsupported: FP8 products need compute capability 8.9, this device "
                                   "has 8.0\n") &&
                 ContainsSubstring("tf32 unsupported: "));
  CHECK(rows_of(s)[1]["status"] == "unsupported");
  CHECK(rows_of(s)[0]["status"] == "finished");
  CHECK_FALSE(fs::exists(s.dir.path / "runs/base_sweep/fp8"));
  // Where nothing at all can run there is nothing to compare.
  const ProgramResult none =
      sweep(s, {"--modes", "tf32,fp8", "--set", "output.dir=none"}, {{"OCTAVO_PRETEND_CAPABILITY", "8.0"}});
  CHECK(none.status == 2);
  CHECK_THAT(none.err, ContainsSubstring("octavo: sweep: found no run that this machine can do; tf32: "));
  CHECK_FALSE(fs::exists(s.dir.path / "none"));
}

TEST_CASE("a wrong request is none that is unsupported: the sweep is refused before its first run") {
  const SmallRun s;
  write_base(s, 4);
  s.dir.file("s.json", R"({ "base": "base.json", "runs": [ { "name": "a" },
    { "name": "b", "set": { "model.heads": 5 } } ] })");
  const ProgramResult r = run_program(s.dir.path, {"sweep", "s.json"});
  CHECK(r.status == 2);
  CHECK_THAT(r.err, ContainsSubstring("model.heads"));
  CHECK_FALSE(fs::exists(s.dir.path / "runs"));
}

TEST_CASE("all runs split a step alike, as those that have begun do") {
  const SmallRun s;
  write_base(s, 4);
  s.dir.file("s.json",
             fmt::format(R"({{ "base": "base.json", "output": {{ "dir": "{}" }}, "runs": [ {{ "name": "a" }},
    {{ "name": "b", "set": {{ "train.tokens_per_step": 128 }} }},
    {{ "name": "c", "set": {{ "train.micro_batch": 3 }} }} ] }})",
                         (s.dir.path / "out").string()));
  const auto micro_batches = [&](bool overwrite) {
    std::vector<std::int64_t> sizes;
    for (const PlannedRun& p :
         plan_sweep(load_sweep((s.dir.path / "s.json").string(), {}), overwrite, false, ""))
      sizes.push_back(p.request.config.train.micro_batch);
    return sizes;
  };
  CHECK(micro_batches(false) == std::vector<std::int64_t>{2, 2, 3});  // 6 and 4 sequences a step
  nlohmann::json begun = nlohmann::json::parse(slurp(s.dir.path / "base.json"));
  begun["name"] = "a";
  begun["train"]["micro_batch"] = 1;
  s.train(begun, "out/a");
  const auto planned = plan_sweep(load_sweep((s.dir.path / "s.json").string(), {}), false, false, "");
  CHECK(planned[0].state == RunState::finished);
  CHECK(planned[1].state == RunState::fresh);
  CHECK(micro_batches(false)[1] == 1);
  CHECK(micro_batches(true) == std::vector<std::int64_t>{2, 2, 3});
}
