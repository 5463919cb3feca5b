// What must not change a run's numbers, held to the bit; and the ways in which a run ends.
#include <cmath>
#include <thread>

#include "catch.h"
#include "error.h"
#include "small_run.h"

using namespace octavo;
using namespace octavo::testing;

TEST_CASE("training learns, and the same run twice gives the same bits") {
  for (const char* mode : {"fp32", "bf16"}) {
    const SmallRun s;
    const auto a = s.train(s.json(mode), "a"), b = s.train(s.json(mode), "b");
    CHECK(training_bits(a) == training_bits(b));
    const std::vector<StepRecord> rows = read_metrics(a / "metrics.jsonl");
    REQUIRE(rows.size() == 20);
    CHECK(rows.front().loss == Approx(std::log(257.0)).epsilon(0.02));
    CHECK(rows.back().loss < 3.2);
    CHECK(rows[4].val_loss.has_value());
    CHECK_FALSE(rows[5].val_loss.has_value());
    CHECK(rows.back().tokens == 20 * 6 * 37);
  }
}

TEST_CASE("20 steps equal 10 steps and a resume") {
  for (const char* mode : {"fp32", "bf16"}) {
    const SmallRun s;
    nlohmann::json config = s.json(mode);
    config["model"]["dropout"] = 0.1;
    const auto whole = s.train(config, "whole");
    config["train"]["steps"] = 10;
    s.train(config, "halves");
    config["train"]["steps"] = 20;
    const auto halves = s.train(config, "halves", FolderUse::resume);
    CHECK(training_bits(whole) == training_bits(halves));
  }
}

TEST_CASE("a run that is stopped after every single step and resumed has the bits of one that is not") {
  for (const char* mode : {"fp32", "bf16"}) {
    const SmallRun s;
    nlohmann::json config = s.json(mode);
    config["model"]["dropout"] = 0.1;
    config["train"]["steps"] = 9;
    config["train"]["checkpoint_every"] = 4;
    const auto whole = s.train(config, "whole");
    config["train"]["max_minutes"] = 1e-6;  // each start makes one step
    for (int start = 1; start <= 9; ++start) {
      s.train(config, "parts", FolderUse::resume);
      REQUIRE(newest_checkpoint(s.dir.path / "parts" / "checkpoints")->state.step == start);
    }
    CHECK(training_bits(s.dir.path / "parts") == training_bits(whole));
  }
}

TEST_CASE("recompute changes no bit") {
  for (const char* mode : {"fp32", "bf16"}) {
    const SmallRun s;
    nlohmann::json config = s.json(mode);
    config["model"]["dropout"] = 0.2;
    const std::string none = training_bits(s.train(config, "none"));
    for (const char* recompute : {"activation", "block"}) {
      config["train"]["recompute"] = recompute;
      CHECK(training_bits(s.train(config, recompute)) == none);
    }
  }
}

TEST_CASE("evaluation changes no bit") {
  const SmallRun s;
  nlohmann::json config = s.json("bf16");
  config["model"]["dropout"] = 0.2;
  const std::string with = training_bits(s.train(config, "with"));
  config["train"]["eval_every"] = 0;
  config["data"]["val_fraction"] = 0.1;
  CHECK(training_bits(s.train(config, "without")) == with);
}

TEST_CASE("the thread count changes no bit in fp32 nor in bf16") {
  for (const char* mode : {"fp32", "bf16"}) {
    const SmallRun s;
    nlohmann::json config = s.json(mode);
    config["threads"] = 1;
    const std::string one = training_bits(s.train(config, "one"));
    config["threads"] = 2;
    CHECK(training_bits(s.train(config, "two")) == one);
  }
}

TEST_CASE("splitting a step differently agrees within rounding") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  const auto a = read_metrics(s.train(config, "a") / "metrics.jsonl");
  config["train"]["micro_batch"] = 1;
  config["train"]["accumulate"] = 6;
  const auto b = read_metrics(s.train(config, "b") / "metrics.jsonl");
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i].loss == Approx(b[i].loss).epsilon(1e-5));
}

TEST_CASE("steps that are not finite are skipped, told, and end the run after max_bad_steps") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  // Weight decay of this size multiplies every weight by -1e6 a step, until they overflow.
  config["optimizer"]["lr"] = 1000;
  config["optimizer"]["weight_decay"] = 1000;
  config["train"]["max_bad_steps"] = 3;
  CHECK_THROWS_WITH(s.train(config, "run"), ContainsSubstring("3 steps in a row were not finite"));
  const std::vector<StepRecord> rows = read_metrics(s.dir.path / "run" / "metrics.jsonl");
  REQUIRE(rows.size() > 3);
  CHECK(rows.back().skipped == 3);
  CHECK_FALSE(rows.back().finite);
  CHECK(rows.back().updates == rows.back().step - 3);
  CHECK(slurp(s.dir.path / "run" / "train.log").find("update skipped (3 in a row)") != std::string::npos);
}

