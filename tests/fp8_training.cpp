// Whole runs in FP8: what must not change a scale or a bit, what calibration, skipped steps and changes of
// the recipe do, and that a run broken on purpose is seen.
#include <cmath>
#include <map>

#include "catch.h"
#include "error.h"
#include "precision/fp8_file.h"
#include "refusal.h"
#include "small_run.h"

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

TEST_CASE("at the first step FP8 scales do not depend on how the same micro-batches are accumulated") {
  // Three sequences a micro-batch; twice the sequences in one or in two steps' worth of accumulation give the
  // same fold when the sequences are the same.
  const SmallRun s;
  nlohmann::json config = fp8_config(s);
  config["train"].erase("eval_every");
  config["train"]["steps"] = 1;
  config["optimizer"] = {{"lr", 1e-2}};
  config["train"]["micro_batch"] = 6;
  config["train"]["accumulate"] = 1;
  const auto one = s.train(config, "one");
  config["train"]["micro_batch"] = 1;
  config["train"]["accumulate"] = 6;
  const auto six = s.train(config, "six");
  // Forward values of a sequence do not depend on its micro-batch, so their amaxes agree to the bit;
  // gradients do as well, since the normaliser is the step's.
  CHECK(scale_bits(one) == scale_bits(six));
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

TEST_CASE("a skipped step leaves scales and histories as they are") {
  const SmallRun s;
  nlohmann::json config = fp8_config(s);
  config["train"]["steps"] = 6;
  const auto good = s.train(config, "run");
  const SavedFp8 before = scales_of(good);
  // From here on every step overflows: a rate that is harmless to a step that is skipped.
  config["train"]["steps"] = 8;
  config["optimizer"]["lr"] = 1e30;
  config["train"]["max_bad_steps"] = 5;
  config["train"]["checkpoint_every"] = 1;
  config["train"]["keep_checkpoints"] = 10;
  try {
    s.train(config, "run", FolderUse::resume);
  } catch (const RunError&) {
  }
  const std::vector<StepRecord> rows = read_metrics(good / "metrics.jsonl");
  // Step 7 updates to absurd weights, step 8 finds them not finite.
  REQUIRE(rows.size() == 8);
  REQUIRE_FALSE(rows[7].finite);
  const auto at = [&](const char* step) { return read_fp8_file(good / "checkpoints" / step / kFp8File); };
  const SavedFp8 seven = at("step_00000007"), eight = at("step_00000008");
  for (std::size_t i = 0; i < seven.slots.size(); ++i) {
    CHECK(seven.slots[i].scale == eight.slots[i].scale);
    CHECK(std::vector<float>(seven.slots[i].history.begin() + 1, seven.slots[i].history.end()) ==
          std::vector<float>(eight.slots[i].history.begin() + 1, eight.slots[i].history.end()));
    CHECK(eight.slots[i].history[0] == 0);
  }
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
