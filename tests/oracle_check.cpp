// oracle_check.cpp - judges the judge: the oracle's gradient against finite differences, and everything it
// says against PyTorch's golden files.
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "golden.h"
#include "oracle_model.h"

namespace octavo::testing {
namespace {

struct Problem {
  ModelShape shape;
  ParameterTable table;
  std::vector<double> weights;
  OracleBatch batch;
};

Problem make_problem(bool tied, std::int64_t kv_heads) {
  Problem p;
  p.shape = {.layers = 2,
             .channels = 16,
             .heads = 2,
             .kv_heads = kv_heads,
             .context = 9,
             .vocab = 13,
             .padded_vocab = kVocabPadding,
             .tied = tied};
  p.table = make_parameter_table(p.shape);
  std::mt19937_64 generator(7);
  std::normal_distribution<double> normal;
  p.weights.resize(static_cast<std::size_t>(p.table.arena_size));
  for (const Parameter& q : p.table.parameters)
    for (std::int64_t j = 0; j < q.saved_rows * q.cols; ++j)
      p.weights[static_cast<std::size_t>(q.offset + j)] =
          (q.init == Init::one ? 1.0 : 0.0) + 0.3 * normal(generator);
  p.batch = {.B = 2, .T = 7, .tokens = {}, .targets = {}, .samples = {5, 11}};
  std::uniform_int_distribution<std::int32_t> token(0, 12);
  for (int i = 0; i < 14; ++i) {
    p.batch.tokens.push_back(token(generator));
    p.batch.targets.push_back(i % 5 == 3 ? -1 : token(generator));
  }
  return p;
}

/// Slope of the loss along `direction`, by the central difference of fourth order.
double slope(const Problem& p, const std::vector<double>& direction, double grad_scale,
             const OracleDropout& dropout) {
  const auto loss = [&](double distance) {
    std::vector<double> w = p.weights;
    for (std::size_t i = 0; i < w.size(); ++i) w[i] += distance * direction[i];
    return run_oracle(p.shape, p.table, w, p.batch, 1, dropout).loss_sum * grad_scale;
  };
  const double h = 1e-3;
  return (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h);
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// One random direction in each parameter alone: a small gradient cannot hide behind a large one.
void check_against_differences(const Problem& p, const OracleDropout& dropout) {
  const double grad_scale = 1.0 / 11;
  const OracleResult r = run_oracle(p.shape, p.table, p.weights, p.batch, grad_scale, dropout);
  REQUIRE(r.counted == 11);
  std::mt19937_64 generator(3);
  std::normal_distribution<double> normal;
  for (const Parameter& q : p.table.parameters) {
    std::vector<double> direction(p.weights.size());
    double length = 0;
    for (std::int64_t j = 0; j < q.size(); ++j) {
      double& d = direction[static_cast<std::size_t>(q.offset + j)];
      d = normal(generator);
      length += d * d;
    }
    for (double& d : direction) d /= std::sqrt(length);
    const double expected = slope(p, direction, grad_scale, dropout), found = dot(r.gradients, direction);
    INFO(q.name << ": gradient " << found << ", finite difference " << expected);
    CHECK(std::abs(expected) > 1e-5);
    CHECK(std::abs(found - expected) <= 1e-7 * std::abs(expected));
  }
}

std::vector<double> widen(const std::vector<float>& v) {
  return {v.begin(), v.end()};
}

}  // namespace

TEST_CASE("the oracle's gradients are the slopes of its loss", "[oracle]") {
  check_against_differences(make_problem(true, 2), {});
  check_against_differences(make_problem(false, 2), {});
  check_against_differences(make_problem(true, 1), {});
}

TEST_CASE("the oracle's gradients are the slopes of its loss under dropout", "[oracle]") {
  const Problem p = make_problem(true, 2);
  const OracleDropout dropout{.p = 0.2f, .seed = 9, .step = 4};
  check_against_differences(p, dropout);

  const auto loss = [&](const OracleBatch& batch, const OracleDropout& d) {
    return run_oracle(p.shape, p.table, p.weights, batch, 1, d).loss_sum;
  };
  const double base = loss(p.batch, dropout);
  CHECK(base == loss(p.batch, dropout));
  CHECK(base != loss(p.batch, {}));
  CHECK(base != loss(p.batch, {.p = 0.2f, .seed = 10, .step = 4}));
  CHECK(base != loss(p.batch, {.p = 0.2f, .seed = 9, .step = 5}));
  OracleBatch moved = p.batch;
  moved.samples[1] = 12;
  CHECK(base != loss(moved, dropout));
}

TEST_CASE("a key's bias changes no loss", "[oracle]") {
  const Problem p = make_problem(true, 2);
  const OracleResult r = run_oracle(p.shape, p.table, p.weights, p.batch, 1);
  const Parameter& bias = p.table[p.table.layers[1].qkv_bias];
  const std::int64_t C = p.shape.channels;
  for (std::int64_t j = 0; j < 3 * C; ++j) {
    const double g = r.gradients[static_cast<std::size_t>(bias.offset + j)];
    INFO("element " << j << ": " << g);
    if (j >= C && j < 2 * C)
      CHECK(std::abs(g) < 1e-14);
    else
      CHECK(std::abs(g) > 1e-7);
  }
}

TEST_CASE("the oracle agrees with PyTorch on loss, logits and every gradient", "[oracle]") {
  for (const std::string& name : kGoldenNames) {
    const Golden g = load_golden(name);
    INFO(name);
    const double scale = 1.0 / static_cast<double>(g.counted(0));
    const OracleResult r = run_oracle(g.shape, g.table, widen(g.weights), g.batches[0], scale);
    CHECK(r.counted == g.counted(0));
    CHECK(std::abs(r.loss_sum * scale - g.loss[0]) <= 1e-12 * g.loss[0]);

    const std::size_t V = static_cast<std::size_t>(g.shape.vocab);
    for (std::size_t i = 0; i < g.logit_rows.size(); ++i)
      for (std::size_t v = 0; v < V; ++v) {
        const double logit = r.logits[static_cast<std::size_t>(g.logit_rows[i]) * V + v];
        REQUIRE(std::abs(logit - static_cast<double>(g.logits[i * V + v])) <= 1e-7 * (1 + std::abs(logit)));
      }
    // Golden gradients are stored as f32: 2^-24 of each, or of the largest where rounding in double shows.
    for (const Parameter& p : g.table.parameters) {
      double largest = 0, worst = 0;
      for (std::int64_t j = 0; j < p.size(); ++j) {
        const std::size_t k = static_cast<std::size_t>(p.offset + j);
        largest = std::max(largest, std::abs(r.gradients[k]));
        worst = std::max(worst, std::abs(r.gradients[k] - static_cast<double>(g.gradients[k])));
      }
      INFO(p.name << ": off by " << worst << ", largest " << largest);
      CHECK(largest > 1e-5);
      CHECK(worst <= 1e-7 * largest);
    }
  }
}

TEST_CASE("the oracle's AdamW follows PyTorch's for ten steps", "[oracle]") {
  for (const std::string& name : kGoldenNames) {
    const Golden g = load_golden(name);
    std::vector<double> w = widen(g.weights);
    OracleAdamW optimizer = g.optimizer;
    for (std::size_t i = 0; i < g.loss.size(); ++i) {
      const double scale = 1.0 / static_cast<double>(g.counted(i));
      const OracleResult r = run_oracle(g.shape, g.table, w, g.batch(i), scale);
      INFO(name << ", step " << i + 1);
      CHECK(std::abs(r.loss_sum * scale - g.loss[i]) <= 1e-9 * g.loss[i]);
      const double norm = optimizer.update(g.table, w, r.gradients, static_cast<double>(g.lr[i]));
      CHECK(std::abs(norm - g.grad_norm[i]) <= 1e-9 * norm);
    }
    CHECK(g.loss.back() < 0.8 * g.loss.front());  // or else the losses would not notice a wrong update
    for (std::size_t i = 0; i < g.final_weights.size(); ++i)
      REQUIRE(std::abs(w[i] - static_cast<double>(g.final_weights[i])) <= 1e-7 * (1 + std::abs(w[i])));
  }
}

}  // namespace octavo::testing
