// The recipe: golden vectors of Transformer Engine's delayed scaling, its edge cases one by one, current
// scaling, and the fold of amaxes, which no split and no order may change.
#include "precision/fp8_recipe.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "backend.h"
#include "backends.h"
#include "catch.h"
#include "fp8_operands.h"
#include "fp8_reference.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Fp8AmaxAlgorithm kMax = Fp8AmaxAlgorithm::max, kMostRecent = Fp8AmaxAlgorithm::most_recent;

/// A slot's state and what an update makes of it. Transformer Engine collects amaxes in history[0]; where
/// they were reduced over ranks, `reduced` stands for it, else 0.
struct Golden {
  std::vector<float> history;
  float scale, reduced;
  std::vector<Fp8AmaxAlgorithm> algorithms;
  DType format;
  std::int64_t margin;
  std::vector<float> history_after;
  float scale_after;

  float last() const { return reduced != 0 ? reduced : history[0]; }
};

/// Computed in f32 by a model of Transformer Engine's rule that shares nothing with this program.
std::vector<Golden> golden_vectors() {
  const DType e4m3 = DType::e4m3, e5m2 = DType::e5m2;
  return {{{2, 0, 0, 0}, 1, 0, {kMax}, e4m3, 0, {0, 0, 0, 2}, 224},
          {{0.5f, 0, 0, 2}, 224, 0, {kMax}, e4m3, 0, {0, 0, 2, 0.5f}, 224},
          {{0.5f, 0, 0, 2}, 224, 0, {kMostRecent}, e4m3, 0, {0, 0, 2, 0.5f}, 896},
          {{0.5f, 0, 0, 2}, 224, 4, {kMax}, e4m3, 0, {0, 0, 2, 4}, 112},
          {{0, 1, 2, 3}, 149.333328f, 0, {kMax, kMostRecent}, e4m3, 0, {0, 1, 2, 3}, 149.333328f},
          {{0, 1, 2, 3}, 149.333328f, 8, {kMax}, e4m3, 0, {0, 2, 3, 8}, 56},
          {{kInf, 1, 2, 3}, 149.333328f, 0, {kMax}, e4m3, 0, {0, 2, 3, kInf}, 149.333328f},
          {{1, 2, 3, kInf}, 100, 0, {kMax}, e4m3, 0, {0, 3, kInf, 1}, 100},
          {{kNan, 1, 2, 3}, 100, 0, {kMax}, e4m3, 0, {0, 2, 3, kNan}, 149.333328f},
          {{kNan, 1, 2, 3}, 100, 0, {kMostRecent}, e4m3, 0, {0, 2, 3, kNan}, 100},
          {{1e-38f, 0, 0, 0}, 1, 0, {kMax}, e4m3, 0, {0, 0, 0, 1e-38f}, 3.40282347e+38f},
          {{2, 0, 0, 0}, 1, 0, {kMax}, e4m3, 2, {0, 0, 0, 2}, 56},
          {{3}, 1, 0, {kMax}, e5m2, 0, {0}, 19114.666f},
          {{0}, 7, 0, {kMax}, e5m2, 0, {0}, 7}};
}

std::string bits_of(float x) {
  return testing::bits_of(std::vector<float>{x});
}
using testing::bits_of;

/// A slot's history and scale in a backend's memory.
struct DeviceHistory {
  DeviceArray<float> history, scale, scaled_max, last;
  DeviceArray<std::int32_t> frozen;

  DeviceHistory(Backend& b, const std::vector<float>& history_, float scale_, float scaled_max_)
      : history(b, history_, {1, static_cast<std::int64_t>(history_.size())}, "history"),
        scale(b, std::vector<float>{scale_}, {1}, "scale"),
        scaled_max(b, std::vector<float>{scaled_max_}, {1}, "scaled_max"),
        last(b, {1}, "last"),
        frozen(b, {1}, "frozen") {}

  void update(Backend& b, std::uint32_t amax, Fp8AmaxAlgorithm algorithm) {
    DeviceArray<std::int32_t> collected(b, std::vector<std::int32_t>{static_cast<std::int32_t>(amax)}, {1},
                                        "amax");
    const DeviceState state(b);
    b.run(Fp8Update{.amax = collected.tensor,
                    .history = history.tensor,
                    .scale = scale.tensor,
                    .scaled_max = scaled_max.tensor,
                    .last = last.tensor,
                    .frozen = frozen.tensor,
                    .algorithm = algorithm,
                    .state = state.state});
    CHECK(collected.read()[0] == 0);
  }
  std::string bits() const {
    return bits_of(history.read()) + bits_of(scale.read()) + bits_of(last.read()) +
           testing::bits_of(frozen.read());
  }
};

/// One slot, updated by hand.
struct Slot {
  std::vector<float> history;
  float scale = 1, amax = 0;

  void update(float last, Fp8AmaxAlgorithm algorithm = kMax, float scaled_max = 448) {
    scale = fp8_update(history.data(), static_cast<std::int64_t>(history.size()), algorithm, last, scale,
                       scaled_max, amax);
  }
};

}  // namespace

