// model.cpp - judges the model: against PyTorch's golden files, against the double-precision
// oracle, and against itself (recomputation, micro-batches, evaluation, threads).
#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <omp.h>
#include <span>
#include <string>
#include <vector>

#include "backends.h"
#include "catch.h"
#include "golden.h"
#include "oracle_model.h"
#include "tolerance.h"

namespace octavo::testing {
namespace {

struct Setting {
  DType act = DType::f32;
  Recompute recompute = Recompute::none;
  float dropout = 0;
  bool training = true;
  std::int64_t head_rows = 0;
};
constexpr std::uint64_t kDropoutSeed = 77;

/// The product's model, as a trainer drives it.
class Subject {
 public:
  Subject(Backend& backend, const Golden& g, std::int64_t B, std::int64_t T, const Setting& s)
      : golden_(g),
        backend_(backend),
        model_(backend, {.shape = g.shape,
                         .act = s.act,
                         .B = B,
                         .T = T,
                         .recompute = s.recompute,
                         .training = s.training,
                         .dropout = static_cast<double>(s.dropout),
                         .dropout_seed = kDropoutSeed,
                         .head_rows = s.head_rows}) {
    REQUIRE(model_.table().arena_size == g.table.arena_size);
    backend_.copy_to_device(model_.masters().data, g.weights.data(), model_.masters().bytes());
    model_.refresh_working(/*record=*/true);
  }

  void begin(std::int64_t step, float lr, std::int64_t counted) {
    StepState s = state();
    s = {.step = step,
         .lr = lr,
         .grad_scale = static_cast<float>(1.0 / static_cast<double>(counted)),
         .updates = s.updates};
    backend_.copy_to_device(model_.state(), &s, sizeof s);
  }
  void upload(const OracleBatch& b) {
    const Batch& batch = model_.batch();
    REQUIRE(b.tokens.size() * sizeof(std::int32_t) == batch.tokens.bytes());
    backend_.copy_to_device(batch.tokens.data, b.tokens.data(), batch.tokens.bytes());
    backend_.copy_to_device(batch.targets.data, b.targets.data(), batch.targets.bytes());
    backend_.copy_to_device(batch.samples.data, b.samples.data(), batch.samples.bytes());
  }
  void forward_backward(const OracleBatch& b, bool accumulate) {
    upload(b);
    model_.forward(model_.batch(), Model::Pass::train);
    model_.backward(model_.batch(), accumulate);
  }
  void update() {
    const OracleAdamW& o = golden_.optimizer;
    backend_.run(GradientNorm{
        .grad = model_.gradients(), .clip = static_cast<float>(o.clip), .state = model_.state()});
    backend_.run(AdamW{.param = model_.masters(),
                       .grad = model_.gradients(),
                       .m = model_.moment1(),
                       .v = model_.moment2(),
                       .working = model_.working(),
                       .segments = model_.segments(),
                       .beta1 = static_cast<float>(o.beta1),
                       .beta2 = static_cast<float>(o.beta2),
                       .eps = static_cast<float>(o.eps),
                       .weight_decay = static_cast<float>(o.weight_decay),
                       .state = model_.state()});
  }
  std::vector<float> evaluate(const OracleBatch& b) {
    upload(b);
    std::vector<float> losses;
    model_.forward(model_.batch(), Model::Pass::evaluate);
    model_.losses(model_.batch(), losses);
    return losses;
  }

  StepState state() {
    StepState s;
    backend_.copy_to_host(&s, model_.state(), sizeof s);
    return s;
  }
  std::vector<float> read(const Tensor& t) {
    std::vector<float> values(static_cast<std::size_t>(t.numel()));
    backend_.copy_to_host(values.data(), t.data, t.bytes());
    return values;
  }
  std::vector<float> gradients() { return read(model_.gradients()); }
  std::vector<float> weights() { return read(model_.masters()); }
  Model& model() { return model_; }

