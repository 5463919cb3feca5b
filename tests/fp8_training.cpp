// Whole runs in FP8: what must not change a scale or a bit, what calibration, skipped steps and changes of
// the recipe do, and that a run broken on purpose is seen.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>

#include "backends.h"
#include "catch.h"
#include "data/window_order.h"
#include "error.h"
#include "precision/fp8_file.h"
#include "refusal.h"
#include "small_run.h"
#include "tiny_model.h"
#include "trainer.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

nlohmann::json fp8_config(const SmallRun& s) {
  nlohmann::json config = s.json("fp8");
  config["precision"]["fp8"] = {{"amax_history_len", 8}};
  return config;
}

SavedFp8 scales_of(const std::filesystem::path& run) {
  return read_fp8_file(newest_checkpoint(run / "checkpoints").value().folder / kFp8File);
}

/// Scales and histories of a run's end, as bytes; without the amaxes still to be taken in.
std::string scale_bits(const std::filesystem::path& run) {
  std::string bits;
  for (const Fp8SlotState& s : scales_of(run).slots) {
    bits += s.name;
    bits.append(reinterpret_cast<const char*>(&s.scale), sizeof s.scale);
    bits.append(reinterpret_cast<const char*>(s.history.data() + 1), (s.history.size() - 1) * sizeof(float));
  }
  return bits;
}

}  // namespace

TEST_CASE(
    "every linear layer of a block has slots for input, weight and gradient, with scales of their own") {
  const SmallRun s;
  const SavedFp8 saved = scales_of(s.train(fp8_config(s), "run"));
  CHECK(saved.slots.size() == 2 * 4 * 3);
  std::map<float, int> scales;
  for (const Fp8SlotState& slot : saved.slots) {
    CHECK(slot.history.size() == 8);
    CHECK(slot.history.back() > 0);
    CHECK(slot.scale > 0);
    ++scales[slot.scale];
  }
  CHECK(scales.size() > 20);
}

TEST_CASE("FP8 scales do not depend on recompute, evaluation nor threads") {
  const SmallRun s;
  nlohmann::json config = fp8_config(s);
  config["model"]["dropout"] = 0.1;
  const auto plain = s.train(config, "plain");
  for (const char* recompute : {"activation", "block"}) {
    nlohmann::json other = config;
    other["train"]["recompute"] = recompute;
    const auto run = s.train(other, recompute);
    CHECK(scale_bits(run) == scale_bits(plain));
    CHECK(training_bits(run) == training_bits(plain));
  }
  config["train"]["eval_every"] = 1;
  CHECK(scale_bits(s.train(config, "evaluated")) == scale_bits(plain));
  config["threads"] = 1;
  CHECK(scale_bits(s.train(config, "one thread")) == scale_bits(plain));
}

TEST_CASE("the same micro-batches in any order or grouping give the same scales to the bit") {
  Backend& backend = *GENERATE(from_range(backends()));
  const Dataset data = tiny_dataset();
  const RunPlan plan = make_run_plan(
      tiny_config({{"precision.mode", "fp8"}, {"precision.fp8.amax_history_len", "4"}}), data, backend, {});
  const WindowOrder order(data.train.size(), plan.model.T, 1);
  const std::int64_t B = plan.model.B;
  // Folds of the amaxes of some micro-batches, from the same weights and scales; several models are several
  // ranks.
  const auto folded = [&](const std::vector<std::int64_t>& micros) {
    Trainer trainer(backend, plan, data);
    trainer.initialise();
    Model& model = trainer.model();
    StepState state;
    state.step = 1, state.grad_scale = 1.0f / 64;
    backend.copy_to_device(model.state(), &state, sizeof state);
    for (const std::int64_t micro : micros) {
      std::vector<std::int64_t> samples;
      for (std::int64_t i = 0; i < B; ++i) samples.push_back(micro * B + i);
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(B * plan.model.T)), targets(tokens.size());
      fill_batch(data.train, order, samples, tokens.data(), targets.data());
      const Batch& batch = model.batch();
      backend.copy_to_device(batch.tokens.data, tokens.data(), batch.tokens.bytes());
      backend.copy_to_device(batch.targets.data, targets.data(), batch.targets.bytes());
      backend.copy_to_device(batch.samples.data, samples.data(), batch.samples.bytes());
      model.forward(batch, Model::Pass::train);
      model.backward(batch, false);
    }
    std::vector<float> amaxes;
    for (const Fp8SlotState& s : model.fp8().save()) amaxes.push_back(s.history[0]);
    backend.run(model.fp8().update(model.state()));
    std::vector<float> scales;
    for (const Fp8SlotState& s : model.fp8().save()) scales.push_back(s.scale);
    return std::pair(amaxes, scales);
  };
  const auto [amaxes, scales] = folded({0, 1, 2, 3, 4});
  CHECK(folded({4, 2, 0, 3, 1}) == std::pair(amaxes, scales));
  std::vector<float> largest(amaxes.size(), 0.0f);
  for (const std::vector<std::int64_t>& rank : {std::vector<std::int64_t>{1, 4}, {0}, {3, 2}})
    for (std::size_t i = 0; const float amax : folded(rank).first)
      largest[i] = std::max(largest[i], amax), ++i;
  CHECK(largest == amaxes);
}

