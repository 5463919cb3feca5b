// Attention, both directions, against the oracle; what its bits may not depend on; extreme and broken inputs.
#include <cmath>
#include <limits>

#include "backend.h"
#include "backends.h"
#include "catch.h"
#include "cpu/bf16_products.h"
#include "masks.h"
#include "oracle_ops.h"
#include "tolerance.h"

using namespace octavo;
using namespace octavo::testing;
using oracle::AttentionShape;
using oracle::Values;

namespace {

constexpr DropPlace kPlace = DropPlace::attention;

AttentionShape shape_of(std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t Hkv, std::int64_t D) {
  return {B, T, H, Hkv, D, 1 / std::sqrt(static_cast<double>(D))};
}

template <typename T>
struct Forward {
  std::vector<T> out;
  std::vector<float> lse;
};

template <typename T>
Forward<T> run_forward(Backend& b, const AttentionShape& s, const std::vector<T>& qkv, double p) {
  const DeviceMask mask(b, mask_of(p, s.B, kPlace));
  DeviceArray<T> in(b, qkv, {s.B, s.T, s.width()}, "qkv"), out(b, {s.B, s.T, s.H * s.D}, "out");
  DeviceArray<float> lse(b, {s.B, s.H, s.T}, "lse");
  b.run(AttentionForward{.qkv = in.tensor,
                         .heads = s.H,
                         .kv_heads = s.Hkv,
                         .scale = static_cast<float>(s.scale),
                         .out = {.t = out.tensor},
                         .lse = lse.tensor,
                         .dropout = mask.dropout});
  CHECK(bits_of(in.read()) == bits_of(qkv));
  return {out.read(), lse.read()};
}

template <typename T>
struct Gradients {
  std::vector<T> dqkv;
  std::vector<float> bias;
};

template <typename T>
Gradients<T> run_backward(Backend& b, const AttentionShape& s, const std::vector<T>& qkv,
                          const Forward<T>& forward, const std::vector<T>& dout, double p,
                          const std::vector<float>& old_bias = {}) {
  const DeviceMask mask(b, mask_of(p, s.B, kPlace));
  DeviceArray<T> in(b, qkv, {s.B, s.T, s.width()}, "qkv"), grad(b, {s.B, s.T, s.width()}, "dqkv");
  DeviceArray<T> out(b, forward.out, {s.B, s.T, s.H * s.D}, "out"), d(b, dout, {s.B, s.T, s.H * s.D}, "dout");
  DeviceArray<float> lse(b, forward.lse, {s.B, s.H, s.T}, "lse");
  const std::vector<float> unset(static_cast<std::size_t>(s.width()), std::nanf(""));
  DeviceArray<float> bias(b, old_bias.empty() ? unset : old_bias, {s.width()}, "dqkv_bias");
  b.run(AttentionBackward{.qkv = in.tensor,
                          .out = out.tensor,
                          .dout = d.tensor,
                          .lse = lse.tensor,
                          .heads = s.H,
                          .kv_heads = s.Hkv,
                          .scale = static_cast<float>(s.scale),
                          .dqkv = {.t = grad.tensor},
                          .dqkv_bias = bias.tensor,
                          .accumulate = !old_bias.empty(),
                          .dropout = mask.dropout});
  return {grad.read(), bias.read()};
}

/// Roundings behind a term: an error of a score, itself a sum of D products, is a relative error of its
/// probability. Where bf16 is multiplied as it is, probabilities and their gradients are rounded to it.
Rounding rounding_of(DType type, const AttentionShape& s, double score_size) {
  const double score_roundings = 2 * score_size * (std::sqrt(static_cast<double>(s.D)) + 4);
  return {.stored = type,
          .terms = std::max(s.T, s.D),
          .operations = 8 + score_roundings,
          .inner = type == DType::bf16 && cpu::has_bf16_products() ? DType::bf16 : DType::f32};
}

template <typename T>
void against_oracle(Backend& b, const AttentionShape& s, double p, const std::vector<T>& qkv) {
  const DType type = dtype_of<T>::value;
  const oracle::AttentionResult expected = oracle::attention_forward(s, widen(qkv), mask_of(p, s.B, kPlace));
  const Forward<T> got = run_forward<T>(b, s, qkv, p);
  const Rounding rounding = rounding_of(type, s, expected.score_size);
  CHECK(mismatch(got.out, expected.out, rounding) == "");
  CHECK(mismatch(got.lse, expected.lse, {.terms = std::max(s.T, s.D)}) == "");

  const std::vector<T> dout = random_values<T>(s.B * s.T * s.H * s.D, 21);
  const Gradients<T> gradients = run_backward<T>(b, s, qkv, got, dout, p);
  const Reference dqkv = oracle::attention_backward(s, widen(qkv), widen(got.out), widen(dout),
                                                    widen(got.lse), mask_of(p, s.B, kPlace));
  CHECK(mismatch(gradients.dqkv, dqkv, rounding) == "");
  const Reference sums = oracle::column_sums(widen(gradients.dqkv), s.B * s.T, s.width());
  CHECK(mismatch(gradients.bias, sums, {.terms = s.B * s.T}) == "");
}

template <typename T>
void against_oracle(Backend& b, const AttentionShape& s, double p) {
  against_oracle<T>(b, s, p, random_values<T>(s.B * s.T * s.width(), 20, 1.5));
}

const std::int64_t kLengths[] = {1, 2, 17, 63, 64, 65, 127, 128, 129, 191, 255, 256};
const std::int64_t kHeadSizes[] = {8, 16, 24, 48, 64, 72, 128, 256};

}  // namespace

