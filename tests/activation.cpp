// GELU against the oracle, on its tails, at the edges of the format, and fused with the bias gradient.
#include <cmath>
#include <limits>

#include "backend.h"
#include "backends.h"
#include "catch.h"
#include "oracle_ops.h"
#include "tolerance.h"

using namespace octavo;
using namespace octavo::testing;
using oracle::Values;

namespace {

struct Sizes {
  std::int64_t N, F;
};
const Sizes kSizes[] = {{4, 64}, {33, 37}, {1, 1}, {130, 17}, {1100, 16}, {5, 4096}};

template <typename T>
void forward_against_oracle(Backend& b, const Sizes& s) {
  const std::vector<T> x = random_values<T>(s.N * s.F, 1, 5);
  DeviceArray<T> dx(b, x, {s.N, s.F}, "x"), y(b, {s.N, s.F}, "y");
  b.run(ActivationForward{.x = dx.tensor, .y = {.t = y.tensor}});
  CHECK(mismatch(y.read(), oracle::activation_forward(widen(x)), {.stored = dtype_of<T>::value}) == "");
  CHECK(bits_of(dx.read()) == bits_of(x));
}

template <typename T>
struct Result {
  std::vector<T> dx;
  std::vector<float> dbias;
};
template <typename T>
Result<T> run_backward(Backend& b, const Sizes& s, bool in_place, bool with_bias, bool accumulate) {
  const std::vector<T> x = random_values<T>(s.N * s.F, 2, 5), dy = random_values<T>(s.N * s.F, 3);
  DeviceArray<T> device_x(b, x, {s.N, s.F}, "x"), device_dy(b, dy, {s.N, s.F}, "dy"), dx(b, {s.N, s.F}, "dx");
  DeviceArray<float> dbias(b, random_values<float>(s.F, 4), {s.F}, "dbias");
  ActivationBackward op{.x = device_x.tensor,
                        .dy = device_dy.tensor,
                        .dx = {.t = in_place ? device_dy.tensor : dx.tensor},
                        .accumulate = accumulate};
  if (with_bias) op.dbias = dbias.tensor;
  b.run(op);
  CHECK(bits_of(device_x.read()) == bits_of(x));
  if (!in_place) CHECK(bits_of(device_dy.read()) == bits_of(dy));
  return {in_place ? device_dy.read() : dx.read(), dbias.read()};
}

template <typename T>
void backward_against_oracle(Backend& b, const Sizes& s) {
  const Reference expected = oracle::activation_backward(widen(random_values<T>(s.N * s.F, 2, 5)),
                                                         widen(random_values<T>(s.N * s.F, 3)));
  const std::vector<float> old = random_values<float>(s.F, 4);
  for (const bool in_place : {false, true})
    for (const bool with_bias : {false, true})
      for (const bool accumulate : {false, true}) {
        const Result<T> got = run_backward<T>(b, s, in_place, with_bias, accumulate);
        CHECK(mismatch(got.dx, expected, {.stored = dtype_of<T>::value}) == "");
        if (!with_bias) {
          CHECK(bits_of(got.dbias) == bits_of(old));
          continue;
        }
        const Values start = accumulate ? widen(old) : Values{};
        CHECK(mismatch(got.dbias, oracle::column_sums(widen(got.dx), s.N, s.F, start), {.terms = s.N}) == "");
        // fused == plain, bit for bit
        DeviceArray<T> dx(b, got.dx, {s.N, s.F});
        DeviceArray<float> sums(b, old, {s.F});
        b.run(BiasGradient{.dy = dx.tensor, .db = sums.tensor, .accumulate = accumulate});
        CHECK(bits_of(got.dbias) == bits_of(sums.read()));
      }
}

std::vector<float> forward_of(Backend& b, const std::vector<float>& x) {
  const std::int64_t n = static_cast<std::int64_t>(x.size());
  DeviceArray<float> dx(b, x, {1, n}), y(b, {1, n});
  b.run(ActivationForward{.x = dx.tensor, .y = {.t = y.tensor}});
  return y.read();
}
std::vector<float> derivative_of(Backend& b, const std::vector<float>& x) {
  const std::int64_t n = static_cast<std::int64_t>(x.size());
  DeviceArray<float> dx(b, x, {1, n}), dy(b, std::vector<float>(x.size(), 1.0f), {1, n}), d(b, {1, n});
  b.run(ActivationBackward{.x = dx.tensor, .dy = dy.tensor, .dx = {.t = d.tensor}});
  return d.read();
}

}  // namespace