TEST_CASE("delayed scaling gives Transformer Engine's golden vectors, bit for bit", "[fp8]") {
  for (const Golden& g : golden_vectors())
    for (const Fp8AmaxAlgorithm algorithm : g.algorithms) {
      std::vector<float> before = g.history;
      before[0] = 0;
      const float scaled_max = fp8_scaled_max(g.format, g.margin);
      INFO("history " << Catch::Detail::stringify(g.history) << " reduced " << g.reduced << " scale "
                      << g.scale);
      Slot slot{before, g.scale};
      slot.update(g.last(), algorithm, scaled_max);
      CHECK(bits_of(slot.history) == bits_of(g.history_after));
      CHECK(bits_of(slot.scale) == bits_of(g.scale_after));
      for (Backend* b : backends()) {
        DeviceHistory device(*b, before, g.scale, scaled_max);
        device.update(*b, std::bit_cast<std::uint32_t>(g.last()), algorithm);
        CHECK(bits_of(device.history.read()) == bits_of(g.history_after));
        CHECK(bits_of(device.scale.read()) == bits_of(g.scale_after));
        CHECK(bits_of(device.last.read()) == bits_of(g.last()));
      }
    }
}

TEST_CASE("any sequence of amaxes moves histories and scales as the rule in other words does", "[fp8]") {
  std::uint32_t turn = 0;
  for (const std::size_t length : {1, 2, 3, 7, 64})
    for (const Fp8AmaxAlgorithm algorithm : {kMax, kMostRecent})
      for (const DType format : reference::kFormats)
        for (const int margin : {0, 3}) {
          Slot slot{std::vector<float>(length, 0.0f)};
          reference::Delayed expected{.history = slot.history};
          for (int step = 0; step < 200; ++step) {
            const Philox4 r = philox({5, 6}, turn++, 0, 0, 0);
            float last = std::ldexp(1.0f + static_cast<float>(r.v[0] % 4096) / 4096,
                                    static_cast<int>(r.v[1] % 20) - 10);
            if (r.v[2] % 16 == 0) last = std::vector<float>{0, kInf, kNan, 1e-40f, FLT_MAX}[r.v[3] % 5];
            slot.update(last, algorithm, fp8_scaled_max(format, margin));
            expected.update(algorithm == kMostRecent, last, reference::largest_of(format), margin);
            INFO("length " << length << " step " << step << " amax " << last);
            REQUIRE(bits_of(slot.history) == bits_of(expected.history));
            REQUIRE(bits_of(slot.scale) == bits_of(expected.scale));
          }
        }
}

TEST_CASE("a tensor that was not cast keeps its history and its scale, for as long as that lasts", "[fp8]") {
  Slot slot{{0, 1, 2, 3}, 9};
  for (int i = 0; i < 10; ++i) {
    slot.update(0);
    CHECK(slot.history == std::vector<float>{0, 1, 2, 3});
    CHECK(slot.scale == 9);
    CHECK(slot.amax == 0);
  }
}

TEST_CASE("an infinite amax freezes the scale while it is in the window, but not under most_recent",
          "[fp8]") {
  Slot slot{{0, 0, 0, 0}, 5};
  slot.update(kInf);
  CHECK(slot.scale == 5);
  for (const float amax : {7.0f, 14.0f, 3.5f}) {  // three more updates hold it
    slot.update(amax);
    CHECK(slot.scale == 5);
    CHECK(std::isinf(slot.amax));
  }
  slot.update(1);
  CHECK(slot.scale == 448.0f / 14);
  slot.update(kInf, kMostRecent);
  CHECK(slot.scale == 448.0f / 14);
  slot.update(7, kMostRecent);
  CHECK(slot.scale == 64);
}

TEST_CASE("a NaN amax is passed over by max, and keeps the scale where it is the most recent", "[fp8]") {
  Slot slot{{0, 0, 0, 4}, 5};
  slot.update(kNan);
  CHECK(slot.scale == 112);
  slot.update(kNan, kMostRecent);
  CHECK(slot.scale == 112);
  slot.update(8);
  CHECK(slot.scale == 56);
  Slot alone{{0}, 5};  // nothing but NaN is in the window
  alone.update(kNan);
  CHECK(alone.scale == 5);
  CHECK(alone.history == std::vector<float>{0});
}

TEST_CASE("a history of one is that of the last step", "[fp8]") {
  Slot slot{{0}, 1};
  for (const float amax : {3.0f, 0.5f, 100.0f}) {
    slot.update(amax);
    CHECK(slot.scale == 448 / amax);
    CHECK(slot.history == std::vector<float>{0});
  }
}

TEST_CASE("the oldest amax still counts in the update that drops it", "[fp8]") {
  Slot slot{{0, 64, 2, 1}, 1};
  slot.update(4);
  CHECK(slot.scale == 7);
  CHECK(slot.history == std::vector<float>{0, 2, 1, 4});
  slot.update(4);
  CHECK(slot.scale == 112);
}