TEST_CASE("20 steps in FP8 equal 10 steps and a resume, calibration, scales and histories included") {
  for (const char* recipe : {"delayed", "current"}) {
    const SmallRun s;
    nlohmann::json config = fp8_config(s);
    config["precision"]["fp8"]["recipe"] = recipe;
    config["model"]["dropout"] = 0.1;
    const auto whole = s.train(config, "whole");
    config["train"]["steps"] = 10;
    s.train(config, "halves");
    config["train"]["steps"] = 20;
    const auto halves = s.train(config, "halves", FolderUse::resume);
    CHECK(training_bits(whole) == training_bits(halves));
  }
}

TEST_CASE("calibration gives the first step the scales of its own batch; without it they start at 1") {
  const SmallRun s;
  nlohmann::json config = fp8_config(s);
  config["train"]["steps"] = 1;
  config["optimizer"] = {{"lr", 1e-2}};
  const auto saved = [&](bool calibrate) {
    config["precision"]["fp8"]["calibrate"] = calibrate;
    return scales_of(s.train(config, calibrate ? "calibrated" : "plain"));
  };
  const SavedFp8 calibrated = saved(true), plain = saved(false);
  for (std::size_t i = 0; i < plain.slots.size(); ++i) {
    // One amax each from step 1; calibration put another before it.
    const std::vector<float>&a = plain.slots[i].history, &b = calibrated.slots[i].history;
    CHECK(a[a.size() - 1] > 0);
    CHECK(a[a.size() - 2] == 0);
    CHECK(b[b.size() - 2] > 0);
  }
  // With scale 1 most gradients of this model lie below the smallest E5M2; calibrated ones do not.
  const auto underflow = [&](const char* run) {
    return read_metrics(s.dir.path / run / "metrics.jsonl").front().fp8.value().underflowed;
  };
  CHECK(underflow("plain") > 10 * underflow("calibrated"));
}

TEST_CASE("FP8 resumes from BF16 and BF16 from FP8; the scales of a run that has none are calibrated") {
  const SmallRun s;
  nlohmann::json config = s.json("bf16");
  config["train"]["steps"] = 10;
  s.train(config, "run");
  nlohmann::json other = fp8_config(s);
  other["train"]["steps"] = 15;
  const auto run = s.train(other, "run", FolderUse::resume);
  for (const Fp8SlotState& slot : scales_of(run).slots) {
    // five updates and the calibration
    CHECK(slot.history[1] == 0);
    CHECK(slot.history[2] > 0);
  }
  config["train"]["steps"] = 20;
  const std::vector<StepRecord> rows =
      read_metrics(s.train(config, "run", FolderUse::resume) / "metrics.jsonl");
  REQUIRE(rows.size() == 20);
  CHECK(rows.back().loss < rows[9].loss);
  CHECK(rows[12].fp8.has_value());
  CHECK_FALSE(rows.back().fp8.has_value());
}

TEST_CASE("a resume with another history keeps the newest amaxes, with another format converts the scales") {
  const SmallRun s;
  nlohmann::json config = fp8_config(s);
  config["train"]["steps"] = 10;
  const auto before = scales_of(s.train(config, "run"));
  config["train"]["steps"] = 11;
  config["precision"]["fp8"]["amax_history_len"] = 4;
  config["precision"]["fp8"]["margin"] = 1;
  const auto after = scales_of(s.train(config, "run", FolderUse::resume));
  REQUIRE(after.slots.size() == before.slots.size());
  for (std::size_t i = 0; i < after.slots.size(); ++i) {
    const std::vector<float>&old = before.slots[i].history, &now = after.slots[i].history;
    REQUIRE(now.size() == 4);
    // One update later the newest two of before stand one place further back.
    CHECK(now[1] == old[6]);
    CHECK(now[2] == old[7]);
    CHECK(after.slots[i].scaled_max == before.slots[i].scaled_max / 2);
  }
}

