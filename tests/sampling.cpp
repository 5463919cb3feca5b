#include "sampling.h"

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "catch.h"
#include "error.h"

using namespace octavo;

namespace {

std::map<int, int> draws(const std::vector<float>& logits, const SamplingOptions& options, int n) {
  std::map<int, int> count;
  for (int i = 0; i < n; ++i) ++count[sample_token(logits, options, static_cast<std::uint64_t>(i))];
  return count;
}

const std::vector<float> kLogits = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};

}  // namespace

TEST_CASE("greedy takes the largest logit, the smaller id on a tie") {
  SamplingOptions o;
  o.temperature = 0;
  CHECK(sample_token(kLogits, o, 0) == 1);
  CHECK(sample_token(std::vector<float>{1, 3, 3, 2}, o, 5) == 1);
}

TEST_CASE("frequencies follow the softmax") {
  const int n = 20000;
  const std::map<int, int> count = draws(kLogits, {}, n);
  const double p[] = {0.1, 0.4, 0.2, 0.3};
  for (int i = 0; i < 4; ++i)  // five standard deviations
    CHECK(std::abs(count.at(i) - n * p[i]) < 5 * std::sqrt(n * p[i] * (1 - p[i])));
}

TEST_CASE("temperature sharpens as p^(1/temperature)") {
  SamplingOptions o;
  o.temperature = 0.5;
  const int n = 20000;
  const std::map<int, int> count = draws(kLogits, o, n);
  const double p = 0.16 / (0.01 + 0.16 + 0.04 + 0.09);
  CHECK(std::abs(count.at(1) - n * p) < 5 * std::sqrt(n * p * (1 - p)));
}

TEST_CASE("top-k and top-p cut the tail") {
  SamplingOptions o;
  o.top_k = 2;
  CHECK(draws(kLogits, o, 2000).size() == 2);
  o.top_k = 1;
  CHECK(draws(kLogits, o, 100) == std::map<int, int>{{1, 100}});
  o = {};
  o.top_p = 0.65;  // 0.4 + 0.3 reach it
  const std::map<int, int> count = draws(kLogits, o, 2000);
  CHECK(count.size() == 2);
  CHECK(count.count(3) == 1);
  o.top_p = 0.01;
  CHECK(draws(kLogits, o, 100) == std::map<int, int>{{1, 100}});
}

TEST_CASE("a draw depends on seed and index alone") {
  SamplingOptions a, b;
  b.seed = 2;
  int different = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    CHECK(sample_token(kLogits, a, i) == sample_token(kLogits, a, i));
    different += sample_token(kLogits, a, i) != sample_token(kLogits, b, i);
  }
  CHECK(different > 50);
}

TEST_CASE("non-finite logits are never drawn") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(draws({nan, 1.0f, inf, -inf}, {}, 100) == std::map<int, int>{{1, 100}});
  CHECK_THROWS_AS(sample_token(std::vector<float>{nan, nan}, {}, 0), RunError);
}