TEST_CASE("scales never leave the floats, and a margin divides them by its power of two", "[fp8]") {
  for (const DType format : reference::kFormats) {
    const float max = static_cast<float>(reference::largest_of(format));
    for (int margin = 0; margin < 12; ++margin)
      CHECK(fp8_scaled_max(format, margin) == max / static_cast<float>(1 << margin));
    CHECK(fp8_scaled_max(format, -2) == 4 * max);
    for (const float tiny : {1e-45f, 1e-40f, FLT_MIN, 1e-37f}) {
      const bool overflows =
          static_cast<double>(max) / static_cast<double>(tiny) > static_cast<double>(FLT_MAX);
      CHECK(fp8_delayed_scale(tiny, 3, max) == (overflows ? FLT_MAX : max / tiny));
    }
    CHECK(fp8_delayed_scale(FLT_MAX, 3, max) == max / FLT_MAX);
    CHECK(fp8_delayed_scale(FLT_MAX, 3, max) > 0);
    for (const float unusable : {0.0f, -0.0f, kInf, kNan, -1.0f})
      CHECK(fp8_delayed_scale(unusable, 3, max) == 3);
  }
}

TEST_CASE("current scaling: 1 where the amax says nothing, and at most the largest bf16", "[fp8]") {
  const float largest_bf16 = std::bit_cast<float>(0x7f7f0000u);
  CHECK(to_float(to_bf16(largest_bf16)) == largest_bf16);
  for (const DType format : reference::kFormats) {
    const float max = static_cast<float>(reference::largest_of(format));
    for (const float unusable : {0.0f, -0.0f, kInf, kNan}) CHECK(fp8_current_scale(unusable, max) == 1);
    for (const float tiny : {1e-45f, 1e-40f}) CHECK(fp8_current_scale(tiny, max) == largest_bf16);
    for (const float amax : {3.0f, 0.1f, 448.0f, 1e30f, FLT_MAX})
      CHECK(fp8_current_scale(amax, max) == max / amax);
  }
}

TEST_CASE("amaxes of the same tensors in any split and order give the same amax, history and scale",
          "[fp8]") {
  constexpr std::int64_t kRows = 48, kColumns = 19;
  // A step's tensor in parts of rows {first, count}, over ranks whose amaxes are reduced as integers.
  struct Part {
    std::int64_t first, count;
  };
  using Rank = std::vector<Part>;
  std::vector<std::vector<Rank>> splits = {{{{0, 48}}},
                                           {{{0, 7}, {7, 30}, {37, 11}}},
                                           {{{37, 11}, {7, 30}, {0, 7}}},
                                           {{{0, 48}, {0, 48}}},  // recomputed
                                           {{{0, 24}}, {{24, 24}}},
                                           {{{40, 8}, {0, 1}}, {{1, 20}}, {}, {{30, 10}, {21, 9}}}};
  std::vector<Rank> rows(3);
  for (std::int64_t r = 0; r < kRows; ++r)
    rows[static_cast<std::size_t>(r * 7 % 3)].push_back({(r * 31) % kRows, 1});
  splits.push_back(rows);

  const auto tensor_of = [](std::uint32_t step) {
    std::vector<float> x = random_values<float>(kRows * kColumns, step, step + 1.0);
    if (step == 2) x[500] = kNan;
    if (step == 3) x[100] = -kInf, x[700] = kInf;
    if (step == 4) x[3] = kInf, x[800] = -kNan;
    if (step == 5) std::fill(x.begin(), x.end(), -0.0f);
    return x;
  };
  for (Backend* b : backends())
    for (const Fp8AmaxAlgorithm algorithm : {kMax, kMostRecent}) {
      std::string first;
      for (const std::vector<Rank>& ranks : splits) {
        DeviceHistory device(*b, std::vector<float>(3, 0.0f), 1, fp8_scaled_max(DType::e4m3, 0));
        std::string bits;
        for (std::uint32_t step = 0; step < 10; ++step) {
          DeviceArray<float> x(*b, tensor_of(step), {kRows, kColumns}, "x");
          std::uint32_t reduced = 0;
          for (const Rank& rank : ranks) {
            DeviceSlot slot(*b, DType::e4m3, Fp8Scaling::delayed, {.scale = device.scale.read()[0]});
            for (const Part& part : rank) {
              const DeviceCodes q(*b, DType::e4m3, {part.count, kColumns}, "q");
              b->run(
                  Cast{.x = x.tensor.rows(part.first, part.count), .y = {.q = q.tensor, .slot = &slot.slot}});
              q.read();
            }
            reduced = std::max(reduced, slot.amax_bits());
          }
          std::vector<bf16> rounded;
          for (const float v : tensor_of(step)) rounded.push_back(to_bf16(v));
          CHECK(reduced == reference::amax_of(rounded));
          device.update(*b, reduced, algorithm);
          bits += device.bits();
        }
        if (first.empty()) first = bits;
        CHECK((bits == first));
      }
    }
}