TEST_CASE("a skipped step leaves scales and histories as they are, and clears the amaxes") {
  Backend& backend = *GENERATE(from_range(backends()));
  const Dataset data = tiny_dataset();
  const RunPlan plan = make_run_plan(
      tiny_config({{"precision.mode", "fp8"}, {"precision.fp8.amax_history_len", "4"}}), data, backend, {});
  Trainer trainer(backend, plan, data);
  trainer.initialise();
  for (int i = 0; i < 3; ++i) CHECK(trainer.train_step().finite);
  Model& model = trainer.model();
  const std::vector<Fp8SlotState> before = model.fp8().save();
  std::vector<float> masters(static_cast<std::size_t>(model.masters().numel()));
  backend.copy_to_host(masters.data(), model.masters().data, model.masters().bytes());
  const float good = masters[0];
  const auto poison = [&](float value) {
    backend.copy_to_device(model.masters().data, &value, sizeof value);
    model.refresh_working(/*record=*/false);
  };
  poison(std::numeric_limits<float>::infinity());
  const StepResult skipped = trainer.train_step();
  CHECK_FALSE(skipped.finite);
  const std::vector<Fp8SlotState> after = model.fp8().save();
  for (std::size_t i = 0; i < before.size(); ++i) {
    CHECK(after[i].scale == before[i].scale);
    CHECK(std::equal(after[i].history.begin() + 1, after[i].history.end(), before[i].history.begin() + 1));
    CHECK(after[i].history[0] == 0);
    CHECK_FALSE(skipped.fp8[i].frozen);
  }
  // No inf has come into a history: the next good step moves on as if nothing had been.
  poison(good);
  const StepResult next = trainer.train_step();
  CHECK(next.finite);
  for (const Fp8SlotHealth& h : next.fp8) CHECK_FALSE(h.frozen);
}

TEST_CASE("scales that are broken on purpose are seen: the shares say so, and a warning names the tensor") {
  const SmallRun s;
  nlohmann::json config = fp8_config(s);
  config["train"]["steps"] = 40;
  config["precision"]["fp8"]["log_tensors"] = true;
  const auto good = s.train(config, "good");
  config["precision"]["fp8"]["margin"] = -8;  // scales 256 times too large
  const auto bad = s.train(config, "bad");
  const auto health = [](const std::filesystem::path& run) {
    return read_metrics(run / "metrics.jsonl").back().fp8.value();
  };
  CHECK(health(bad).saturated > 0.3);
  CHECK(health(good).saturated < 0.02);
  config["precision"]["fp8"]["margin"] = 16;  // 65536 times too small: hardly anything is left
  const auto lost = s.train(config, "lost");
  CHECK(health(lost).underflowed > 10 * health(good).underflowed);
  const std::string log = slurp(bad / "train.log");
  const std::size_t said = log.find("lie beyond the format at its scale");
  REQUIRE(said != std::string::npos);
  CHECK(log.find("lie beyond", said + 20) == std::string::npos);  // once
  CHECK(log.rfind("of layer", said) != std::string::npos);

  // Every tensor of every step, and what a resume keeps of them.
  const auto rows = [&](const std::filesystem::path& run) {
    std::vector<nlohmann::json> out;
    std::istringstream lines(slurp(run / "fp8_tensors.jsonl"));
    for (std::string line; std::getline(lines, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  };
  REQUIRE(rows(good).size() == 40);
  CHECK(rows(good)[7]["tensors"].size() == 24);
  CHECK(rows(good)[7]["tensors"]["layer1.fc.gradient"]["scale"].get<double>() > 1);
  std::filesystem::remove_all(good / "checkpoints/step_00000040");
  config["precision"]["fp8"]["margin"] = 0;
  s.train(config, "good", FolderUse::resume);
  REQUIRE(rows(good).size() == 40);
  for (std::size_t i = 0; i < 40; ++i) CHECK(rows(good)[i]["step"] == i + 1);
}

TEST_CASE("skipped layers have no slots and run in bf16; skipping all is refused") {
  const SmallRun s;
  nlohmann::json config = fp8_config(s);
  config["precision"]["fp8"]["skip_first_layers"] = 1;
  for (const Fp8SlotState& slot : scales_of(s.train(config, "run")).slots)
    CHECK(slot.name.starts_with("layer1."));
  config["precision"]["fp8"]["skip_last_layers"] = 1;
  CHECK_THROWS_AS(s.train(config, "all"), RequestError);
}
