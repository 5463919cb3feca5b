// Loss and dlogits against the oracle; padding, ignored targets, extreme logits; the sum of losses.
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

struct Sizes {
  std::int64_t N, V, Vp;
};
const Sizes kSizes[] = {{5, 64, 64}, {37, 257, 320},  {3, 37, 37},
                        {2, 1, 64},  {9, 1000, 1024}, {2, 5003, 5056}};

template <typename T>
struct Result {
  std::vector<T> logits;
  std::vector<float> losses;
};

template <typename T>
Result<T> run(Backend& b, const Sizes& s, const std::vector<T>& logits,
              const std::vector<std::int32_t>& targets, LossMode mode, float grad_scale = 0.125f) {
  DeviceArray<T> device_logits(b, logits, {s.N, s.Vp}, "logits");
  DeviceArray<std::int32_t> device_targets(b, targets, {s.N}, "targets");
  DeviceArray<float> losses(b, {s.N}, "losses");
  const DeviceState state(b, StepState{.grad_scale = grad_scale});
  b.run(CrossEntropy{.mode = mode,
                     .logits = device_logits.tensor,
                     .targets = device_targets.tensor,
                     .vocab = s.V,
                     .losses = losses.tensor,
                     .state = mode == LossMode::loss_only ? nullptr : state.state});
  return {device_logits.read(), losses.read()};
}

/// Padding columns hold the largest numbers, so that one that is not left out is seen.
template <typename T>
std::vector<T> logits_of(const Sizes& s, double scale) {
  std::vector<T> v = random_values<T>(s.N * s.Vp, 1, scale);
  for (std::int64_t n = 0; n < s.N; ++n)
    for (std::int64_t c = s.V; c < s.Vp; ++c)
      v[oracle::at(n, c, s.Vp)] = narrow_to<T>(c % 2 == 0 ? 1e30 : NAN);
  return v;
}
std::vector<std::int32_t> targets_of(const Sizes& s) {
  std::vector<std::int32_t> t = random_ids(s.N, 2, static_cast<std::int32_t>(s.V));
  t[0] = static_cast<std::int32_t>(s.V - 1);
  if (s.N > 2) t[2] = -1;
  return t;
}

template <typename T>
void against_oracle(Backend& b, const Sizes& s, double scale) {
  INFO(b.name() << " N=" << s.N << " V=" << s.V << " scale " << scale);
  const std::vector<T> logits = logits_of<T>(s, scale);
  const std::vector<std::int32_t> targets = targets_of(s);
  const oracle::CrossEntropyResult expected =
      oracle::cross_entropy(widen(logits), targets, s.N, s.Vp, s.V, 0.125);
  const Result<T> both = run(b, s, logits, targets, LossMode::loss_and_gradient);
  const Result<T> loss = run(b, s, logits, targets, LossMode::loss_only);
  CHECK(bits_of(loss.logits) == bits_of(logits));  // loss_only leaves them alone
  CHECK(bits_of(loss.losses) == bits_of(both.losses));
  if (s.V > 1) {
    CHECK(mismatch(both.losses, expected.losses, {.terms = s.V}) == "");
    CHECK(mismatch(both.logits, expected.dlogits, {.stored = dtype_of<T>::value, .terms = s.V}) == "");
  } else {  // one word: no loss, no gradient
    for (const float x : both.losses) CHECK(x == 0);
    for (const double x : widen(both.logits)) CHECK(x == 0);
  }
  for (std::int64_t n = 0; n < s.N; ++n) {
    const bool ignored = targets[static_cast<std::size_t>(n)] < 0;
    if (ignored) CHECK(both.losses[static_cast<std::size_t>(n)] == 0);
    double sum = 0;
    for (std::int64_t c = 0; c < s.Vp; ++c) {
      const double d = static_cast<double>(to_float(both.logits[oracle::at(n, c, s.Vp)]));
      if ((ignored || c >= s.V) && d != 0) FAIL("dlogits[" << n << "][" << c << "] is " << d);
      sum += d;
    }
    CHECK(std::abs(sum) < 0.125 * (std::is_same_v<T, bf16> ? 0x1p-7 : 1e-5));  // probabilities add to 1
  }
}

}  // namespace

TEST_CASE("cross entropy agrees with the oracle") {
  for (Backend* b : backends())
    for (const Sizes& s : kSizes)
      for (const double scale : {0.5, 8.0, 60.0}) {
        against_oracle<float>(*b, s, scale);
        against_oracle<bf16>(*b, s, scale);
      }
}