TEST_CASE("attention agrees with the oracle at every length and head size") {
  for (Backend* b : backends()) {
    std::size_t turn = 0;
    for (const std::int64_t T : kLengths)  // every length meets two head sizes, every head size three lengths
      for (int n = 0; n < 2; ++n, turn += 5) {
        const std::int64_t D = kHeadSizes[turn % 8];
        const AttentionShape s = shape_of(1, T, 2, n == 0 ? 2 : 1, D);
        INFO(b->name() << " T=" << T << " D=" << D << " Hkv=" << s.Hkv);
        for (const double p : {0.0, 0.2}) {
          against_oracle<float>(*b, s, p);
          against_oracle<bf16>(*b, s, p);
        }
      }
  }
}

TEST_CASE("attention agrees with the oracle over several sequences and grouped heads") {
  for (Backend* b : backends())
    for (const double p : {0.0, 0.5}) {
      against_oracle<float>(*b, shape_of(3, 70, 6, 2, 16), p);
      against_oracle<bf16>(*b, shape_of(3, 70, 6, 2, 16), p);
      against_oracle<float>(*b, shape_of(2, 300, 1, 1, 40), p);  // keys past one group of dropout bytes
      against_oracle<bf16>(*b, shape_of(2, 300, 1, 1, 40), p);
    }
}

TEST_CASE("attention agrees with the oracle on every instruction set") {
  const cpu::InstructionSet best = cpu::native_instruction_set();
  const std::unique_ptr<Backend> backend = make_cpu_backend(2);
  for (const cpu::InstructionSet set : {cpu::InstructionSet::avx2, cpu::InstructionSet::baseline}) {
    if (set > best) continue;
    cpu::limit_instruction_set(set);
    INFO(cpu::name_of(set));
    for (const double p : {0.0, 0.3}) {
      against_oracle<float>(*backend, shape_of(1, 131, 2, 1, 56), p);
      against_oracle<bf16>(*backend, shape_of(1, 131, 2, 1, 56), p);
      against_oracle<float>(*backend, shape_of(2, 64, 1, 1, 128), p);
    }
    cpu::limit_instruction_set(best);
  }
  omp_set_num_threads(omp_get_num_procs());
}

