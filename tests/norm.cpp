// Layer norm against the oracle, its fused parts against plain ones, and what must not change its bits.
#include "backend.h"
#include "backends.h"
#include "catch.h"
#include "masks.h"
#include "oracle_ops.h"
#include "tolerance.h"

using namespace octavo;
using namespace octavo::testing;
using oracle::Values;

namespace {

struct Sizes {
  std::int64_t B, T, C;
  std::int64_t N() const { return B * T; }
};
// whole chunks, an odd tail, a row shorter than a chunk, many row blocks
const Sizes kSizes[] = {{2, 8, 64}, {3, 7, 48}, {3, 37, 37}, {1, 5, 11}, {1, 1, 1}, {2, 701, 20}};

template <typename T>
void forward_against_oracle(Backend& b, const Sizes& s, double p, bool with_branch, bool in_place,
                            bool with_y) {
  const std::int64_t N = s.N(), C = s.C;
  const oracle::Mask mask = mask_of(p, s.B, DropPlace::mlp_out);
  const DeviceMask device_mask(b, mask);
  const std::vector<T> x = random_values<T>(N * C, 1, 3), branch = random_values<T>(N * C, 2, 2);
  const std::vector<float> gain = random_values<float>(C, 3), bias = random_values<float>(C, 4);
  DeviceArray<T> dx(b, x, {N, C}, "x"), dbranch(b, branch, {N, C}, "branch"), dr(b, {N, C}, "residual");
  DeviceArray<T> dy(b, {N, C}, "y");
  DeviceArray<float> dgain(b, gain, {C}, "gain"), dbias(b, bias, {C}, "bias"), dmean(b, {N}, "mean");
  DeviceArray<float> drstd(b, {N}, "rstd");
  NormForward op{.x = dx.tensor, .eps = 1e-5f, .T = s.T};
  if (with_branch) {
    op.branch = dbranch.tensor;
    op.residual = in_place ? dx.tensor : dr.tensor;
    op.dropout = device_mask.dropout;
  }
  if (with_y) {
    op.y.t = dy.tensor;
    op.gain = dgain.tensor, op.bias = dbias.tensor, op.mean = dmean.tensor, op.rstd = drstd.tensor;
  }
  b.run(op);

  const DType type = dtype_of<T>::value;
  std::vector<T> r = x;
  if (with_branch) {
    r = in_place ? dx.read() : dr.read();
    const Values factors = oracle::mask_factors(mask, N, C, s.T);
    const Rounding twice{.stored = type,
                         .inner = p > 0 ? type : DType::f32};  // the dropped branch is rounded
    CHECK(mismatch(r, oracle::residual(widen(x), widen(branch), factors), twice) == "");
  }
  if (!in_place || !with_branch) CHECK(bits_of(dx.read()) == bits_of(x));
  CHECK(bits_of(dbranch.read()) == bits_of(branch));
  if (!with_y || C == 1) return;  // a single column has no variance: y is the bias
  const oracle::Norm expected = oracle::norm_forward(widen(r), widen(gain), widen(bias), N, C, 1e-5);
  CHECK(mismatch(dmean.read(), expected.mean, {.terms = C}) == "");
  CHECK(mismatch(drstd.read(), expected.rstd, {.terms = C}) == "");
  CHECK(mismatch(dy.read(), expected.y, {.stored = type, .terms = C}) == "");
}

template <typename T>
struct Backward {
  std::vector<T> dresidual, dbranch;
  std::vector<float> dgain, dbias, dbranch_bias;
};

struct Options {
  double p = 0;
  bool accumulate_dresidual = true, accumulate = false, dbranch = false, dbranch_bias = false;
};

template <typename T>
struct BackwardInputs {
  std::vector<T> dy, r, old_dresidual;
  std::vector<float> gain, mean, rstd, old;  // old: of each of the three parameter gradients

