// bf16 conversion: every value, every tie, NaN, overflow, denormals; and copies of all sizes.
#include <cmath>
#include <cstring>
#include <limits>

#include "backend.h"
#include "backends.h"
#include "catch.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

template <typename X, typename Y>
std::vector<Y> cast_all(Backend& b, const std::vector<X>& x) {
  const std::int64_t n = static_cast<std::int64_t>(x.size());
  DeviceArray<X> dx(b, x, {n}, "x");
  DeviceArray<Y> dy(b, {n}, "y");
  b.run(Cast{.x = dx.tensor, .y = {.t = dy.tensor}});
  CHECK(bits_of(dx.read()) == bits_of(x));
  return dy.read();
}

float from_bits(std::uint32_t u) {
  return std::bit_cast<float>(u);
}
std::uint16_t cast_bits(Backend& b, float x) {
  return cast_all<float, bf16>(b, {x})[0].bits;
}

std::vector<bf16> all_values() {
  std::vector<bf16> v;
  for (std::uint32_t u = 0; u < 65536; ++u) v.push_back({static_cast<std::uint16_t>(u)});
  return v;
}
bool is_nan(bf16 v) {
  return (v.bits & 0x7fff) > 0x7f80;
}

}  // namespace

TEST_CASE("all 65536 bf16 values widen exactly and come back") {
  for (Backend* b : backends()) {
    const std::vector<bf16> all = all_values();
    const std::vector<float> wide = cast_all<bf16, float>(*b, all);
    const std::vector<bf16> back = cast_all<float, bf16>(*b, wide);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (is_nan(all[i])) {
        if (!std::isnan(wide[i]) || !is_nan(back[i])) FAIL("NaN " << i << " was lost");
        continue;
      }
      if (std::bit_cast<std::uint32_t>(wide[i]) != static_cast<std::uint32_t>(i) << 16 || back[i].bits != i)
        FAIL("value " << i << " came back as " << back[i].bits);
    }
  }
}

TEST_CASE("ties go to the even neighbour, everything else to the nearest") {
  for (Backend* b : backends()) {
    std::vector<float> x;
    std::vector<std::uint16_t> expected;
    for (std::uint32_t high = 0; high < 65536; ++high) {
      if ((high & 0x7f80) == 0x7f80) continue;  // infinities and NaN
      const std::uint32_t base = high << 16;
      for (const std::uint32_t low : {0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        x.push_back(from_bits(base | low));
        const bool up = low > 0x8000u || (low == 0x8000u && (high & 1u) == 1u);
        expected.push_back(static_cast<std::uint16_t>(high + (up ? 1 : 0)));
      }
    }
    const std::vector<bf16> got = cast_all<float, bf16>(*b, x);
    for (std::size_t i = 0; i < x.size(); ++i)
      if (got[i].bits != expected[i]) FAIL(x[i] << " became " << got[i].bits << ", not " << expected[i]);
  }
}

TEST_CASE("overflow rounds to infinity, NaN stays NaN whatever its payload") {
  for (Backend* b : backends()) {
    CHECK(cast_bits(*b, std::numeric_limits<float>::max()) == 0x7f80);
    CHECK(cast_bits(*b, std::numeric_limits<float>::lowest()) == 0xff80);
    CHECK(cast_bits(*b, from_bits(0x7f7f7fff)) == 0x7f7f);
    CHECK(cast_bits(*b, std::numeric_limits<float>::infinity()) == 0x7f80);
    for (const std::uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fc00000u, 0x7fffffffu, 0xffffffffu})
      CHECK(is_nan({cast_bits(*b, from_bits(nan))}));
    CHECK((cast_bits(*b, from_bits(0xff800001u)) & 0x8000) != 0);  // with its sign
  }
}

TEST_CASE("casts of any size write what they should and nothing else, in all four directions") {
  for (Backend* b : backends())
    for (const std::int64_t n : {1, 15, 16, 17, 100, 70001}) {
      const std::vector<float> x = random_values<float>(n, 1, 100);
      const std::vector<bf16> h = random_values<bf16>(n, 2, 100);
      std::vector<bf16> rounded;
      for (const float v : x) rounded.push_back(to_bf16(v));
      std::vector<float> widened;
      for (const bf16 v : h) widened.push_back(to_float(v));
      CHECK(bits_of(cast_all<float, float>(*b, x)) == bits_of(x));
      CHECK(bits_of(cast_all<bf16, bf16>(*b, h)) == bits_of(h));
      CHECK(bits_of(cast_all<float, bf16>(*b, x)) == bits_of(rounded));
      CHECK(bits_of(cast_all<bf16, float>(*b, h)) == bits_of(widened));
    }
}

TEST_CASE("casts have the same bits on any number of threads and any instruction set") {
  check_same_bits_everywhere([](Backend& b) {
    std::vector<float> x = random_values<float>(70001, 3, 1e3);
    x[5] = from_bits(0x7f800001u);
    x[6] = std::numeric_limits<float>::max();
    return bits_of(cast_all<float, bf16>(b, x)) + bits_of(cast_all<bf16, float>(b, all_values()));
  });
}
