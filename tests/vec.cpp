// The vector functions: accuracy as stated, special values, and equal bits on every instruction set.
#include "cpu/vec.h"

#include <cmath>
#include <limits>
#include <vector>

#include "backends.h"
#include "catch.h"

using namespace octavo;
using namespace octavo::cpu;

namespace {

struct Exp {
  template <int W>
  static OCTAVO_INLINE void run(const float* x, float* y, std::int64_t n) {
    chunks(n, [&](std::int64_t i, auto count)
                  OCTAVO_INLINE_LAMBDA { store(y + i, exp(load<W>(x + i, count)), count); });
  }
};
struct Sqrt {
  template <int W>
  static OCTAVO_INLINE void run(const float* x, float* y, std::int64_t n) {
    chunks(n, [&](std::int64_t i, auto count)
                  OCTAVO_INLINE_LAMBDA { store(y + i, sqrt(load<W>(x + i, count)), count); });
  }
};
/// y = x where x > 0.5, else -1.
struct Choose {
  template <int W>
  static OCTAVO_INLINE void run(const float* x, float* y, std::int64_t n) {
    chunks(n, [&](std::int64_t i, auto count) OCTAVO_INLINE_LAMBDA {
      const Floats<W> v = load<W>(x + i, count);
      store(y + i, select(greater(v, Floats<W>::broadcast(0.5f)), v, Floats<W>::broadcast(-1.0f)), count);
    });
  }
};
struct SumAndMax {
  template <int W>
  static OCTAVO_INLINE void run(const float* x, float* y) {
    y[0] = sum_of(load<W>(x));
    y[1] = max_of(load<W>(x));
  }
};

template <class Kernel>
std::vector<float> apply(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  dispatch<Kernel>(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  return y;
}

template <typename F>
void with_each_instruction_set(F f) {
  const InstructionSet best = native_instruction_set();
  for (const auto set : {InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512}) {
    if (set > best) continue;
    limit_instruction_set(set);
    INFO(name_of(set));
    f();
  }
  limit_instruction_set(best);
}

}  // namespace

TEST_CASE("exp is within two units in the last place, and gradual below the normal numbers") {
  std::vector<float> x;
  for (float v = -103.5f; v < 88.7f; v += 0.00137f) x.push_back(v);
  for (std::uint32_t bits = 0x2f000000u; bits < 0x42b00000u; bits += 3001) {  // 1e-10 to 88, both signs
    x.push_back(std::bit_cast<float>(bits));
    x.push_back(-std::bit_cast<float>(bits));
  }
  with_each_instruction_set([&] {
    const std::vector<float> y = apply<Exp>(x);
    double worst = 0, worst_denormal = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i])),
                   error = std::abs(static_cast<double>(y[i]) - exact);
      if (exact < 0x1p-126) {
        worst_denormal = std::max(worst_denormal, error / 0x1p-149);
      } else {
        int e = 0;
        std::frexp(exact, &e);
        worst = std::max(worst, error / std::ldexp(1.0, e - 24));
      }
    }
    CHECK(worst < 2);
    CHECK(worst > 0.4);  // the measure itself works
    CHECK(worst_denormal <= 1);
  });
}

TEST_CASE("exp of special values") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  with_each_instruction_set([&] {
    const std::vector<float> y =
        apply<Exp>({0.0f, -0.0f, inf, -inf, nan, -nan, 88.73f, 89.0f, 1e30f, -104.5f, -1e30f});
    CHECK((y[0] == 1 && y[1] == 1));
    CHECK((y[2] == inf && y[6] == inf && y[7] == inf && y[8] == inf));
    CHECK((y[3] == 0 && y[9] == 0 && y[10] == 0));
    CHECK((std::isnan(y[4]) && std::isnan(y[5])));
  });
}

TEST_CASE("exp has the same bits on every instruction set") {
  std::vector<float> x, first;
  for (float v = -110; v < 95; v += 0.0031f) x.push_back(v);
  with_each_instruction_set([&] {
    const std::vector<float> y = apply<Exp>(x);
    if (first.empty()) first = y;
    CHECK(testing::bits_of(y) == testing::bits_of(first));
  });
}

TEST_CASE("square roots are correctly rounded") {
  const std::vector<float> x = testing::random_values<float>(1000, 3, 1e5);
  std::vector<float> positive, expected;
  for (const float v : x) positive.push_back(std::abs(v)), expected.push_back(std::sqrt(std::abs(v)));
  with_each_instruction_set([&] { CHECK(apply<Sqrt>(positive) == expected); });
}

TEST_CASE("lanes are chosen by comparison, NaN never being greater") {
  std::vector<float> x = testing::random_values<float>(100, 6), expected;
  x[3] = std::nanf(""), x[40] = 0.5f, x[41] = std::numeric_limits<float>::infinity();
  for (const float v : x) expected.push_back(v > 0.5f ? v : -1.0f);
  with_each_instruction_set([&] { CHECK(apply<Choose>(x) == expected); });
}

TEST_CASE("lanes are summed in one order on every instruction set") {
  const std::vector<float> x = testing::random_values<float>(16, 4, 1e3);
  float half[8], quarter[4];
  for (std::size_t i = 0; i < 8; ++i) half[i] = x[i] + x[i + 8];
  for (std::size_t i = 0; i < 4; ++i) quarter[i] = half[i] + half[i + 4];
  const float sum = (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
  with_each_instruction_set([&] {
    float y[2] = {};
    dispatch<SumAndMax>(x.data(), static_cast<float*>(y));
    CHECK(y[0] == sum);
    CHECK(y[1] == *std::max_element(x.begin(), x.end()));
  });
}

TEST_CASE("log_of is a logarithm") {
  for (double x = 1e-300; x < 1e300; x *= 1.37)
    CHECK(std::abs(log_of(x) - std::log(x)) <= 1e-15 * std::max(1.0, std::abs(std::log(x))));
  for (double x = 0.5; x < 2; x += 0.001) CHECK(std::abs(log_of(x) - std::log(x)) <= 1e-15);
  CHECK(log_of(1) == 0);
  CHECK(log_of(0) == -std::numeric_limits<double>::infinity());
  CHECK(log_of(std::numeric_limits<double>::infinity()) == std::numeric_limits<double>::infinity());
  CHECK(std::isnan(log_of(std::nan(""))));
  CHECK(std::isnan(log_of(-1)));
}

TEST_CASE("the instruction set can be limited and not raised") {
  const InstructionSet best = native_instruction_set();
  limit_instruction_set(InstructionSet::baseline);
  CHECK(instruction_set() == InstructionSet::baseline);
  limit_instruction_set(InstructionSet::avx512);
  CHECK(instruction_set() == best);
}