  explicit BackwardInputs(const Sizes& s)
      : dy(random_values<T>(s.N() * s.C, 11)),
        r(random_values<T>(s.N() * s.C, 12, 4)),
        old_dresidual(random_values<T>(s.N() * s.C, 13, 2)),
        gain(random_values<float>(s.C, 14)),
        old(random_values<float>(s.C, 15, 5)) {
    const oracle::Norm n = oracle::norm_forward(widen(r), Values(static_cast<std::size_t>(s.C), 1.0),
                                                Values(static_cast<std::size_t>(s.C), 0.0), s.N(), s.C, 1e-5);
    for (const double v : n.mean.value) mean.push_back(static_cast<float>(v));
    for (const double v : n.rstd.value) rstd.push_back(static_cast<float>(v));
  }
};

template <typename T>
Backward<T> run_backward(Backend& b, const Sizes& s, const Options& o) {
  const std::int64_t N = s.N(), C = s.C;
  const BackwardInputs<T> in(s);
  const DeviceMask mask(b, mask_of(o.p, s.B, DropPlace::mlp_out));
  DeviceArray<T> dy(b, in.dy, {N, C}, "dy"), r(b, in.r, {N, C}, "residual"), dbranch(b, {N, C}, "dbranch");
  DeviceArray<T> dresidual(b, in.old_dresidual, {N, C}, "dresidual");
  DeviceArray<float> gain(b, in.gain, {C}, "gain"), mean(b, in.mean, {N}, "mean"),
      rstd(b, in.rstd, {N}, "rstd");
  DeviceArray<float> dgain(b, in.old, {C}, "dgain"), dbias(b, in.old, {C}, "dbias");
  DeviceArray<float> dbranch_bias(b, in.old, {C}, "dbranch_bias");
  NormBackward op{.dy = dy.tensor,
                  .residual = r.tensor,
                  .gain = gain.tensor,
                  .mean = mean.tensor,
                  .rstd = rstd.tensor,
                  .dresidual = dresidual.tensor,
                  .accumulate_dresidual = o.accumulate_dresidual,
                  .dgain = dgain.tensor,
                  .dbias = dbias.tensor,
                  .accumulate = o.accumulate,
                  .T = s.T};
  if (o.dbranch) op.dbranch.t = dbranch.tensor, op.dropout = mask.dropout;
  if (o.dbranch_bias) op.dbranch_bias = dbranch_bias.tensor;
  b.run(op);
  CHECK(bits_of(dy.read()) == bits_of(in.dy));
  CHECK(bits_of(r.read()) == bits_of(in.r));
  return {dresidual.read(), dbranch.read(), dgain.read(), dbias.read(), dbranch_bias.read()};
}

template <typename T>
void backward_against_oracle(Backend& b, const Sizes& s, const Options& o) {
  const std::int64_t N = s.N(), C = s.C;
  const BackwardInputs<T> in(s);
  const Backward<T> got = run_backward<T>(b, s, o);
  const Values old = o.accumulate ? widen(in.old) : Values{};
  const oracle::NormGradients expected =
      oracle::norm_backward(widen(in.dy), widen(in.r), widen(in.gain), widen(in.mean), widen(in.rstd), N, C,
                            o.accumulate_dresidual ? widen(in.old_dresidual) : Values{}, old, old);
  CHECK(mismatch(got.dresidual, expected.dresidual, {.stored = dtype_of<T>::value, .terms = C}) == "");
  CHECK(mismatch(got.dgain, expected.dgain, {.terms = N}) == "");
  CHECK(mismatch(got.dbias, expected.dbias, {.terms = N}) == "");

  // From here on what was stored is what counts.
  std::vector<T> branch = got.dresidual;
  if (o.dbranch) {
    const Values factors = oracle::mask_factors(mask_of(o.p, s.B, DropPlace::mlp_out), N, C, s.T);
    for (std::size_t i = 0; i < branch.size(); ++i)
      branch[i] =
          factors[i] == 0
              ? T{}
              : narrow_to<T>(static_cast<double>(to_float(branch[i]) * static_cast<float>(factors[i])));
    CHECK(widen(got.dbranch) == widen(branch));
  }
  if (o.dbranch_bias)
    CHECK(mismatch(got.dbranch_bias, oracle::column_sums(widen(branch), N, C, old), {.terms = N}) == "");
  else
    CHECK(bits_of(got.dbranch_bias) == bits_of(in.old));
}

}  // namespace

TEST_CASE("norm forward agrees with the oracle") {
  for (Backend* b : backends())
    for (const Sizes& s : kSizes) {
      INFO(b->name() << " B=" << s.B << " T=" << s.T << " C=" << s.C);
      for (const double p : {0.0, 0.25}) {
        for (const bool in_place : {false, true}) {
          forward_against_oracle<float>(*b, s, p, true, in_place, true);
          forward_against_oracle<bf16>(*b, s, p, true, in_place, true);
        }
        forward_against_oracle<float>(*b, s, p, true, false, false);
        forward_against_oracle<bf16>(*b, s, p, true, false, false);
      }
      forward_against_oracle<float>(*b, s, 0, false, false, true);
      forward_against_oracle<bf16>(*b, s, 0, false, false, true);
    }
}

