// fp8_monitor.cpp - shares, extremes and warnings, from made-up health.
#include "fp8_monitor.h"

#include <cmath>
#include <limits>

#include "backends.h"
#include "catch.h"
#include "files.h"
#include "temp_dir.h"
#include "tiny_model.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

/// The slots of one block of 16 channels: qkv 48x16, proj 16x16, fc 64x16, out 16x64.
struct Subject {
  Dataset data = tiny_dataset();
  RunPlan plan = make_run_plan(tiny_config({{"precision.mode", "fp8"}}), data, *backends().front(), {});
  Model model{*backends().front(), plan.model};

  Fp8Monitor monitor(const std::optional<std::filesystem::path>& file = {}, std::int64_t keep = 0) {
    return {model.fp8(), plan.model.shape, /*tokens=*/100, file, keep};
  }
  std::vector<Fp8SlotHealth> healthy() const {
    return std::vector<Fp8SlotHealth>(12, {.scale = 2, .amax = 4});
  }
};

}  // namespace

TEST_CASE("extremes are those of the tensors that were cast, shares are of all values", "[fp8]") {
  Subject s;
  const Fp8Monitor monitor = s.monitor();
  std::vector<Fp8SlotHealth> h = s.healthy();
  h[3].scale = 0.25f, h[4].scale = 1e6f;
  h[5].amax = 0;  // nothing was cast
  h[6].amax = 1e-3f, h[7].amax = 50;
  h[0].saturated = 7, h[11].saturated = 1, h[2].underflowed = 40;
  const Fp8Record r = monitor.record(h).value();
  CHECK(r.scale_min == 0.25);
  CHECK(r.scale_max == 1e6);
  CHECK(r.amax_min == static_cast<double>(1e-3f));
  CHECK(r.amax_max == 50);
  // Inputs: 100 tokens of 16, 16, 16 and 64 channels; gradients of 48, 16, 64 and 16; weights as above.
  const double all = 100 * (16 + 16 + 16 + 64) + 100 * (48 + 16 + 64 + 16) + 48 * 16 + 16 * 16 + 2 * 64 * 16;
  CHECK(r.saturated == Approx(8 / all));
  CHECK(r.underflowed == Approx(40 / all));
  h[8].amax = std::nanf("");
  CHECK(std::isnan(monitor.record(h)->amax_max));
  h[8].amax = std::numeric_limits<float>::infinity();
  CHECK(std::isinf(monitor.record(h)->amax_max));
  CHECK_FALSE(monitor.record({}).has_value());
}

TEST_CASE("a tensor that saturates and a scale that is stuck are named, each kind once", "[fp8]") {
  Subject s;
  Fp8Monitor monitor = s.monitor();
  std::vector<Fp8SlotHealth> h = s.healthy();
  h[0].saturated = 16;  // exactly 1 % of 1600
  CHECK(monitor.warnings(h).empty());
  h[0].saturated = 17, h[2].saturated = 480;
  std::vector<std::string> lines = monitor.warnings(h);
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0],
             ContainsSubstring("10.0 % of the values of layer0.qkv.gradient (and of 1 other tensor)"));
  CHECK(monitor.warnings(h).empty());
  h[5].frozen = h[9].frozen = h[10].frozen = true;
  lines = monitor.warnings(h);
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0],
             ContainsSubstring("the scale of layer0.proj.gradient (and of 2 other tensors) stays at 2"));
  CHECK(monitor.warnings(h).empty());
}

TEST_CASE("the file of tensors keeps the rows of the steps that a resume keeps", "[fp8]") {
  Subject s;
  const TempDir dir;
  const std::filesystem::path file = dir.path / "fp8_tensors.jsonl";
  {
    Fp8Monitor monitor = s.monitor(file);
    for (std::int64_t step = 1; step <= 3; ++step) monitor.append(step, s.healthy());
  }
  const std::string three = read_whole_file(file);
  CHECK(std::count(three.begin(), three.end(), '\n') == 3);
  dir.file("fp8_tensors.jsonl", three + "{\"step\": 4, \"torn");
  {
    Fp8Monitor monitor = s.monitor(file, 2);
    monitor.append(3, s.healthy());
  }
  CHECK(read_whole_file(file) == three);
  { const Fp8Monitor afresh = s.monitor(file); }
  CHECK(read_whole_file(file).empty());
}