TEST_CASE("logits far from zero and minus infinity are no problem") {
  const float inf = std::numeric_limits<float>::infinity();
  for (Backend* b : backends()) {
    const Sizes s{3, 20, 20};
    std::vector<float> logits(60, -1e4f);
    for (std::size_t c = 0; c < 20; ++c) logits[20 + c] = 1e30f, logits[40 + c] = c < 4 ? 2.0f : -inf;
    const Result<float> r = run(*b, s, logits, {3, 4, 2}, LossMode::loss_and_gradient, 1.0f);
    CHECK(r.losses[0] == Approx(std::log(20.0)).epsilon(1e-6));
    CHECK(r.losses[1] == Approx(std::log(20.0)).epsilon(1e-6));
    CHECK(r.losses[2] == Approx(std::log(4.0)).epsilon(1e-6));
    CHECK(r.logits[3] == Approx(0.05 - 1).epsilon(1e-6));
    CHECK(r.logits[4] == Approx(0.05).epsilon(1e-6));
    CHECK(r.logits[42] == Approx(0.25 - 1).epsilon(1e-6));
    CHECK(r.logits[50] == 0);
  }
}

TEST_CASE("a loss that is certain is zero, one that is impossible is large, neither is NaN") {
  for (Backend* b : backends()) {
    std::vector<float> logits(2 * 33, 0.0f);
    logits[7] = 300, logits[33 + 7] = 300;
    const Result<float> r = run(*b, {2, 33, 33}, logits, {7, 8}, LossMode::loss_and_gradient, 1.0f);
    CHECK(r.losses[0] == 0);
    CHECK(r.losses[1] == 300);
    CHECK((r.logits[7] == 0 && r.logits[33 + 7] == 1 && r.logits[33 + 8] == -1));
  }
}

TEST_CASE("a NaN or an infinite logit makes the loss of its row, and only of its row, not finite") {
  for (Backend* b : backends())
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()})
      for (const std::size_t column : {0u, 15u, 16u, 36u}) {
        std::vector<float> logits = random_values<float>(3 * 37, 1);
        logits[37 + column] = bad;
        const Result<float> r = run(*b, {3, 37, 37}, logits, {1, 2, 3}, LossMode::loss_only);
        CHECK((std::isfinite(r.losses[0]) && !std::isfinite(r.losses[1]) && std::isfinite(r.losses[2])));
      }
}

TEST_CASE("the CPU refuses targets outside the vocabulary, padding included, before it writes") {
  Backend& b = *backends().front();
  const Sizes s{2, 37, 64};
  for (const std::int32_t bad : {-2, 37, 64, 1 << 30})
    CHECK_THROWS_WITH(run(b, s, logits_of<float>(s, 1), {0, bad}, LossMode::loss_and_gradient),
                      ContainsSubstring("CrossEntropy.targets") && ContainsSubstring(std::to_string(bad)) &&
                          ContainsSubstring("-1 to 36"));
}

TEST_CASE("cross entropy has the same bits on any number of threads and any instruction set") {
  check_same_bits_everywhere([](Backend& b) {
    const Sizes s{67, 1237, 1280};
    const auto bits = [&](auto type) {
      using T = decltype(type);
      const Result<T> r = run(b, s, logits_of<T>(s, 20), targets_of(s), LossMode::loss_and_gradient);
      return bits_of(r.logits) + bits_of(r.losses);
    };
    return bits(float{}) + bits(bf16{});
  });
}

TEST_CASE("losses are added to what is there, in double, in index order") {
  for (Backend* b : backends()) {
    std::vector<float> losses = random_values<float>(1000, 4, 10);
    losses[0] = 1e9f, losses[999] = 1e-9f;  // in f32 the small ones would vanish
    DeviceArray<float> device(*b, losses, {1000}, "losses");
    const DeviceState state(*b, StepState{.loss_sum = 0.1});
    b->run(LossSum{.losses = device.tensor, .state = state.state});
    double sum = 0.1;
    for (const float x : losses) sum += static_cast<double>(x);
    CHECK(state.read().loss_sum == sum);
    b->run(LossSum{.losses = device.tensor, .state = state.state});
    for (const float x : losses) sum += static_cast<double>(x);
    CHECK(state.read().loss_sum == sum);
  }
}
