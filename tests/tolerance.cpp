// The comparer against bad data: each kind of fault must be seen, and each good value pass.
#include "tolerance.h"

#include <cmath>
#include <limits>

#include "catch.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

Reference reference() {
  return {{1.0, -2.0, 0.0, 1000.0, -0.25}, 1000.0};
}
std::vector<float> good() {
  return {1.0f, -2.0f, 0.0f, 1000.0f, -0.25f};
}

}  // namespace

TEST_CASE("the tolerance is its formula") {
  const double u = std::ldexp(1.0, -24), tiny = 1000 * std::ldexp(1.0, -149);
  CHECK(tolerance(3.0, 0.0, {}) == Approx(3 * u + tiny).epsilon(1e-12));
  CHECK(tolerance(-3.0, 5.0, {.terms = 100, .operations = 2}) ==
        Approx(3 * u + 5 * 4 * 12 * u).epsilon(1e-12));
  CHECK(tolerance(1.0, 0.0, {.stored = DType::bf16}) == Approx(std::ldexp(1.0, -8)).epsilon(1e-12));
  CHECK(tolerance(0.0, 1.0, {.terms = 0, .operations = 0, .inner = DType::bf16}) ==
        Approx(std::ldexp(1.0, -7)).epsilon(1e-12));
  CHECK_THROWS_AS(unit_roundoff(DType::i32), std::logic_error);
}

TEST_CASE("what is right passes, and so does what is barely within the tolerance") {
  CHECK(mismatch(good(), reference(), {}) == "");
  const double allowed = tolerance(-2.0, 1000.0, {});
  for (double sign : {-1.0, 1.0}) {
    std::vector<double> v = reference().value;
    v[1] += sign * 0.999 * allowed;
    CHECK(mismatch(v, reference(), {}) == "");
    v[1] = -2.0 + sign * 1.001 * allowed;
    CHECK_THAT(mismatch(v, reference(), {}), ContainsSubstring("[1]") && ContainsSubstring("allowed"));
  }
}

TEST_CASE("NaN and infinity never pass") {
  for (const double bad : {kNan, -kNan, kInf, -kInf}) {
    for (std::size_t i = 0; i < 5; ++i) {
      std::vector<float> v = good();
      v[i] = static_cast<float>(bad);
      CHECK_THAT(mismatch(v, reference(), {}), ContainsSubstring("[" + std::to_string(i) + "] is"));
      Reference r = reference();
      r.value[i] = bad;
      CHECK_THAT(mismatch(good(), r, {}), ContainsSubstring("reference[" + std::to_string(i) + "]"));
      CHECK(mismatch(v, r, {}) != "");  // not even where both are NaN
    }
    Reference r = reference();
    r.norm = bad;
    CHECK_THAT(mismatch(good(), r, {}), ContainsSubstring("norm"));
  }
}

TEST_CASE("sign flips, large differences either way, shifts and wrong sizes are seen") {
  const Reference r{{1.0, -2.0, 0.5}, 2.0};
  CHECK(mismatch(std::vector<float>{1.0f, 2.0f, 0.5f}, r, {}) != "");
  CHECK(mismatch(std::vector<float>{-1.0f, -2.0f, 0.5f}, r, {}) != "");
  CHECK(mismatch(std::vector<float>{1.0f, -1e30f, 0.5f}, r, {}) != "");
  CHECK(mismatch(std::vector<float>{1e30f, -2.0f, 0.5f}, r, {}) != "");
  CHECK(mismatch(std::vector<float>{-2.0f, 0.5f, 1.0f}, r, {}) != "");
  CHECK(mismatch(std::vector<float>{0.0f, 0.0f, 0.0f}, r, {}) != "");
  CHECK_THAT(mismatch(std::vector<float>{1.0f, -2.0f}, r, {}), ContainsSubstring("2 values"));
  CHECK_THAT(mismatch(std::vector<float>{1.0f, -2.0f, 0.5f, 0.0f}, r, {}), ContainsSubstring("4 values"));
  CHECK_THAT(mismatch(std::vector<float>{}, r, {}), ContainsSubstring("0 values"));
}

TEST_CASE("a reference of nothing but zeros, or of nothing, proves nothing") {
  CHECK_THAT(mismatch(std::vector<float>{0, 0}, Reference{{0, 0}, 1}, {}),
             ContainsSubstring("zero throughout"));
  CHECK_THAT(mismatch(std::vector<float>{}, Reference{{}, 1}, {}), ContainsSubstring("zero throughout"));
  CHECK_THAT(mismatch(std::vector<float>{1}, Reference{{1}, 0}, {}), ContainsSubstring("norm"));
}

TEST_CASE("a bf16 result may err by its rounding and no more") {
  const Reference r{{1.0}, 1.0};
  const Rounding rounding{.stored = DType::bf16};
  CHECK(mismatch(std::vector<bf16>{to_bf16(1.0f)}, r, rounding) == "");
  CHECK(mismatch(std::vector<bf16>{to_bf16(1.0f + 0x1p-7f)}, r, rounding) != "");  // the next bf16
  CHECK(mismatch(std::vector<bf16>{to_bf16(1.0f - 0x1p-7f)}, r, rounding) != "");  // the second before
}

TEST_CASE("the worst element is the one reported") {
  const Reference r{{1.0, 1.0, 1.0}, 1.0};
  CHECK_THAT(mismatch(std::vector<float>{1.1f, 3.0f, 1.2f}, r, {}), ContainsSubstring("[1] is 3"));
}
