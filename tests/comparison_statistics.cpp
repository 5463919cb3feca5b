// Trailing means, training time, quartiles and the rule of convergence, held to numbers computed by hand.
#include "comparison_statistics.h"

#include <cmath>
#include <vector>

#include "catch.h"

using namespace octavo;

namespace {

const double kNan = std::nan("");

std::vector<StepRecord> rows(const std::vector<double>& losses, std::int64_t log_every = 1) {
  std::vector<StepRecord> records;
  for (const double loss : losses) {
    StepRecord r;
    r.step = log_every * static_cast<std::int64_t>(records.size() + 1);
    r.loss = loss;
    records.push_back(r);
  }
  return records;
}

/// Losses of seeds 1, 2, ... that lie the given percentages above baselines of 2, 4, 8, ...
std::optional<LossGap> gap_of(const std::vector<double>& percent) {
  std::map<std::int64_t, double> run, base;
  double loss = 1;
  for (std::size_t i = 0; i < percent.size(); ++i) {
    base[static_cast<std::int64_t>(i)] = loss *= 2;
    run[static_cast<std::int64_t>(i)] = loss * (1 + percent[i] / 100);
  }
  return paired_gap(run, base);
}

Judgement judged(const std::vector<double>& percent) {
  return judge(gap_of(percent).value());
}

}  // namespace

TEST_CASE("statistics: means, errors and quartiles") {
  CHECK(estimate({2, 4, 9}).mean == Approx(5));
  // Deviations 3, 1, 4: squares 26, over 2 is 13.
  CHECK(*sample_deviation({2, 4, 9}) == Approx(std::sqrt(13.0)));
  CHECK(*estimate({2, 4, 9}).standard_error == Approx(std::sqrt(13.0 / 3)));
  CHECK_FALSE(estimate({7}).standard_error);
  const Quartiles q = quartiles({40, 10, 30, 20});  // at places 0.75, 1.5 and 2.25 of 10 20 30 40
  CHECK(q.low == Approx(17.5));
  CHECK(q.median == Approx(25));
  CHECK(q.high == Approx(32.5));
  CHECK(quartiles({3}).high == 3);
  CHECK(std::isnan(quartiles({}).median));
}

TEST_CASE("statistics: the trailing mean covers 100 steps, of shorter runs a tenth") {
  CHECK(trailing_span(1) == 1);
  CHECK(trailing_span(30) == 3);
  CHECK(trailing_span(31) == 4);
  CHECK(trailing_span(999) == 100);
  CHECK(trailing_span(50000) == 100);

  std::vector<double> losses;
  for (int i = 1; i <= 30; ++i) losses.push_back(i * i);
  const std::vector<double> means = trailing_means(rows(losses));
  CHECK(means[0] == 1);
  CHECK(means[1] == Approx(2.5));
  CHECK(means[29] == Approx((28 * 28 + 29 * 29 + 30 * 30) / 3.0));
  losses[28] = kNan;
  CHECK(trailing_means(rows(losses))[29] == Approx((28 * 28 + 30 * 30) / 2.0));
  losses[27] = losses[29] = kNan;
  CHECK(std::isnan(trailing_means(rows(losses))[29]));
  // Every tenth step logged, 1000 steps: the last 100 steps are ten rows.
  std::vector<double> ramp;
  for (int i = 1; i <= 100; ++i) ramp.push_back(i);
  CHECK(trailing_means(rows(ramp, 10)).back() == Approx(95.5));
}

TEST_CASE("statistics: training time counts steps that were not logged") {
  std::vector<StepRecord> records = rows({1, 1, 1}, 4);
  records[0].step_ms = 100;
  records[1].step_ms = 50;
  records[2].step_ms = kNan;
  CHECK(training_seconds(records) == std::vector<double>{0.4, 0.4 + 0.2, 0.4 + 0.2});
}

