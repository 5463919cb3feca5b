// The global norm, the clip factor and the decision to skip.
#include <cmath>
#include <limits>

#include "backend.h"
#include "backends.h"
#include "catch.h"
#include "oracle_ops.h"
#include "tolerance.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

StepState run(Backend& b, const std::vector<float>& g, float clip, StepState state = {}) {
  DeviceArray<float> grad(b, g, {static_cast<std::int64_t>(g.size())}, "grad");
  const DeviceState device(b, state);
  b.run(GradientNorm{.grad = grad.tensor, .clip = clip, .state = device.state});
  CHECK(bits_of(grad.read()) == bits_of(g));
  return device.read();
}

}  // namespace

TEST_CASE("the gradient norm agrees with the oracle") {
  for (Backend* b : backends())
    for (const std::int64_t n : {1, 15, 16, 17, 5000, 32768, 32769, 200003}) {
      INFO(b->name() << " n=" << n);
      const std::vector<float> g = random_values<float>(n, 1, 0.3);
      const StepState s = run(*b, g, 0);
      CHECK(mismatch(std::vector<float>{s.grad_norm}, oracle::gradient_norm(widen(g)), {.operations = 1}) ==
            "");
      CHECK(s.clip_factor == 1);
      CHECK(s.skip == 0);
    }
}

TEST_CASE("the clip factor is min(1, clip / norm)") {
  for (Backend* b : backends()) {
    const std::vector<float> g = {3, 4, 0, 0};  // norm 5
    CHECK(run(*b, g, 1).clip_factor == 0.2f);
    CHECK(run(*b, g, 5).clip_factor == 1);
    CHECK(run(*b, g, 7).clip_factor == 1);
    CHECK(run(*b, g, 0).clip_factor == 1);
    CHECK(run(*b, g, 1).grad_norm == 5);
    const StepState none = run(*b, {0, 0, 0}, 1);
    CHECK((none.clip_factor == 1 && none.grad_norm == 0 && none.skip == 0));
  }
}

TEST_CASE("a non-finite gradient or loss skips the step; a merely huge one does not") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (Backend* b : backends()) {
    for (const float bad : {inf, -inf, nan})
      for (const std::size_t where : {0u, 77u, 32768u, 40000u}) {
        std::vector<float> g = random_values<float>(40001, 1);
        g[where] = bad;
        CHECK(run(*b, g, 1).skip == 1);
      }
    CHECK(run(*b, {1, 2}, 1, StepState{.loss_sum = static_cast<double>(nan)}).skip == 1);
    CHECK(run(*b, {1, 2}, 1, StepState{.loss_sum = static_cast<double>(-inf)}).skip == 1);
    CHECK(run(*b, {1, 2}, 1, StepState{.loss_sum = 3, .skip = 1}).skip == 0);  // decided anew each step
    const StepState huge = run(*b, {3e30f, 4e30f}, 1);                         // its square is beyond f32
    CHECK((huge.skip == 0 && huge.grad_norm == Approx(5e30).epsilon(1e-6)));
    CHECK(huge.clip_factor == Approx(2e-31).epsilon(1e-6));
    const StepState tiny = run(*b, {3e-30f, 4e-30f}, 1);
    CHECK((tiny.skip == 0 && tiny.grad_norm == Approx(5e-30).epsilon(1e-6)));
  }
}

TEST_CASE("the norm touches nothing else of the step's state") {
  for (Backend* b : backends()) {
    const StepState before{.step = 9, .lr = 0.25f, .grad_scale = 0.5f, .loss_sum = 7.5, .updates = 8};
    const StepState after = run(*b, {3, 4}, 1, before);
    CHECK((after.step == 9 && after.lr == 0.25f && after.grad_scale == 0.5f && after.loss_sum == 7.5));
    CHECK(after.updates == 8);
  }
}

TEST_CASE("the norm has the same bits on any number of threads and any instruction set") {
  check_same_bits_everywhere([](Backend& b) {
    const StepState s = run(b, random_values<float>(200003, 5), 1);
    return bits_of(std::vector<float>{s.grad_norm, s.clip_factor});
  });
}