TEST_CASE("norm backward agrees with the oracle, whatever is asked of it") {
  for (Backend* b : backends())
    for (const Sizes& s : kSizes) {
      if (s.C == 1) continue;  // its gradient is zero
      INFO(b->name() << " B=" << s.B << " T=" << s.T << " C=" << s.C);
      for (const Options& o :
           {Options{}, Options{.accumulate_dresidual = false}, Options{.accumulate = true},
            Options{.dbranch_bias = true}, Options{.accumulate = true, .dbranch_bias = true},
            Options{.dbranch = true, .dbranch_bias = true}, Options{.p = 0.1, .dbranch = true},
            Options{.p = 0.5, .accumulate_dresidual = false, .dbranch = true, .dbranch_bias = true},
            Options{.p = 0.5, .accumulate = true, .dbranch = true, .dbranch_bias = true}}) {
        backward_against_oracle<float>(*b, s, o);
        backward_against_oracle<bf16>(*b, s, o);
      }
    }
}

namespace {

template <typename T>
void fused_forward_equals_parts(Backend& b, double p) {
  const Sizes s{3, 21, 53};
  const std::int64_t N = s.N(), C = s.C;
  const DeviceMask mask(b, mask_of(p, s.B, DropPlace::mlp_out));
  const std::vector<T> x = random_values<T>(N * C, 1, 3), branch = random_values<T>(N * C, 2, 2);
  DeviceArray<float> gain(b, random_values<float>(C, 3), {C}), bias(b, random_values<float>(C, 4), {C});
  DeviceArray<float> mean1(b, {N}), rstd1(b, {N}), mean2(b, {N}), rstd2(b, {N});
  DeviceArray<T> dx(b, x, {N, C}), dbranch(b, branch, {N, C}), r(b, {N, C}), y1(b, {N, C}), y2(b, {N, C});
  b.run(NormForward{.x = dx.tensor,
                    .branch = dbranch.tensor,
                    .dropout = mask.dropout,
                    .residual = r.tensor,
                    .gain = gain.tensor,
                    .bias = bias.tensor,
                    .y = {.t = y1.tensor},
                    .mean = mean1.tensor,
                    .rstd = rstd1.tensor,
                    .T = s.T});
  // The parts: dropout stored, sum stored, norm of what was stored.
  const Values factors = oracle::mask_factors(mask_of(p, s.B, DropPlace::mlp_out), N, C, s.T);
  std::vector<T> sum;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float total = to_float(x[i]) + to_float(dropped(branch[i], factors[i]));
    sum.push_back(narrow_to<T>(static_cast<double>(total)));
  }
  CHECK(bits_of(r.read()) == bits_of(sum));
  DeviceArray<T> dsum(b, sum, {N, C});
  b.run(NormForward{.x = dsum.tensor,
                    .gain = gain.tensor,
                    .bias = bias.tensor,
                    .y = {.t = y2.tensor},
                    .mean = mean2.tensor,
                    .rstd = rstd2.tensor,
                    .T = s.T});
  CHECK(bits_of(y1.read()) == bits_of(y2.read()));
  CHECK(bits_of(mean1.read()) == bits_of(mean2.read()));
  CHECK(bits_of(rstd1.read()) == bits_of(rstd2.read()));
}

template <typename T>
void fused_backward_equals_parts(Backend& b, double p, bool accumulate) {
  const Sizes s{3, 229, 53};
  const std::int64_t N = s.N(), C = s.C;
  const Backward<T> fused =
      run_backward<T>(b, s, {.p = p, .accumulate = accumulate, .dbranch = p > 0, .dbranch_bias = true});
  const Backward<T> plain = run_backward<T>(b, s, {.accumulate = accumulate});
  CHECK(bits_of(fused.dresidual) == bits_of(plain.dresidual));
  CHECK(bits_of(fused.dgain) == bits_of(plain.dgain));
  CHECK(bits_of(fused.dbias) == bits_of(plain.dbias));
  DeviceArray<T> branch(b, p > 0 ? fused.dbranch : fused.dresidual, {N, C});
  DeviceArray<float> sums(b, BackwardInputs<T>(s).old, {C});
  b.run(BiasGradient{.dy = branch.tensor, .db = sums.tensor, .accumulate = accumulate});
  CHECK(bits_of(fused.dbranch_bias) == bits_of(sums.read()));
}

}  // namespace

