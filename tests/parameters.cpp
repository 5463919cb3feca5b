// The parameter table against GPT-2's published counts, and the initial values against their distribution.
#include "parameters.h"

#include <cmath>
#include <set>
#include <vector>

#include "catch.h"
#include "error.h"

using namespace octavo;

namespace {

ModelShape shape(std::int64_t L, std::int64_t C, std::int64_t H, std::int64_t T, std::int64_t V) {
  ModelShape s;
  s.layers = L, s.channels = C, s.heads = s.kv_heads = H, s.context = T, s.vocab = V;
  s.padded_vocab = (V + kVocabPadding - 1) / kVocabPadding * kVocabPadding;
  return s;
}

}  // namespace

TEST_CASE("GPT-2 sizes") {
  CHECK(make_parameter_table(shape(12, 768, 12, 1024, 50257)).count() == 124439808);
  CHECK(make_parameter_table(shape(24, 1024, 16, 1024, 50257)).count() == 354823168);
  CHECK(make_parameter_table(shape(48, 1600, 25, 1024, 50257)).count() == 1557611200);
  // FLOPs count padding, as llm.c does: N = 124,475,904.
  const ModelShape s = shape(12, 768, 12, 1024, 50257);
  CHECK(flops_per_token(make_parameter_table(s), s, 1024) == 6.0 * 124475904 + 6.0 * 12 * 768 * 1024);
}

TEST_CASE("the arena holds every parameter once, aligned, and the segments cover it") {
  ModelShape s = shape(3, 48, 3, 37, 101);
  for (bool tied : {true, false}) {
    s.tied = tied;
    const ParameterTable t = make_parameter_table(s);
    std::int64_t end = 0;
    std::set<std::string> names, hf_names;
    for (const Parameter& p : t.parameters) {
      CHECK(p.offset % 64 == 0);
      CHECK(p.offset >= end);
      CHECK(p.offset - end < 64);
      end = p.offset + p.size();
      CHECK(names.insert(p.name).second);
      CHECK(hf_names.insert(p.hf_name).second);
      CHECK(p.decays == (p.rank == 2));
    }
    CHECK(end <= t.arena_size);
    std::int64_t at = 0;
    for (const ArenaSegment& segment : t.segments) {
      CHECK(segment.begin == at);
      at = segment.end;
    }
    CHECK(at == t.arena_size);
    for (const Parameter& p : t.parameters)
      for (const ArenaSegment& segment : t.segments)
        if (segment.begin <= p.offset && p.offset < segment.end) {
          CHECK(segment.decays == p.decays);
          CHECK(p.offset + p.size() <= segment.end);
        }
    CHECK((t.head == t.wte) == tied);
    CHECK(t[t.wte].rows == 128);
    CHECK(t[t.wte].saved_rows == 101);
  }
}

TEST_CASE("initial values: GPT-2's distribution, padding zero, each element its own") {
  const ModelShape s = shape(4, 64, 4, 32, 97);
  const ParameterTable t = make_parameter_table(s);
  std::vector<float> a(static_cast<std::size_t>(t.arena_size), -7.0f), b = a;
  initialise_parameters(t, s, 0.02, 1, a.data());
  initialise_parameters(t, s, 0.02, 2, b.data());
  std::set<float> seen;
  for (const Parameter& p : t.parameters) {
    const float* v = a.data() + p.offset;
    if (p.init == Init::zero || p.init == Init::one) {
      for (std::int64_t i = 0; i < p.size(); ++i) REQUIRE(v[i] == (p.init == Init::one ? 1.0f : 0.0f));
      continue;
    }
    const std::int64_t n = p.saved_rows * p.cols;
    double sum = 0, square = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += v[i], square += static_cast<double>(v[i]) * v[i];
    const double expect = p.init == Init::normal ? 0.02 : 0.02 / std::sqrt(8.0);
    const double std_n = std::sqrt(static_cast<double>(n));
    CHECK(std::abs(sum / static_cast<double>(n)) < 5 * expect / std_n);
    CHECK(std::sqrt(square / static_cast<double>(n)) == Approx(expect).epsilon(5 / std_n));
    CHECK(v[0] != b[static_cast<std::size_t>(p.offset)]);
    CHECK(seen.insert(v[0]).second);
    for (std::int64_t i = n; i < p.size(); ++i) REQUIRE(v[i] == 0.0f);
  }
}

TEST_CASE("impossible shapes are refused with the key") {
  CHECK_THROWS_WITH(make_parameter_table(shape(1, 768, 7, 8, 9)), ContainsSubstring("model.heads: found 7"));
  CHECK_THROWS_WITH(make_parameter_table(shape(1, 36, 3, 8, 9)),
                    ContainsSubstring("found 3, so a head of 36 / 3 = 12"));
  CHECK_THROWS_AS(make_parameter_table(shape(0, 64, 4, 8, 9)), RequestError);
}
