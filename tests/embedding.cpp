// Embedding forward and backward against the oracle: repeated tokens, long tables, dropout, accumulation.
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
  std::int64_t B, T, C, rows, context;
};
const Sizes kSizes[] = {{2, 8, 64, 30, 8}, {3, 37, 48, 11, 40}, {1, 5, 7, 1, 9}, {4, 60, 33, 300, 64}};

template <typename T>
void forward_against_oracle(Backend& b, const Sizes& s, double p) {
  const std::int64_t N = s.B * s.T;
  const oracle::Mask mask = mask_of(p, s.B, DropPlace::embedding);
  const DeviceMask device_mask(b, mask);
  const std::vector<std::int32_t> tokens = random_ids(N, 1, static_cast<std::int32_t>(s.rows));
  const std::vector<T> wte = random_values<T>(s.rows * s.C, 2), wpe = random_values<T>(s.context * s.C, 3);
  DeviceArray<std::int32_t> ids(b, tokens, {s.B, s.T}, "tokens");
  DeviceArray<T> te(b, wte, {s.rows, s.C}, "wte"), pe(b, wpe, {s.context, s.C}, "wpe"), x(b, {N, s.C}, "x");
  b.run(EmbeddingForward{.tokens = ids.tensor,
                         .wte = te.tensor,
                         .wpe = pe.tensor,
                         .x = x.tensor,
                         .dropout = device_mask.dropout});
  const Values factors = oracle::mask_factors(mask, N, s.C, s.T);
  const DType type = dtype_of<T>::value;
  const Rounding rounding{.stored = type, .inner = p > 0 ? type : DType::f32};  // the sum is rounded first
  CHECK(mismatch(x.read(), oracle::embedding_forward(tokens, widen(wte), widen(wpe), s.B, s.T, s.C, factors),
                 rounding) == "");
  CHECK(bits_of(te.read()) == bits_of(wte));
  CHECK(bits_of(pe.read()) == bits_of(wpe));
  // The rounding order of the contract, exactly: round the sum, then drop.
  const std::vector<T> got = x.read();
  for (std::int64_t n = 0; n < N; ++n)
    for (std::int64_t c = 0; c < s.C; ++c) {
      const float sum = to_float(wte[oracle::at(tokens[static_cast<std::size_t>(n)], c, s.C)]) +
                        to_float(wpe[oracle::at(n % s.T, c, s.C)]);
      const T expected = dropped(narrow_to<T>(static_cast<double>(sum)), factors[oracle::at(n, c, s.C)]);
      if (to_float(got[oracle::at(n, c, s.C)]) != to_float(expected)) FAIL("row " << n << " column " << c);
    }
}

struct Gradients {
  std::vector<float> dwte, dwpe;
};

template <typename T>
Gradients run_backward(Backend& b, const Sizes& s, const oracle::Mask& mask, bool accumulate_wte,
                       bool accumulate_wpe) {
  const std::int64_t N = s.B * s.T;
  const DeviceMask device_mask(b, mask);
  const std::vector<T> gradient = random_values<T>(N * s.C, 4);
  DeviceArray<std::int32_t> ids(b, random_ids(N, 1, static_cast<std::int32_t>(s.rows)), {s.B, s.T}, "tokens");
  DeviceArray<T> dx(b, gradient, {N, s.C}, "dx");
  DeviceArray<float> dwte(b, random_values<float>(s.rows * s.C, 5), {s.rows, s.C}, "dwte");
  DeviceArray<float> dwpe(b, random_values<float>(s.context * s.C, 6), {s.context, s.C}, "dwpe");
  b.run(EmbeddingBackward{.tokens = ids.tensor,
                          .dx = dx.tensor,
                          .dwte = dwte.tensor,
                          .dwpe = dwpe.tensor,
                          .accumulate_wte = accumulate_wte,
                          .accumulate_wpe = accumulate_wpe,
                          .dropout = device_mask.dropout});
  CHECK(bits_of(dx.read()) == bits_of(gradient));
  return {dwte.read(), dwpe.read()};
}

