// What must not change a run's numbers, held to the bit; and the ways in which a run ends.
#include <algorithm>
#include <cmath>
#include <thread>

#include <nlohmann/json.hpp>

#include "catch.h"
#include "crc32.h"
#include "error.h"
#include "files.h"
#include "small_run.h"

using namespace octavo;
using namespace octavo::testing;

TEST_CASE("training learns, and the same run twice gives the same bits") {
  for (const char* mode : {"fp32", "bf16", "fp8"}) {
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
  for (const char* mode : {"fp32", "bf16", "fp8"}) {
    const SmallRun s;
    nlohmann::json config = s.json(mode);
    config["model"]["dropout"] = 0.1;
    const auto whole = s.train(config, "whole");
    config["train"]["steps"] = 10;
    s.train(config, "halves");
    config["train"]["steps"] = 20;
    const auto halves = s.train(config, "halves", FolderUse::resume);
    CHECK(training_bits(whole) == training_bits(halves));
    const nlohmann::json run = nlohmann::json::parse(slurp(halves / "run.json"));
    CHECK(run["sessions"] == 2);
    CHECK(run["resumed_from"] == 10);
    CHECK(run["bit_equality_ends"].empty());
  }
}

TEST_CASE("a run that goes on with other arithmetic says from which step on bits may differ") {
  const SmallRun s;
  const auto run = s.train(s.json("fp32"), "run");
  std::filesystem::remove_all(run / "checkpoints/step_00000020");
  const std::filesystem::path file = run / "checkpoints/step_00000010/state.json";
  nlohmann::ordered_json state = nlohmann::ordered_json::parse(slurp(file));
  const std::string now = state["arithmetic"].get<std::string>(), was = "kernels for a slide rule";
  CHECK(state["sessions"] == 1);
  state["arithmetic"] = was;
  state["seconds"] = 7200;
  state["peak_memory_gib"] = 1000.5;
  state.erase("format_version");
  state.erase("crc32");
  state["crc32"] = crc32_hex(state.dump());
  write_json_atomically(file, state);

  for (int session = 2; session <= 3; ++session) {
    nlohmann::json config = s.json("fp32");
    config["train"]["steps"] = 8 + 2 * session;
    s.train(config, "run", FolderUse::resume);
    const nlohmann::json described = nlohmann::json::parse(slurp(run / "run.json"));
    CHECK(described["sessions"] == session);
    CHECK(described["arithmetic"] == now);
    CHECK(described["bit_equality_ends"] ==
          nlohmann::json::array({{{"step", 10}, {"was", was}, {"now", now}}}));
  }
  const std::string log = slurp(run / "train.log"),
                    said = "resumed run: bit-equality ends at step 10: " + was + " until then, " + now +
                           " after it";
  CHECK(log.find(said) != std::string::npos);
  CHECK(log.find(said) == log.rfind(said));  // the third session computes as the second did
  CHECK_THAT(slurp(run / "receipt.md"), ContainsSubstring("| peak memory | 1000.50 GiB over 3 sessions |") &&
                                            ContainsSubstring("| wall time | 2 h 00 min over 3 sessions |") &&
                                            ContainsSubstring("| bit-equality | ends at step 10: "));
}

TEST_CASE("resolved.json holds what was chosen, and fed back it gives the same run") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["optimizer"] = {{"lr", 1e-2}};
  config["train"] = {
      {"epochs", 0.05}, {"tokens_per_step", 222}, {"checkpoint_every", 4}, {"eval_tokens", 500}};
  const auto first = s.train(config, "first");
  nlohmann::json resolved = nlohmann::json::parse(slurp(first / "resolved.json"));
  CHECK(resolved["train"]["steps"] == 8);
  CHECK(resolved["train"]["epochs"].is_null());
  CHECK(resolved["train"]["micro_batch"] == 6);
  CHECK(resolved["train"]["sequence"] == 37);
  CHECK(resolved["data"]["seed"] == 1);
  CHECK(resolved["threads"].get<int>() > 0);
  CHECK(resolved["optimizer"]["min_lr"] == 1e-3);
  CHECK(resolved["optimizer"]["warmup_steps"] == 1);
  CHECK(resolved["optimizer"]["decay_steps"] == 7);
  const auto is_chosen = [&](const char* path) {
    return std::count(resolved["chosen"].begin(), resolved["chosen"].end(), path) == 1;
  };
  CHECK(is_chosen("train.steps"));
  CHECK(is_chosen("optimizer.decay_steps"));
  CHECK_FALSE(is_chosen("optimizer.lr"));
  CHECK(training_bits(s.train(resolved, "again")) == training_bits(first));

  // Gone on with from the folder, or from the config that it was started with: no difference, the same bits.
  for (const char* way : {"folder", "config"}) {
    const auto run = s.train(config, way);
    std::filesystem::remove_all(run / "checkpoints/step_00000008");
    RunRequest request;
    config["output"]["dir"] = run.string();
    request.config = std::string(way) == "folder" ? read_config_to_go_on(run, {})
                                                  : parse_config(config.dump(), "small.json");
    request.use = FolderUse::resume;
    const PreparedRun prepared = prepare_run(std::move(request));
    CHECK(prepared.resume_notes.empty());
    CHECK(prepared.plan.model.B == 6);
    s.train(way == std::string("folder") ? nlohmann::json::parse(slurp(run / "resolved.json")) : config, way,
            FolderUse::resume);
    CHECK(training_bits(run) == training_bits(first));
  }
}

TEST_CASE(
    "a resume whose log is missing or junk says so and goes on; one without a whole checkpoint is refused") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 4;
  const auto run = s.train(config, "run");
  const auto resumed = [&](int steps) {
    config["train"]["steps"] = steps;
    s.train(config, "run", FolderUse::resume);
    return slurp(run / "train.log");
  };
  std::filesystem::remove(run / "metrics.jsonl");
  CHECK_THAT(resumed(5), ContainsSubstring("metrics.jsonl: is missing; the log begins after step 4"));
  s.dir.file("run/metrics.jsonl", "junk\n");
  CHECK_THAT(resumed(6),
             ContainsSubstring("metrics.jsonl: dropped 1 line that is no row, the first at line 1"));
  CHECK(read_metrics(run / "metrics.jsonl").size() == 1);

  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints"))
    std::filesystem::resize_file(entry.path() / "state.json", 10);
  const std::string log = slurp(run / "metrics.jsonl");
  CHECK_THROWS_WITH(resumed(7),
                    ContainsSubstring("cannot resume in ") && ContainsSubstring("is not complete"));
  CHECK(slurp(run / "metrics.jsonl") == log);
}

TEST_CASE("a run that is stopped after every single step and resumed has the bits of one that is not") {
  for (const char* mode : {"fp32", "bf16", "fp8"}) {
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
  for (const char* mode : {"fp32", "bf16", "fp8"}) {
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
  for (const char* mode : {"fp32", "bf16", "fp8"}) {
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
  config["model"].erase("layers");
  config["train"] = {{"micro_batch", 65536}, {"accumulate", 65536}};
  CHECK_THROWS_WITH(s.train(config, "fourth"),
                    ContainsSubstring("train.micro_batch: found 65536; with 65536"));
}
