// fp8_file.cpp - the scale state on the disk: what is written is read back to the bit, and damage is refused.
#include "precision/fp8_file.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "catch.h"
#include "refusal.h"
#include "safetensors.h"
#include "temp_dir.h"

using namespace octavo;
using testing::refusal;

namespace {

SavedFp8 some_state() {
  SavedFp8 s;
  s.recipe = {.scaling = Fp8Scaling::delayed,
              .hybrid = false,
              .history = 3,
              .algorithm = Fp8AmaxAlgorithm::most_recent,
              .margin = -2};
  s.slots = {{.name = "layer0.qkv.input", .scale = 224.5f, .scaled_max = 1792, .history = {0.5f, 0, 2}},
             {.name = "layer0.qkv.weight",
              .scale = std::numeric_limits<float>::max(),
              .scaled_max = 1792,
              .history = {0, std::numeric_limits<float>::infinity(), std::nanf("")}}};
  return s;
}

}  // namespace

TEST_CASE("the scale state reads back to the bit, recipe, inf and NaN included", "[fp8]") {
  const testing::TempDir dir;
  const SavedFp8 state = some_state();
  const std::filesystem::path file = dir.path / kFp8File;
  write_fp8_file(file, state);
  CHECK(std::filesystem::file_size(file) == fp8_file_size(state));
  const SavedFp8 read = read_fp8_file(file);
  CHECK(read.recipe.scaling == Fp8Scaling::delayed);
  CHECK_FALSE(read.recipe.hybrid);
  CHECK(read.recipe.history == 3);
  CHECK(read.recipe.algorithm == Fp8AmaxAlgorithm::most_recent);
  CHECK(read.recipe.margin == -2);
  REQUIRE(read.slots.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(read.slots[i].name == state.slots[i].name);
    CHECK(read.slots[i].scale == state.slots[i].scale);
    CHECK(read.slots[i].scaled_max == state.slots[i].scaled_max);
    CHECK(std::memcmp(read.slots[i].history.data(), state.slots[i].history.data(), 3 * sizeof(float)) == 0);
  }
  CHECK(find_fp8_state(dir.path).has_value());
  CHECK_FALSE(find_fp8_state(dir.path / "elsewhere").has_value());
}

TEST_CASE("the size of a plan's scale state is known before it is written", "[fp8]") {
  Fp8Plan plan;
  plan.recipe.history = 16;
  plan.layers.assign(2, {});
  plan.layers[1].fill({.fprop = true, .dgrad = true, .wgrad = true});
  SavedFp8 state{.recipe = plan.recipe, .slots = {}};
  for (const Fp8SlotInfo& info : fp8_slots(plan, true))
    state.slots.push_back(
        {.name = info.name, .scale = 2, .scaled_max = 448, .history = std::vector<float>(16, 1.0f)});
  CHECK(state.slots.size() == 12);
  CHECK(fp8_file_size(plan) == fp8_file_size(state));
  plan.recipe.scaling = Fp8Scaling::current;
  CHECK(fp8_file_size(plan) == 0);
  CHECK(fp8_file_size(Fp8Plan{}) == 0);
}

TEST_CASE("a scale state that is damaged is refused by file and tensor", "[fp8]") {
  const testing::TempDir dir;
  const std::filesystem::path file = dir.path / kFp8File;
  const auto refused = [&](const SavedFp8& state) {
    write_fp8_file(file, state);
    return refusal([&] { read_fp8_file(file); });
  };
  SavedFp8 bad = some_state();
  bad.slots[0].scale = std::nanf("");
  CHECK_THAT(refused(bad), ContainsSubstring("layer0.qkv.input.scale: found nan") &&
                               ContainsSubstring("finite scales above 0"));
  bad = some_state();
  bad.slots[1].scaled_max = 0;
  CHECK_THAT(refused(bad), ContainsSubstring("layer0.qkv.weight.scale") && ContainsSubstring("made for 0"));
  bad = some_state();
  bad.slots[0].history[1] = -1;
  CHECK_THAT(refused(bad), ContainsSubstring("layer0.qkv.input.history: found -1"));

  const auto written = [&](const std::vector<TensorSpec>& specs,
                           const std::map<std::string, std::string>& metadata) {
    SafetensorsWriter writer(file, specs, metadata);
    for (const TensorSpec& spec : specs) {
      const std::vector<float> ones(static_cast<std::size_t>(spec.shape[0]), 1.0f);
      writer.write(ones.data(), ones.size() * sizeof(float));
    }
    writer.finish();
    return refusal([&] { read_fp8_file(file); });
  };
  const std::map<std::string, std::string> metadata{{"format_version", "1"},      {"recipe", "delayed"},
                                                    {"format", "hybrid"},         {"amax_history_len", "4"},
                                                    {"amax_compute_algo", "max"}, {"margin", "0"}};
  CHECK_THAT(written({{"a.scale", "F32", {1}}, {"a.scaled_max", "F32", {1}}}, metadata),
             ContainsSubstring("a.history: found nothing; allowed: an F32 tensor of rank 1"));
  CHECK_THAT(written({}, {}), ContainsSubstring("metadata lack format_version"));
  auto other = metadata;
  other["format_version"] = "2";
  CHECK_THAT(written({}, other), ContainsSubstring("format_version: found 2; allowed: 1"));
  other = metadata;
  other["margin"] = "much";
  CHECK_THAT(written({}, other), ContainsSubstring("margin: found \"much\"; allowed: an integer"));
  other["margin"] = "-";
  CHECK_THAT(written({}, other), ContainsSubstring("margin: found \"-\""));
}

TEST_CASE("what a resume under another recipe converts is said, line by line", "[fp8]") {
  Fp8Recipe saved, now;
  CHECK(fp8_conversions(saved, now).empty());
  now.history = 16;
  CHECK(fp8_conversions(saved, now) ==
        std::vector<std::string>{"fp8: histories of 1024 amaxes keep their newest 16"});
  CHECK(fp8_conversions(now, saved) == std::vector<std::string>{"fp8: histories of 16 amaxes grow to 1024"});
  now = saved;
  now.hybrid = false;
  now.algorithm = Fp8AmaxAlgorithm::most_recent;
  CHECK(fp8_conversions(saved, now).size() == 2);
  now.scaling = Fp8Scaling::current;
  CHECK(fp8_conversions(saved, now).empty());
}