TEST_CASE("max_minutes: the run ends within it, checkpoint and evaluation included") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 1000;
  config["train"]["max_minutes"] = 0.5;
  double clock = 1000;  // each look at it takes a quarter of a second
  const auto run = s.train(config, "run", FolderUse::fresh, [&] { return clock += 0.25; });
  CHECK(clock <= 1000 + 30);
  CHECK(clock > 1000 + 20);
  const std::int64_t step = newest_checkpoint(run / "checkpoints")->state.step;
  CHECK(step > 10);
  CHECK(step < 40);
  CHECK(
      slurp(run / "receipt.md").find(fmt::format("stopped by max_minutes after step {}, resumable", step)) !=
      std::string::npos);
}

TEST_CASE("what the operators hold beside the model is measured after the first step") {
  const SmallRun s;
  const auto run = s.train(s.json("bf16"), "run");
  const nlohmann::json memory = nlohmann::json::parse(slurp(run / "run.json"))["memory"];
  CHECK(memory.back()["category"] == "operators' scratch, measured after the first step");
  CHECK(memory.back()["bytes"].get<std::size_t>() > 0);
}

TEST_CASE("a run leaves what design promises") {
  const SmallRun s;
  const auto run = s.train(s.json("bf16"), "run");
  for (const char* file :
       {"resolved.json", "run.json", "metrics.jsonl", "metrics.csv", "train.log", "receipt.md", "curves.gp",
        "checkpoints/step_00000020/model.safetensors", "checkpoints/step_00000020/config.json",
        "checkpoints/step_00000020/state.json", "checkpoints/step_00000020/optimizer_rank0000.safetensors",
        "checkpoints/step_00000020/tokenizer.json"})
    CHECK(std::filesystem::exists(run / file));
  nlohmann::json resolved = nlohmann::json::parse(slurp(run / "resolved.json"));
  CHECK(resolved["model"]["vocab"] == 257);
  CHECK(resolved["device"] == "cpu");
}

TEST_CASE("a resumed run may not change shape, data, sequence or seeds") {
  const SmallRun s;
  s.train(s.json("fp32"), "run");
  const auto refused = [&](const char* section, const char* key, const nlohmann::json& value,
                           const char* part) {
    nlohmann::json config = s.json("fp32");
    config[section][key] = value;
    config["train"]["steps"] = 25;
    CHECK_THROWS_WITH(s.train(config, "run", FolderUse::resume), ContainsSubstring(part));
  };
  refused("model", "layers", 3, "model.layers: found 3");
  refused("train", "seed", 2, "seed");
  refused("train", "sequence", 32, "sequence");
  refused("data", "val_fraction", 0.2, "data");
}

TEST_CASE("keep_best keeps the checkpoint with the smallest validation loss") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["train"]["keep_best"] = true;
  config["train"]["keep_checkpoints"] = 1;
  const auto run = s.train(config, "run");
  double smallest = 1e9;
  for (const StepRecord& r : read_metrics(run / "metrics.jsonl"))
    if (r.val_loss) smallest = std::min(smallest, *r.val_loss);
  const auto best = best_checkpoint(run / "checkpoints");
  REQUIRE(best.has_value());
  CHECK(best->state.val_loss.value() == smallest);
  CHECK(list_checkpoints(run / "checkpoints").size() <= 2);
}

TEST_CASE("resume without a checkpoint starts afresh; a used folder is refused") {
  const SmallRun s;
  s.train(s.json("fp32"), "run", FolderUse::resume);
  CHECK_THROWS_AS(s.train(s.json("fp32"), "run"), RequestError);
  s.train(s.json("fp32"), "run", FolderUse::overwrite);
}

TEST_CASE("init_from takes a run's weights and shape") {
  const SmallRun s;
  const auto first = s.train(s.json("fp32"), "first");
  nlohmann::json config = s.json("fp32");
  config["model"] = {{"init_from", first.string()}};
  config["train"]["steps"] = 3;
  const auto second = s.train(config, "second");
  CHECK(read_metrics(second / "metrics.jsonl").front().loss < 3.5);
  // A shape written beside init_from that is not that model's is not passed over in silence.
  config["model"]["layers"] = 3;
  CHECK_THROWS_WITH(s.train(config, "third"), ContainsSubstring("model.layers: found 3"));
}