 private:
  const Golden& golden_;
  Backend& backend_;
  Model model_;
};

/// Gradients of batch 0 in one micro-batch.
struct Outcome {
  StepState state;
  std::vector<float> gradients;
};
Outcome run_batch(Backend& backend, const Golden& g, const Setting& s, std::int64_t step = 1) {
  const OracleBatch& b = g.batches[0];
  Subject subject(backend, g, b.B, b.T, s);
  subject.begin(step, 0, g.counted(0));
  subject.forward_backward(b, false);
  return {subject.state(), subject.gradients()};
}

/// The weights as the products read them: all but those of norms rounded to act.
std::vector<double> as_read(const Golden& g, DType act) {
  std::vector<double> w(g.weights.begin(), g.weights.end());
  if (act == DType::bf16)
    for (const Parameter& p : g.table.parameters)
      for (std::size_t i = static_cast<std::size_t>(p.offset);
           !p.norm && i < static_cast<std::size_t>(p.offset + p.size()); ++i)
        w[i] = static_cast<double>(to_float(to_bf16(g.weights[i])));
  return w;
}

/// Largest relative error allowed of a gradient, in the L2 norm of a parameter. Every operator on the way
/// from the embedding to the loss and back writes its result with a relative error of at most tolerance(1,
/// 1): eight operators a block, three more around them, and as many backward. Their errors are independent,
/// so they add as the root of their number.
double gradient_tolerance(const Golden& g, DType act) {
  const std::int64_t rows = g.batches[0].B * g.batches[0].T;
  const Rounding one{.stored = act, .terms = std::max({g.shape.hidden(), g.shape.vocab, rows}), .inner = act};
  return std::sqrt(2.0 * static_cast<double>(8 * g.shape.layers + 3)) * tolerance(1, 1, one);
}

/// Largest relative error allowed of a mean loss: rounding errors of single logits mostly average out, so one
/// rounding of the format is much; in f32 the sum over rows and vocabulary adds to it.
double loss_tolerance(DType act) {
  return act == DType::f32 ? 1e-6 : unit_roundoff(act);
}

double length(std::span<const double> v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}

/// Empty where `actual` agrees with `expected` in every parameter, else what is wrong. In exact arithmetic
/// the gradient of the key's bias is zero: there the error is held against the whole bias's gradient. Padding
/// and gaps must be zero to the bit.
std::string gradient_mismatch(const Golden& g, std::span<const float> actual,
                              std::span<const double> expected, double allowed) {
  std::string wrong;
  std::vector<bool> covered(actual.size());
  const auto check = [&](const std::string& name, std::int64_t begin, std::int64_t size, double scale) {
    std::vector<double> error;
    for (std::size_t i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(begin + size); ++i) {
      error.push_back(static_cast<double>(actual[i]) - expected[i]);
      covered[i] = true;
    }
    const double off = length(error) / scale;
    if (!(off <= allowed))  // also where it is NaN, or the scale zero
      wrong += name + ": off by " + std::to_string(off) + " of its length, allowed " +
               std::to_string(allowed) + "; ";
  };
  const std::int64_t q = g.shape.channels, kv = g.shape.kv_heads * g.shape.head_size();
  for (const Parameter& p : g.table.parameters) {
    const std::int64_t size = p.saved_rows * p.cols;
    const auto part = [&](std::int64_t from, std::int64_t count) {
      return length(
          expected.subspan(static_cast<std::size_t>(p.offset + from), static_cast<std::size_t>(count)));
    };
    if (p.name.ends_with("qkv.bias")) {
      check(p.name + " (query)", p.offset, q, part(0, q));
      check(p.name + " (key)", p.offset + q, kv, part(0, size));
      check(p.name + " (value)", p.offset + q + kv, kv, part(q + kv, kv));
    } else {
      check(p.name, p.offset, size, part(0, size));
    }
  }
  for (std::size_t i = 0; i < actual.size(); ++i)
    if (!covered[i] && actual[i] != 0) return wrong + "padding element " + std::to_string(i) + " is not zero";
  return wrong;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Sequences [first, first + count) of a batch.
OracleBatch part_of(const OracleBatch& b, std::int64_t first, std::int64_t count) {
  const auto cut = [&](const auto& v, std::int64_t width) {
    return std::remove_cvref_t<decltype(v)>(v.begin() + first * width, v.begin() + (first + count) * width);
  };
  return {count, b.T, cut(b.tokens, b.T), cut(b.targets, b.T), cut(b.samples, 1)};
}

}  // namespace

TEST_CASE("the comparison of gradients finds faults", "[model]") {
  const Golden g = load_golden("odd");
  const std::vector<double> expected(g.gradients.begin(), g.gradients.end());
  const double allowed = gradient_tolerance(g, DType::f32);
  CHECK(allowed < 1e-4);
  CHECK(gradient_mismatch(g, g.gradients, expected, allowed).empty());

  const auto fault = [&](int parameter, std::int64_t element, float value) {
    std::vector<float> bad = g.gradients;
    bad[static_cast<std::size_t>(g.table[parameter].offset + element)] = value;
    return gradient_mismatch(g, bad, expected, allowed);
  };
  const LayerParameters& layer = g.table.layers[1];
  const std::int64_t C = g.shape.channels;
  CHECK_THAT(fault(layer.fc_weight, 1000, 0.01f), ContainsSubstring("layer1.fc.weight"));
  CHECK_THAT(fault(layer.norm2_gain, 3, 0), ContainsSubstring("layer1.norm2.gain"));
  CHECK_THAT(fault(layer.qkv_bias, C + 1, 1e-4f), ContainsSubstring("(key)"));
  CHECK_THAT(fault(layer.qkv_bias, 2 * C, 0), ContainsSubstring("(value)"));
  CHECK_THAT(fault(g.table.wpe, 2, std::numeric_limits<float>::quiet_NaN()), ContainsSubstring("wpe"));
  CHECK_THAT(fault(g.table.wte, g.shape.vocab * C, 1e-30f), ContainsSubstring("padding"));
  CHECK_THAT(gradient_mismatch(g, std::vector<float>(expected.size()), expected, allowed),
             ContainsSubstring("layer0.norm1.bias"));
}

TEST_CASE("fp32: loss and every gradient are PyTorch's", "[model]") {
  Backend& backend = *GENERATE(from_range(backends()));
  for (const std::string& name : kGoldenNames) {
    const Golden g = load_golden(name);
    INFO(name);
    const Outcome r = run_batch(backend, g, {.act = DType::f32});
    const double loss = r.state.loss_sum / static_cast<double>(g.counted(0));
    CHECK(std::abs(loss - g.loss[0]) <= loss_tolerance(DType::f32) * g.loss[0]);
    const std::vector<double> expected(g.gradients.begin(), g.gradients.end());
    CHECK(gradient_mismatch(g, r.gradients, expected, gradient_tolerance(g, DType::f32)) == "");
  }
}

TEST_CASE("fp32: ten steps are PyTorch's within 1e-5", "[model]") {
  Backend& backend = *GENERATE(from_range(backends()));
  for (const std::string& name : kGoldenNames) {
    const Golden g = load_golden(name);
    Subject subject(backend, g, g.batches[0].B, g.batches[0].T, {.act = DType::f32});
    for (std::size_t i = 0; i < g.loss.size(); ++i) {
      INFO(name << ", step " << i + 1);
      subject.begin(static_cast<std::int64_t>(i) + 1, g.lr[i], g.counted(i));
      subject.forward_backward(g.batch(i), false);
      subject.update();
      const StepState s = subject.state();
      CHECK(s.skip == 0);
      CHECK(s.updates == static_cast<std::int64_t>(i) + 1);
      CHECK(std::abs(s.loss_sum / static_cast<double>(g.counted(i)) - g.loss[i]) <= 1e-5 * g.loss[i]);
      CHECK(std::abs(static_cast<double>(s.grad_norm) - g.grad_norm[i]) <= 1e-5 * g.grad_norm[i]);
    }
    if (g.final_weights.empty()) continue;
    // The whole way of each parameter. Adam divides a gradient by its own size, so elements whose gradient is
    // all rounding move as far as the others: the key's bias is left out, and the others get
    // a ten-thousandth.
    const std::vector<float> w = subject.weights();
    for (const Parameter& p : g.table.parameters) {
      std::vector<double> error, way;
      for (std::int64_t j = 0; j < p.saved_rows * p.cols; ++j) {
        const std::int64_t C = g.shape.channels;
        if (p.name.ends_with("qkv.bias") && j >= C && j < 2 * C) continue;
        const std::size_t k = static_cast<std::size_t>(p.offset + j);
        error.push_back(static_cast<double>(w[k]) - static_cast<double>(g.final_weights[k]));
        way.push_back(static_cast<double>(g.final_weights[k]) - static_cast<double>(g.weights[k]));
      }
      INFO(p.name << ": off by " << length(error) << " after a way of " << length(way));
      CHECK(length(way) > 1e-3);
      CHECK(length(error) <= 1e-4 * length(way));
    }
  }
}

TEST_CASE("bf16: loss and every gradient are the oracle's within the format", "[model]") {
  Backend& backend = *GENERATE(from_range(backends()));
  for (const std::string& name : kGoldenNames) {
    const Golden g = load_golden(name);
    INFO(name);
    const double scale = 1.0 / static_cast<double>(g.counted(0)),
                 allowed = gradient_tolerance(g, DType::bf16);
    const OracleResult exact = run_oracle(g.shape, g.table, as_read(g, DType::bf16), g.batches[0], scale);
    const Outcome r = run_batch(backend, g, {.act = DType::bf16});
    CHECK(std::abs(r.state.loss_sum - exact.loss_sum) <= loss_tolerance(DType::bf16) * exact.loss_sum);
    CHECK(gradient_mismatch(g, r.gradients, exact.gradients, allowed) == "");
    // ... and not by chance those of fp32
    CHECK(gradient_mismatch(g, r.gradients, exact.gradients, gradient_tolerance(g, DType::f32)) != "");
  }
}

TEST_CASE("bf16: ten steps follow PyTorch's", "[model]") {
  Backend& backend = *GENERATE(from_range(backends()));
  for (const std::string& name : kGoldenNames) {
    const Golden g = load_golden(name);
    Subject subject(backend, g, g.batches[0].B, g.batches[0].T, {.act = DType::bf16});
    for (std::size_t i = 0; i < g.loss.size(); ++i) {
      INFO(name << ", step " << i + 1);
      subject.begin(static_cast<std::int64_t>(i) + 1, g.lr[i], g.counted(i));
      subject.forward_backward(g.batch(i), false);
      subject.update();
      const StepState s = subject.state();
      CHECK(std::abs(s.loss_sum / static_cast<double>(g.counted(i)) - g.loss[i]) <=
            2 * loss_tolerance(DType::bf16) * g.loss[i]);
      CHECK(std::abs(static_cast<double>(s.grad_norm) - g.grad_norm[i]) <=
            gradient_tolerance(g, DType::bf16) * g.grad_norm[i]);
    }
  }
}

TEST_CASE("dropout: loss and gradients are the oracle's under the same masks", "[model]") {
  Backend& backend = *GENERATE(from_range(backends()));
  Golden g = load_golden("odd");
  g.batches[0].samples = {3, (std::int64_t{1} << 33) + 4, 5};
  const Setting setting{.act = DType::f32, .dropout = 0.15f};
  const OracleResult exact = run_oracle(g.shape, g.table, as_read(g, DType::f32), g.batches[0],
                                        1.0 / static_cast<double>(g.counted(0)),
                                        {.p = setting.dropout, .seed = kDropoutSeed, .step = 7});
  const Outcome r = run_batch(backend, g, setting, 7);
  CHECK(std::abs(r.state.loss_sum - exact.loss_sum) <= loss_tolerance(DType::f32) * exact.loss_sum);
  CHECK(gradient_mismatch(g, r.gradients, exact.gradients, gradient_tolerance(g, DType::f32)) == "");
  CHECK_FALSE(same_bits(r.gradients, run_batch(backend, g, setting, 8).gradients));
}

TEST_CASE("recomputation gives the same bits", "[model]") {
  Backend& backend = *GENERATE(from_range(backends()));
  for (const char* name : {"odd", "untied"}) {
    const Golden g = load_golden(name);
    for (const DType act : {DType::f32, DType::bf16})
      for (const float dropout : {0.0f, 0.1f}) {
        const Outcome kept = run_batch(backend, g, {.act = act, .dropout = dropout});
        for (const Recompute recompute : {Recompute::activation, Recompute::block}) {
          INFO(name << " " << name_of(act) << " dropout " << dropout << " recompute "
                    << static_cast<int>(recompute));
          const Outcome redone =
              run_batch(backend, g, {.act = act, .recompute = recompute, .dropout = dropout});
          CHECK(redone.state.loss_sum == kept.state.loss_sum);
          CHECK(same_bits(redone.gradients, kept.gradients));
        }
      }
  }
}

TEST_CASE("the same batch twice gives the same bits, and leaves nothing behind", "[model]") {
  Backend& backend = *GENERATE(from_range(backends()));
  const Golden g = load_golden("odd");
  for (const DType act : {DType::f32, DType::bf16}) {
    const Outcome first = run_batch(backend, g, {.act = act, .dropout = 0.1f});
    Subject subject(backend, g, 3, 37, {.act = act, .dropout = 0.1f});
    subject.begin(1, 0, g.counted(0));
    subject.forward_backward(g.batches[1], false);  // other numbers everywhere, to be overwritten
    subject.begin(1, 0, g.counted(0));
    subject.forward_backward(g.batches[0], false);
    CHECK(subject.state().loss_sum == first.state.loss_sum);
    CHECK(same_bits(subject.gradients(), first.gradients));
  }
}

TEST_CASE("fp32 bits do not depend on the thread count", "[model]") {
  const Golden g = load_golden("odd");
  const auto run = [&](int threads) {
    const std::unique_ptr<Backend> backend = make_cpu_backend(threads);
    return run_batch(*backend, g, {.act = DType::f32, .dropout = 0.1f});
  };
  const Outcome one = run(1);
  for (const int threads : {2, 3}) {
    const Outcome more = run(threads);
    INFO(threads << " threads");
    CHECK(more.state.loss_sum == one.state.loss_sum);
    CHECK(same_bits(more.gradients, one.gradients));
  }
  omp_set_num_threads(omp_get_num_procs());  // the number belongs to the process: back for the other tests
}

TEST_CASE("micro-batches add up to the batch", "[model]") {
  Backend& backend = *GENERATE(from_range(backends()));
  const Golden g = load_golden("odd");
  const OracleBatch& batch = g.batches[0];
  for (const DType act : {DType::f32, DType::bf16})
    for (const float dropout : {0.0f, 0.1f}) {
      INFO(name_of(act) << " dropout " << dropout);
      const Outcome whole = run_batch(backend, g, {.act = act, .dropout = dropout});
      Subject subject(backend, g, 1, batch.T, {.act = act, .dropout = dropout});
      subject.begin(1, 0, g.counted(0));
      for (std::int64_t b = 0; b < batch.B; ++b) subject.forward_backward(part_of(batch, b, 1), b > 0);
      const double expected = whole.state.loss_sum;
      CHECK(std::abs(subject.state().loss_sum - expected) <= loss_tolerance(act) * expected);
      const std::vector<double> reference(whole.gradients.begin(), whole.gradients.end());
      CHECK(gradient_mismatch(g, subject.gradients(), reference, gradient_tolerance(g, act)) == "");
    }
}

TEST_CASE("the head in chunks of rows gives what it gives at once", "[model]") {
  Backend& backend = *GENERATE(from_range(backends()));
  for (const char* name : {"odd", "untied"}) {
    const Golden g = load_golden(name);
    const OracleBatch& batch = g.batches[0];
    const std::int64_t N = batch.B * batch.T;
    for (const DType act : {DType::f32, DType::bf16}) {
      const Outcome whole = run_batch(backend, g, {.act = act});
      const std::vector<double> reference(whole.gradients.begin(), whole.gradients.end());
      Subject at_once(backend, g, batch.B, batch.T, {.act = act});
      const std::vector<float> losses = at_once.evaluate(batch);
      for (const std::int64_t rows : {N, N / 2 + 1, std::int64_t{16}, std::int64_t{1}}) {
        INFO(name << " " << name_of(act) << ", " << rows << " of " << N << " rows at a time");
        const Setting setting{.act = act, .head_rows = rows};
        Subject chunked(backend, g, batch.B, batch.T, setting);
        const std::vector<float> here = chunked.evaluate(batch);
        const Outcome r = run_batch(backend, g, setting);
        if (rows == N) {  // the same operators on the same shapes
          CHECK(same_bits(here, losses));
          CHECK(same_bits(r.gradients, whole.gradients));
          continue;
        }
        // Not bit for bit: for a product of fewer rows oneDNN may take another kernel, and the head's weight
        // gradient is summed chunk by chunk.
        for (std::size_t n = 0; n < losses.size(); ++n)
          CHECK(std::abs(here[n] - losses[n]) <= static_cast<float>(2 * loss_tolerance(act)) * losses[n]);
        CHECK(std::abs(r.state.loss_sum - whole.state.loss_sum) <=
              loss_tolerance(act) * whole.state.loss_sum);
        CHECK(gradient_mismatch(g, r.gradients, reference, gradient_tolerance(g, act)) == "");
      }
    }
  }
}

TEST_CASE("evaluation: losses are the oracle's, training's state stays as it is", "[model]") {
  Backend& backend = *GENERATE(from_range(backends()));
  const Golden g = load_golden("odd");
  const OracleBatch& batch = g.batches[0];
  for (const DType act : {DType::f32, DType::bf16}) {
    INFO(name_of(act));
    const OracleResult exact = run_oracle(g.shape, g.table, as_read(g, act), batch, 1);
    Subject training(backend, g, batch.B, batch.T, {.act = act, .dropout = 0.3f});
    training.begin(5, 0.5f, 7);
    const StepState before = training.state();
    const std::vector<float> losses = training.evaluate(batch);
    const StepState after = training.state();
    CHECK(after.step == before.step);
    CHECK(after.loss_sum == before.loss_sum);
    CHECK(after.updates == before.updates);
    REQUIRE(losses.size() == exact.losses.size());
    for (std::size_t n = 0; n < losses.size(); ++n) {
      INFO("row " << n << ", target " << batch.targets[n]);
      const double off = std::abs(static_cast<double>(losses[n]) - exact.losses[n]);
      CHECK(off <= (act == DType::f32 ? 1e-5 : 2e-2) * exact.losses[n]);  // zero where the target is -1
    }
    // A model without room for training says the same.
    CHECK(same_bits(Subject(backend, g, batch.B, batch.T, {.act = act, .training = false}).evaluate(batch),
                    losses));
  }
}

TEST_CASE("generation: logits are PyTorch's, token by token or all at once", "[model]") {
  Backend& backend = *GENERATE(from_range(backends()));
  for (const std::string& name : kGoldenNames) {
    const Golden g = load_golden(name);
    const OracleBatch& batch = g.batches[0];
    const std::size_t V = static_cast<std::size_t>(g.shape.vocab);
    for (const DType act : {DType::f32, DType::bf16}) {
      const OracleResult exact = run_oracle(g.shape, g.table, as_read(g, act), batch, 1);
      double largest = 0;
      for (double z : exact.logits) largest = std::max(largest, std::abs(z));
      const double allowed = gradient_tolerance(g, act) * largest;
      Subject subject(backend, g, 1, g.shape.context, {.act = act, .training = false});
      std::vector<float> logits;
      const auto check = [&](std::size_t row) {
        INFO(name << " " << name_of(act) << ", row " << row);
        REQUIRE(logits.size() == V);
        double worst = 0;
        for (std::size_t v = 0; v < V; ++v)
          worst = std::max(worst, std::abs(static_cast<double>(logits[v]) - exact.logits[row * V + v]));
        CHECK(worst <= allowed);
      };
      // The golden rows, each from the whole prefix at once ...
      for (std::size_t i = 0; i < g.logit_rows.size(); ++i) {
        const std::int64_t row = g.logit_rows[i], b = row / batch.T, t = row % batch.T;
        subject.model().extend(batch.tokens.data() + b * batch.T, 0, t + 1, logits);
        check(static_cast<std::size_t>(row));
        if (act != DType::f32) continue;
        for (std::size_t v = 0; v < V; ++v)
          REQUIRE(std::abs(static_cast<double>(logits[v]) - static_cast<double>(g.logits[i * V + v])) <=
                  allowed);
      }
      // ... and every row of the first sequence, continued from a prefix of three.
      subject.model().extend(batch.tokens.data(), 0, 3, logits);
      check(2);
      for (std::int64_t t = 3; t < batch.T; ++t) {
        subject.model().extend(batch.tokens.data() + t, t, 1, logits);
        check(static_cast<std::size_t>(t));
      }
    }
  }
}

TEST_CASE("an arena hands out aligned pieces, or only counts them", "[model]") {
  Arena count;
  count.take(DType::f32, {3}, "a");
  count.take(DType::bf16, {2, 5}, "b");
  std::vector<char> memory(count.size() + 64);
  Arena real(memory.data());
  const Tensor a = real.take(DType::f32, {3}, "a"), b = real.take(DType::bf16, {2, 5}, "b");
  CHECK(real.size() == count.size());
  CHECK(a.data == memory.data());
  const std::ptrdiff_t between = static_cast<char*>(b.data) - static_cast<char*>(a.data);
  CHECK(between % 64 == 0);
  CHECK(static_cast<std::size_t>(between) >= a.bytes());
  CHECK(static_cast<std::size_t>(between) + b.bytes() <= real.size());
}

TEST_CASE("the planned memory is what a model allocates; recomputation needs less, plain use much less",
          "[model]") {
  const Golden g = load_golden(kGoldenNames[0]);
  ModelPlan plan{.shape = g.shape, .act = DType::bf16, .B = 2, .T = g.shape.context};
  const auto bytes = [&] { return total_bytes(plan_memory(plan)); };
  const std::size_t none = bytes();
  plan.recompute = Recompute::activation;
  const std::size_t activation = bytes();
  plan.recompute = Recompute::block;
  const std::size_t block = bytes();
  CHECK(block < activation);
  CHECK(activation < none);
  plan.training = false;
  CHECK(bytes() < block / 2);
  const std::size_t P = static_cast<std::size_t>(g.table.arena_size);
  CHECK(plan_memory(plan)[0].bytes == 4 * P);
  CHECK(plan_memory(plan)[1].bytes == 2 * P);

  plan.B = 1 << 30;
  CHECK_THROWS_WITH(check_memory(*backends()[0], plan),
                    ContainsSubstring("the model needs") && ContainsSubstring("train.micro_batch"));
}

TEST_CASE("the table of paths names every product in every direction", "[model]") {
  const Golden g = load_golden(kGoldenNames[0]);
  ModelPlan plan{.shape = g.shape, .act = DType::f32, .B = 1, .T = g.shape.context};
  CHECK(plan_paths(*backends()[0], plan).size() == 5 * 3 + 1);
  plan.training = false;
  const std::vector<PathRow> rows = plan_paths(*backends()[0], plan);
  REQUIRE(rows.size() == 5 + 1);
  CHECK(rows.front().what == "qkv fprop");
  CHECK(rows.back().what == "attention");
  for (const PathRow& row : rows) CHECK_FALSE(row.path.empty());
}

}  // namespace octavo::testing