TEST_CASE("a fused norm has the bits of its plain parts") {
  for (Backend* b : backends())
    for (const double p : {0.0, 0.3}) {
      fused_forward_equals_parts<float>(*b, p);
      fused_forward_equals_parts<bf16>(*b, p);
      for (const bool accumulate : {false, true}) {
        fused_backward_equals_parts<float>(*b, p, accumulate);
        fused_backward_equals_parts<bf16>(*b, p, accumulate);
      }
    }
}

TEST_CASE("norm backward has the same bits on any number of threads and any instruction set") {
  const Options o{.p = 0.2, .accumulate = true, .dbranch = true, .dbranch_bias = true};
  const auto bits = [&](Backend& b, auto type) {
    const auto g = run_backward<decltype(type)>(b, {2, 333, 53}, o);
    return bits_of(g.dresidual) + bits_of(g.dbranch) + bits_of(g.dgain) + bits_of(g.dbias) +
           bits_of(g.dbranch_bias);
  };
  check_same_bits_everywhere([&](Backend& b) { return bits(b, float{}) + bits(b, bf16{}); });
}

TEST_CASE("norm forward has the same bits on any number of threads and any instruction set") {
  const auto bits = [](Backend& b, auto type) {
    using T = decltype(type);
    const std::int64_t N = 333, C = 53;
    const DeviceMask mask(b, mask_of(0.2, 1, DropPlace::mlp_out));
    DeviceArray<float> gain(b, random_values<float>(C, 3), {C}), bias(b, random_values<float>(C, 4), {C});
    DeviceArray<float> mean(b, {N}), rstd(b, {N});
    DeviceArray<T> x(b, random_values<T>(N * C, 1), {N, C}), branch(b, random_values<T>(N * C, 2), {N, C});
    DeviceArray<T> r(b, {N, C}), y(b, {N, C});
    b.run(NormForward{.x = x.tensor,
                      .branch = branch.tensor,
                      .dropout = mask.dropout,
                      .residual = r.tensor,
                      .gain = gain.tensor,
                      .bias = bias.tensor,
                      .y = {.t = y.tensor},
                      .mean = mean.tensor,
                      .rstd = rstd.tensor,
                      .T = N});
    return bits_of(r.read()) + bits_of(y.read()) + bits_of(mean.read()) + bits_of(rstd.read());
  };
  check_same_bits_everywhere([&](Backend& b) { return bits(b, float{}) + bits(b, bf16{}); });
}

TEST_CASE("a row of equal values has no variance: rstd is 1/sqrt(eps), y the bias") {
  for (Backend* b : backends()) {
    DeviceArray<float> x(*b, std::vector<float>(40, 3.0f), {2, 20}), y(*b, {2, 20}), mean(*b, {2}),
        rstd(*b, {2});
    const std::vector<float> beta = random_values<float>(20, 9);
    DeviceArray<float> gain(*b, random_values<float>(20, 8), {20}), bias(*b, beta, {20});
    b->run(NormForward{.x = x.tensor,
                       .gain = gain.tensor,
                       .bias = bias.tensor,
                       .y = {.t = y.tensor},
                       .mean = mean.tensor,
                       .rstd = rstd.tensor,
                       .eps = 0.25f});
    for (const float m : mean.read()) CHECK(m == Approx(3.0).epsilon(1e-6));
    for (const float r : rstd.read()) CHECK(r == Approx(2.0).epsilon(1e-5));
    const std::vector<float> out = y.read();
    for (std::size_t i = 0; i < out.size(); ++i) CHECK(out[i] == Approx(beta[i % 20]).margin(1e-5));
  }
}

TEST_CASE("NaN in a row stays in that row") {
  for (Backend* b : backends()) {
    std::vector<float> values = random_values<float>(3 * 20, 5);
    values[25] = std::nanf("");
    DeviceArray<float> x(*b, values, {3, 20}), y(*b, {3, 20}), mean(*b, {3}), rstd(*b, {3});
    DeviceArray<float> gain(*b, std::vector<float>(20, 1.0f), {20}),
        bias(*b, std::vector<float>(20, 0.0f), {20});
    b->run(NormForward{.x = x.tensor,
                       .gain = gain.tensor,
                       .bias = bias.tensor,
                       .y = {.t = y.tensor},
                       .mean = mean.tensor,
                       .rstd = rstd.tensor});
    const std::vector<float> out = y.read();
    for (std::size_t i = 0; i < out.size(); ++i) CHECK(std::isnan(out[i]) == (i / 20 == 1));
  }
}