TEST_CASE("attention has the same bits on any number of threads and in every run") {
  const auto bits = [](Backend& b, auto type) {
    using T = decltype(type);
    const AttentionShape s = shape_of(2, 150, 6, 3, 24);
    const std::vector<T> qkv = random_values<T>(s.B * s.T * s.width(), 1);
    const Forward<T> forward = run_forward<T>(b, s, qkv, 0.1);
    const std::vector<T> dout = random_values<T>(s.B * s.T * s.H * s.D, 2);
    const Gradients<T> g = run_backward<T>(b, s, qkv, forward, dout, 0.1, random_values<float>(s.width(), 3));
    return bits_of(forward.out) + bits_of(forward.lse) + bits_of(g.dqkv) + bits_of(g.bias);
  };
  std::string first;
  for (const int threads : {1, 2, 3, 4, 2}) {
    const std::unique_ptr<Backend> backend = make_cpu_backend(threads);
    const std::string here = bits(*backend, float{}) + bits(*backend, bf16{});
    if (first.empty()) first = here;
    INFO(threads << " threads");
    CHECK((here == first));  // megabytes: not to be printed
  }
  omp_set_num_threads(omp_get_num_procs());
}

TEST_CASE("attention in f32 has the same bits with AVX2 as with AVX-512") {
  const cpu::InstructionSet best = cpu::native_instruction_set();
  if (best != cpu::InstructionSet::avx512) {
    WARN("SKIPPED: this processor has no AVX-512");
    return;
  }
  const std::unique_ptr<Backend> b = make_cpu_backend(1);
  const AttentionShape s = shape_of(2, 150, 2, 2, 40);
  const std::vector<float> qkv = random_values<float>(s.B * s.T * s.width(), 1);
  const std::vector<float> dout = random_values<float>(s.B * s.T * s.H * s.D, 2);
  std::string bits[2];
  for (std::string& here : bits) {
    const Forward<float> forward = run_forward<float>(*b, s, qkv, 0.1);
    const Gradients<float> g = run_backward<float>(*b, s, qkv, forward, dout, 0.1);
    here = bits_of(forward.out) + bits_of(forward.lse) + bits_of(g.dqkv) + bits_of(g.bias);
    cpu::limit_instruction_set(cpu::InstructionSet::avx2);
  }
  cpu::limit_instruction_set(best);
  omp_set_num_threads(omp_get_num_procs());
  CHECK((bits[0] == bits[1]));
}

namespace {

template <typename T>
void bias_equals_plain(Backend& b, bool accumulate) {
  const AttentionShape s = shape_of(3, 41, 2, 1, 8);
  const std::vector<T> qkv = random_values<T>(s.B * s.T * s.width(), 5);
  const Forward<T> forward = run_forward<T>(b, s, qkv, 0);
  const std::vector<float> old = random_values<float>(s.width(), 6, 3);
  const Gradients<T> g = run_backward<T>(b, s, qkv, forward, random_values<T>(s.B * s.T * s.H * s.D, 7), 0,
                                         accumulate ? old : std::vector<float>{});
  DeviceArray<T> dy(b, g.dqkv, {s.B * s.T, s.width()});
  DeviceArray<float> db(b, old, {s.width()});
  b.run(BiasGradient{.dy = dy.tensor, .db = db.tensor, .accumulate = accumulate});
  CHECK(bits_of(g.bias) == bits_of(db.read()));
}

/// Rows from first_query on have the bits of a pass over all rows; rows before it are not written.
template <typename T>
void later_rows_alone(Backend& b, std::int64_t first) {
  const AttentionShape s = shape_of(1, 200, 2, 1, 40);
  const std::vector<T> qkv = random_values<T>(s.B * s.T * s.width(), 8);
  const Forward<T> all = run_forward<T>(b, s, qkv, 0);
  DeviceArray<T> in(b, qkv, {1, s.T, s.width()}), out(b, {1, s.T, s.H * s.D});
  DeviceArray<float> lse(b, {1, s.H, s.T});
  const std::string untouched_out = bits_of(out.read()), untouched_lse = bits_of(lse.read());
  b.run(AttentionForward{.qkv = in.tensor,
                         .heads = s.H,
                         .kv_heads = s.Hkv,
                         .scale = static_cast<float>(s.scale),
                         .out = {.t = out.tensor},
                         .lse = lse.tensor,
                         .first_query = first});
  const std::string got = bits_of(out.read()), full = bits_of(all.out);
  const std::size_t cut = static_cast<std::size_t>(first * s.H * s.D) * sizeof(T);
  CHECK(got.substr(0, cut) == untouched_out.substr(0, cut));
  CHECK(got.substr(cut) == full.substr(cut));
  const std::string got_lse = bits_of(lse.read()), full_lse = bits_of(all.lse);
  for (std::int64_t h = 0; h < s.H; ++h) {
    const std::size_t row = static_cast<std::size_t>(h * s.T) * 4,
                      before = static_cast<std::size_t>(first) * 4,
                      length = static_cast<std::size_t>(s.T) * 4;
    CHECK(got_lse.substr(row, before) == untouched_lse.substr(row, before));
    CHECK(got_lse.substr(row + before, length - before) == full_lse.substr(row + before, length - before));
  }
}

}  // namespace