TEST_CASE("statistics: a curve at a time, and the time of a value") {
  const std::vector<double> t{1, 2, 4}, v{8, 6, 3};
  CHECK(value_at(t, v, 0.5) == 8);
  CHECK(value_at(t, v, 2) == 6);
  CHECK(value_at(t, v, 3) == Approx(4.5));
  CHECK(value_at(t, v, 9) == 3);
  CHECK(*first_time_at(t, v, 9) == 1);
  CHECK(*first_time_at(t, v, 7) == Approx(1.5));
  CHECK(*first_time_at(t, v, 3) == Approx(4));
  CHECK_FALSE(first_time_at(t, v, 2.9));
  CHECK(*first_time_at(t, {kNan, 6, 3}, 6.5) == 2);
  CHECK(*first_time_at({1, 2, 3, 4}, {8, 2, 8, 1}, 2) == 2);  // the first time counts
}

TEST_CASE("statistics: gaps are paired by seed, so that what a seed does to both cancels") {
  const LossGap gap = gap_of({1, 2, 6}).value();
  CHECK(gap.pairs == 3);
  CHECK(gap.nats.mean == Approx((0.02 + 0.08 + 0.48) / 3));
  CHECK(gap.percent.mean == Approx(3));
  CHECK(*gap.percent.standard_error == Approx(std::sqrt(7.0 / 3)));  // deviations 2, 1, 3: 14 / 2 = 7
  // A seed that only one side has does not count; the baselines differ by far more than the gap.
  const LossGap some = paired_gap({{1, 2.2}, {2, 9.9}, {4, 1}}, {{1, 2}, {2, 9}, {3, 1}}).value();
  CHECK(some.pairs == 2);
  CHECK(some.percent.mean == Approx(10));
  const LossGap none = paired_gap({{1, 3}}, {{2, 2}, {3, 4}}).value();
  CHECK(none.pairs == 0);
  CHECK(none.nats.mean == 0);
  CHECK_FALSE(none.nats.standard_error);
  CHECK_FALSE(paired_gap({}, {{1, 2}}));
  CHECK_FALSE(paired_gap({{1, 2}}, {{1, kNan}}));
}

TEST_CASE("statistics: the rule of convergence can pass, fail and be short of seeds") {
  CHECK(judged({0.2, 0.1, 0.3}).verdict == Verdict::inside);   // 0.2 on average, error 0.06
  CHECK(judged({-3, -3, -3}).verdict == Verdict::inside);      // lower is no loss of convergence
  CHECK(judged({0.3, 0.3, 0.3}).verdict == Verdict::outside);  // over 0.25, without any noise
  CHECK(judged({1, 2, 1.5}).verdict == Verdict::outside);      // error 0.29, but over two of them
  CHECK(judged({0.1, kNan, 0.1}).verdict == Verdict::outside);
  CHECK(judged({INFINITY}).verdict == Verdict::outside);

  const Judgement noisy = judged({-1, 0, 1});  // deviation 1: the error is 0.25 with 16 seeds
  CHECK(noisy.verdict == Verdict::unresolved);
  CHECK(noisy.pairs_needed == 16);
  for (const std::vector<double>& few : {std::vector<double>{0}, std::vector<double>{40, 41}}) {
    CHECK(judged(few).verdict == Verdict::unresolved);
    CHECK(judged(few).pairs_needed == 3);
  }
  CHECK(judged({0.1, 0.2, 0.1}).pairs_needed == 0);
}

TEST_CASE("statistics: a gap of up to two standard errors is inside where the error is small enough") {
  // 0.1, 0.3, 0.8: mean 0.4, deviations -0.3, -0.1, 0.4, so the error is sqrt(0.13 / 3) = 0.208.
  CHECK(judged({0.1, 0.3, 0.8}).verdict == Verdict::inside);
  // 0.35, 0.4, 0.45: the same mean, error 0.029.
  CHECK(judged({0.35, 0.4, 0.45}).verdict == Verdict::outside);
}