template <typename T>
void backward_against_oracle(Backend& b, const Sizes& s, double p, bool accumulate_wte, bool accumulate_wpe) {
  const std::int64_t N = s.B * s.T;
  const oracle::Mask mask = mask_of(p, s.B, DropPlace::embedding);
  const Gradients got = run_backward<T>(b, s, mask, accumulate_wte, accumulate_wpe);
  Values old_wte = widen(random_values<float>(s.rows * s.C, 5));
  Values old_wpe = widen(random_values<float>(s.context * s.C, 6));
  if (!accumulate_wte) std::fill(old_wte.begin(), old_wte.end(), 0.0);
  if (!accumulate_wpe) std::fill(old_wpe.begin(), old_wpe.end(), 0.0);
  const oracle::EmbeddingGradients expected = oracle::embedding_backward(
      random_ids(N, 1, static_cast<std::int32_t>(s.rows)), widen(random_values<T>(N * s.C, 4)), s.B, s.T, s.C,
      oracle::mask_factors(mask, N, s.C, s.T), old_wte, old_wpe);
  const DType inner = p > 0 ? dtype_of<T>::value : DType::f32;  // what was dropped is rounded
  CHECK(mismatch(got.dwte, expected.dwte, {.terms = N, .inner = inner}) == "");
  CHECK(mismatch(got.dwpe, expected.dwpe, {.terms = s.B, .inner = inner}) == "");
  if (s.B == 1 && !accumulate_wpe) {  // no sum: what was dropped, as it would have been stored
    const std::vector<T> dx = random_values<T>(N * s.C, 4);
    const Values factors = oracle::mask_factors(mask, N, s.C, s.T);
    for (std::size_t i = 0; i < dx.size(); ++i)
      if (got.dwpe[i] != to_float(dropped(dx[i], factors[i]))) FAIL("dwpe element " << i);
  }
  for (std::int64_t t = s.T; t < s.context; ++t)  // rows beyond T: +0
    for (std::int64_t c = 0; c < s.C; ++c)
      if (static_cast<double>(got.dwpe[oracle::at(t, c, s.C)]) != old_wpe[oracle::at(t, c, s.C)])
        FAIL("dwpe row " << t << " column " << c);
}

}  // namespace

TEST_CASE("embedding forward agrees with the oracle and rounds in the order of its contract") {
  for (Backend* b : backends())
    for (const Sizes& s : kSizes)
      for (const double p : {0.0, 0.3}) {
        INFO(b->name() << " T=" << s.T << " C=" << s.C << " p=" << p);
        forward_against_oracle<float>(*b, s, p);
        forward_against_oracle<bf16>(*b, s, p);
      }
}

TEST_CASE("embedding backward agrees with the oracle") {
  for (Backend* b : backends())
    for (const Sizes& s : kSizes)
      for (const double p : {0.0, 0.3})
        for (const bool wte : {false, true})
          for (const bool wpe : {false, true}) {
            INFO(b->name() << " T=" << s.T << " C=" << s.C << " p=" << p << " += " << wte << wpe);
            backward_against_oracle<float>(*b, s, p, wte, wpe);
            backward_against_oracle<bf16>(*b, s, p, wte, wpe);
          }
}

TEST_CASE("embedding backward has the same bits on any number of threads and any instruction set") {
  check_same_bits_everywhere([](Backend& b) {
    const Sizes s{3, 101, 53, 13, 110};
    const oracle::Mask mask = mask_of(0.2, s.B, DropPlace::embedding);
    const Gradients f = run_backward<float>(b, s, mask, true, false);
    const Gradients h = run_backward<bf16>(b, s, mask, true, false);
    return bits_of(f.dwte) + bits_of(f.dwpe) + bits_of(h.dwte) + bits_of(h.dwpe);
  });
}

TEST_CASE("the CPU refuses token ids outside the table, before it writes") {
  Backend& b = *backends().front();
  for (const std::int32_t bad : {-1, 4, 1 << 30}) {
    DeviceArray<std::int32_t> ids(b, {0, 3, bad, 1}, {1, 4});
    DeviceArray<float> table(b, random_values<float>(4 * 8, 1), {4, 8}),
        positions(b, std::vector<float>(32), {4, 8});
    DeviceArray<float> x(b, {4, 8}, "x");
    const std::string before = bits_of(x.read());
    CHECK_THROWS_WITH(b.run(EmbeddingForward{.tokens = ids.tensor,
                                             .wte = table.tensor,
                                             .wpe = positions.tensor,
                                             .x = x.tensor,
                                             .dropout = {}}),
                      ContainsSubstring("EmbeddingForward.tokens") &&
                          ContainsSubstring(std::to_string(bad)) && ContainsSubstring("4 rows"));
    CHECK(bits_of(x.read()) == before);
    const std::vector<float> old = table.read();
    CHECK_THROWS_WITH(b.run(EmbeddingBackward{.tokens = ids.tensor,
                                              .dx = x.tensor,
                                              .dwte = table.tensor,
                                              .dwpe = positions.tensor,
                                              .dropout = {}}),
                      ContainsSubstring("EmbeddingBackward.tokens"));
    CHECK(table.read() == old);
  }
}