TEST_CASE("attention's bias gradient has the bits of the plain column sums") {
  for (Backend* b : backends())
    for (const bool accumulate : {false, true}) {
      bias_equals_plain<float>(*b, accumulate);
      bias_equals_plain<bf16>(*b, accumulate);
    }
}

TEST_CASE("attention from a later query on gives the bits of the whole pass") {
  for (Backend* b : backends())
    for (const std::int64_t first : {1, 63, 64, 130, 199}) {
      INFO("first_query " << first);
      later_rows_alone<float>(*b, first);
      later_rows_alone<bf16>(*b, first);
    }
}

TEST_CASE("equal scores give the mean of the values, and lse the logarithm of their number") {
  for (Backend* b : backends()) {
    const AttentionShape s = shape_of(1, 100, 1, 1, 8);
    std::vector<float> qkv = random_values<float>(s.T * s.width(), 9);
    for (std::size_t i = 0; i < qkv.size(); ++i)
      if (i % 24 < 16) qkv[i] = 2.0f;  // every query and every key alike
    const Forward<float> got = run_forward<float>(*b, s, qkv, 0);
    for (std::int64_t t = 0; t < s.T; ++t) {
      const double score = 8 * 4 * s.scale;
      CHECK(got.lse[s.row(0, 0, t)] == Approx(score + std::log(static_cast<double>(t + 1))).epsilon(1e-6));
      for (std::int64_t d = 0; d < s.D; ++d) {
        double mean = 0;
        for (std::int64_t j = 0; j <= t; ++j) mean += static_cast<double>(qkv[s.v(0, j, 0, d)]);
        CHECK(got.out[s.out(0, t, 0, d)] == Approx(mean / static_cast<double>(t + 1)).margin(1e-6));
      }
    }
  }
}

TEST_CASE("scores of 10000 either way overflow nothing") {
  for (Backend* b : backends()) {
    // Keys alternate between +100 and -100 along one channel, queries are +100 there: scores of +-10000.
    AttentionShape s = shape_of(1, 150, 1, 1, 16);
    s.scale = 1;
    std::vector<float> qkv = random_values<float>(s.T * s.width(), 10);
    for (std::int64_t t = 0; t < s.T; ++t)
      for (std::int64_t d = 0; d < s.D; ++d) {
        qkv[s.q(0, t, 0, d)] = d == 0 ? 100.0f : 0.0f;
        qkv[s.k(0, t, 0, d)] = d == 0 ? (t % 2 == 0 ? 100.0f : -100.0f) : 0.0f;
      }
    against_oracle<float>(*b, s, 0, qkv);
    std::vector<bf16> narrow;
    for (const float x : qkv) narrow.push_back(to_bf16(x));
    against_oracle<bf16>(*b, s, 0, narrow);
  }
}

