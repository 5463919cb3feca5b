// AdamW against the oracle over many steps, decay by segment, working copies, and the step that is skipped.
#include <cmath>

#include "backend.h"
#include "backends.h"
#include "catch.h"
#include "oracle_ops.h"
#include "tolerance.h"

using namespace octavo;
using namespace octavo::testing;
using oracle::Values;

namespace {

const std::vector<ArenaSegment> kSegments = {
    {0, 33, true}, {33, 64, false}, {64, 16500, true}, {16500, 40003, false}};
constexpr std::int64_t kSize = 40003;  // several blocks, segment borders within and off their chunks

struct Arena {
  DeviceArray<float> param, grad, m, v;
  DeviceArray<bf16> working;
  DeviceState state;

  Arena(Backend& b, const StepState& s)
      : param(b, random_values<float>(kSize, 1), {kSize}, "param"),
        grad(b, random_values<float>(kSize, 2, 0.1), {kSize}, "grad"),
        m(b, random_values<float>(kSize, 3, 0.05), {kSize}, "m"),
        v(b, squares(), {kSize}, "v"),
        working(b, {kSize}, "working"),
        state(b, s) {}

  AdamW op(bool with_working) {
    return {.param = param.tensor,
            .grad = grad.tensor,
            .m = m.tensor,
            .v = v.tensor,
            .working = with_working ? working.tensor : Tensor{},
            .segments = kSegments,
            .state = state.state};
  }
  std::string bits() const {
    return bits_of(param.read()) + bits_of(grad.read()) + bits_of(m.read()) + bits_of(v.read()) +
           bits_of(working.read());
  }

 private:
  static std::vector<float> squares() {
    std::vector<float> v = random_values<float>(kSize, 4, 0.1);
    for (float& x : v) x *= x;
    return v;
  }
};

Values decays(double decay) {
  Values d;
  for (const ArenaSegment& s : kSegments)
    d.insert(d.end(), static_cast<std::size_t>(s.end - s.begin), s.decays ? decay : 0.0);
  return d;
}

double f32(float x) {
  return static_cast<double>(x);
}

}  // namespace

TEST_CASE("one step of AdamW agrees with the oracle, at the first update and at later ones") {
  for (Backend* b : backends())
    for (const std::int64_t updates : {0, 1, 9, 5000})
      for (const bool with_working : {false, true}) {
        INFO(b->name() << " after " << updates);
        Arena a(*b, StepState{.lr = 1e-2f, .clip_factor = 0.75f, .updates = updates});
        const AdamW op = a.op(with_working);
        const std::vector<float> p = a.param.read(), g = a.grad.read(), m = a.m.read(), v = a.v.read();
        const std::string untouched = bits_of(a.working.read());
        b->run(op);
        const oracle::AdamWResult expected =
            oracle::adamw(widen(p), widen(g), widen(m), widen(v), decays(f32(op.weight_decay)),
                          {.lr = f32(1e-2f),
                           .beta1 = f32(op.beta1),
                           .beta2 = f32(op.beta2),
                           .eps = f32(op.eps),
                           .clip_factor = 0.75,
                           .t = updates + 1});
        CHECK(mismatch(a.m.read(), expected.m, {}) == "");
        CHECK(mismatch(a.v.read(), expected.v, {}) == "");
        CHECK(mismatch(a.param.read(), expected.param, {.operations = 16}) == "");
        CHECK(bits_of(a.grad.read()) == bits_of(g));
        CHECK(a.state.read().updates == updates + 1);
        CHECK(a.state.read().skip == 0);
        std::vector<bf16> rounded;
        for (const float x : a.param.read()) rounded.push_back(to_bf16(x));
        CHECK(bits_of(a.working.read()) == (with_working ? bits_of(rounded) : untouched));
      }
}

TEST_CASE("the first update moves every weight by lr against its gradient's sign, whatever its size") {
  for (Backend* b : backends()) {
    const std::vector<ArenaSegment> all = {{0, 5, false}};
    DeviceArray<float> param(*b, {1, 1, 1, 1, 1}, {5}), grad(*b, {1e-4f, -1e-4f, 5, -5, 0}, {5});
    DeviceArray<float> m(*b, std::vector<float>(5, 0.0f), {5}), v(*b, std::vector<float>(5, 0.0f), {5});
    const DeviceState state(*b, StepState{.lr = 0.125f, .clip_factor = 1});
    b->run(AdamW{.param = param.tensor,
                 .grad = grad.tensor,
                 .m = m.tensor,
                 .v = v.tensor,
                 .working = {},
                 .segments = all,
                 .state = state.state});
    const std::vector<float> p = param.read();
    const double expected[] = {0.875, 1.125, 0.875, 1.125, 1};
    for (std::size_t i = 0; i < 5; ++i) CHECK(p[i] == Approx(expected[i]).epsilon(2e-5));
    CHECK(p[4] == 1);
  }
}

TEST_CASE("decay alone shrinks weights by lr * decay, only in segments that decay") {
  for (Backend* b : backends()) {
    const std::vector<ArenaSegment> two = {{0, 20, true}, {20, 40, false}};
    const std::vector<float> zero(40, 0.0f), start = random_values<float>(40, 1);
    DeviceArray<float> param(*b, start, {40}), grad(*b, zero, {40}), m(*b, zero, {40}), v(*b, zero, {40});
    const DeviceState state(*b, StepState{.lr = 0.5f, .clip_factor = 1});
    b->run(AdamW{.param = param.tensor,
                 .grad = grad.tensor,
                 .m = m.tensor,
                 .v = v.tensor,
                 .working = {},
                 .segments = two,
                 .weight_decay = 0.25f,
                 .state = state.state});
    const std::vector<float> p = param.read();
    for (std::size_t i = 0; i < 40; ++i)
      CHECK(p[i] == (i < 20 ? Approx(0.875 * f32(start[i])).epsilon(1e-6) : Approx(start[i]).epsilon(0)));
  }
}

TEST_CASE("a skipped step leaves every bit as it was, NaN gradients included") {
  for (Backend* b : backends()) {
    Arena a(*b, StepState{.step = 4, .lr = 1e-2f, .clip_factor = std::nanf(""), .skip = 1, .updates = 3});
    const std::string before = a.bits();
    b->run(a.op(true));
    CHECK(a.bits() == before);
    const StepState s = a.state.read();
    CHECK((s.updates == 3 && s.skip == 1 && s.step == 4));
  }
}

TEST_CASE("AdamW has the same bits on any number of threads and any instruction set") {
  check_same_bits_everywhere([](Backend& b) {
    Arena a(b, StepState{.lr = 1e-2f, .clip_factor = 0.75f, .updates = 6});
    for (int step = 0; step < 3; ++step) b.run(a.op(true));
    return a.bits();
  });
}