TEST_CASE("gelu agrees with the oracle") {
  for (Backend* b : backends())
    for (const Sizes& s : kSizes) {
      INFO(b->name() << " N=" << s.N << " F=" << s.F);
      forward_against_oracle<float>(*b, s);
      forward_against_oracle<bf16>(*b, s);
    }
}

TEST_CASE("gelu backward agrees with the oracle; its fused bias gradient has the bits of the plain one") {
  for (Backend* b : backends())
    for (const Sizes& s : kSizes) {
      INFO(b->name() << " N=" << s.N << " F=" << s.F);
      backward_against_oracle<float>(*b, s);
      backward_against_oracle<bf16>(*b, s);
    }
}

TEST_CASE("gelu keeps its relative accuracy on the tails") {
  std::vector<float> x;
  for (float v = -6; v < 8; v += 0.01f) x.push_back(v);
  for (Backend* b : backends()) {
    const std::vector<float> y = forward_of(*b, x), d = derivative_of(*b, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double v = static_cast<double>(x[i]);
      // By the identity that has no cancellation. The exponent, up to 25 here, passes its rounding on.
      const double k = 2 * std::sqrt(2 / M_PI), exact = v / (1 + std::exp(-k * (v + 0.044715 * v * v * v)));
      CHECK(std::abs(static_cast<double>(y[i]) - exact) <= 5e-6 * std::abs(exact));
      CHECK(std::abs(static_cast<double>(d[i]) - oracle::gelu_derivative(v)) <= 1e-6);
    }
  }
}

TEST_CASE("gelu at the edges of the format") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float big = std::numeric_limits<float>::max(), tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<float> x = {0.0f, -0.0f, 1e4f, -1e4f, 1e19f, -1e19f, big, -big, inf, nan, 1e-30f, -tiny};
  for (Backend* b : backends()) {
    const std::vector<float> y = forward_of(*b, x), d = derivative_of(*b, x);
    CHECK(y[0] == 0);
    CHECK((y[1] == 0 && std::signbit(y[1])));
    CHECK((y[2] == 1e4f && y[4] == 1e19f && y[6] == big && y[8] == inf));
    CHECK((y[3] == 0 && y[5] == 0 && y[7] == 0));
    CHECK(std::isnan(y[9]));
    CHECK(y[10] == 5e-31f);
    CHECK((d[0] == 0.5f && d[1] == 0.5f && d[10] == 0.5f && d[11] == 0.5f));
    CHECK((d[2] == 1 && d[4] == 1 && d[6] == 1 && d[8] == 1));
    for (const int i : {3, 5, 7}) CHECK(std::abs(d[static_cast<std::size_t>(i)]) < 1e-34f);
    CHECK(std::isnan(d[9]));
  }
}

TEST_CASE("gelu has the same bits on any number of threads and any instruction set") {
  check_same_bits_everywhere([](Backend& b) {
    const Sizes s{777, 53};
    DeviceArray<float> x(b, random_values<float>(s.N * s.F, 1, 5), {s.N, s.F}), y(b, {s.N, s.F});
    DeviceArray<bf16> hx(b, random_values<bf16>(s.N * s.F, 1, 5), {s.N, s.F}), hy(b, {s.N, s.F});
    b.run(ActivationForward{.x = x.tensor, .y = {.t = y.tensor}});
    b.run(ActivationForward{.x = hx.tensor, .y = {.t = hy.tensor}});
    const Result<float> f = run_backward<float>(b, s, true, true, true);
    const Result<bf16> h = run_backward<bf16>(b, s, true, true, true);
    return bits_of(y.read()) + bits_of(hy.read()) + bits_of(f.dx) + bits_of(f.dbias) + bits_of(h.dx) +
           bits_of(h.dbias);
  });
}