namespace {

enum class Source : std::uint8_t { q, k, v, dout };

/// NaN in channel 3 of one head at position `t` of the second sequence: exactly what depends on it is NaN.
template <typename T>
void nan_reaches_what_sees_it(Backend& b, Source source, std::int64_t t) {
  const AttentionShape s = shape_of(2, 140, 2, 2, 16);
  std::vector<T> qkv = random_values<T>(s.B * s.T * s.width(), 11);
  std::vector<T> dout = random_values<T>(s.B * s.T * s.H * s.D, 12);
  const T nan = narrow_to<T>(std::numeric_limits<double>::quiet_NaN());
  if (source == Source::q) qkv[s.q(1, t, 1, 3)] = nan;
  if (source == Source::k) qkv[s.k(1, t, 1, 3)] = nan;
  if (source == Source::v) qkv[s.v(1, t, 1, 3)] = nan;
  if (source == Source::dout) dout[s.out(1, t, 1, 3)] = nan;
  const Forward<T> got = run_forward<T>(b, s, qkv, 0);
  const Gradients<T> g = run_backward<T>(b, s, qkv, got, dout, 0);
  const auto is_nan = [](const T& x) { return std::isnan(to_float(x)); };
  std::int64_t wrong = 0;
  for (std::int64_t n = 0; n < s.B; ++n)
    for (std::int64_t h = 0; h < s.H; ++h)
      for (std::int64_t p = 0; p < s.T; ++p)
        for (const std::int64_t d : {3, 5}) {
          const bool here = n == 1 && h == 1, own = p == t, later = p >= t, earlier = p <= t;
          const bool key_side = source == Source::k || source == Source::v;
          // Values and their gradients keep channels apart.
          const bool out = source == Source::q ? own
                           : key_side          ? later && (d == 3 || source == Source::k)
                                               : false;
          const bool dv = source == Source::k || (source == Source::q && earlier) ||
                          (source == Source::dout && earlier && d == 3);
          wrong += is_nan(got.out[s.out(n, p, h, d)]) != (here && out);
          wrong += is_nan(g.dqkv[s.q(n, p, h, d)]) != (here && (key_side ? later : own));
          wrong += is_nan(g.dqkv[s.k(n, p, h, d)]) != (here && (key_side || earlier));
          wrong += is_nan(g.dqkv[s.v(n, p, h, d)]) != (here && dv);
        }
  INFO("source " << static_cast<int>(source) << " at " << t);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("NaN reaches what depends on it, and no other position, head or sequence") {
  const cpu::InstructionSet best = cpu::native_instruction_set();
  for (Backend* b : backends())
    for (const cpu::InstructionSet set :
         {cpu::InstructionSet::avx512, cpu::InstructionSet::avx2, cpu::InstructionSet::baseline}) {
      if (set > best) continue;
      cpu::limit_instruction_set(set);
      INFO(cpu::name_of(set));
      for (const Source source : {Source::q, Source::k, Source::v, Source::dout})
        for (const std::int64_t t : {0, 69, 70, 71, 72, 127, 139}) {
          nan_reaches_what_sees_it<float>(*b, source, t);
          nan_reaches_what_sees_it<bf16>(*b, source, t);
        }
      cpu::limit_instruction_set(best);
    }
}

TEST_CASE("attention of impossible shapes is refused by name") {
  for (Backend* b : backends()) {
    DeviceArray<float> qkv(*b, {1, 4, 48}), out(*b, {1, 4, 16}), lse(*b, {1, 2, 4});
    const AttentionForward good{.qkv = qkv.tensor,
                                .heads = 2,
                                .kv_heads = 2,
                                .scale = 1,
                                .out = {.t = out.tensor},
                                .lse = lse.tensor};
    CHECK_NOTHROW(b->run(good));
    AttentionForward op = good;
    op.qkv.shape[0] = 0;
    CHECK_THROWS_WITH(b->run(op), ContainsSubstring("AttentionForward.qkv"));
    op = good;
    op.first_query = 4;
    CHECK_THROWS_WITH(b->run(op), ContainsSubstring("AttentionForward.first_query: found 4"));
    op = good;
    op.kv_heads = 3;
    CHECK_THROWS_WITH(b->run(op), ContainsSubstring("AttentionForward.kv_heads: found 3"));
    op = good;
    op.scale = std::nanf("");
    CHECK_THROWS_WITH(b->run(op), ContainsSubstring("AttentionForward.scale"));
  }
}
