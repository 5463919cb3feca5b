// The forms of an operand, of every operator that writes one: codes are those of the values, transposed codes
// are the codes transposed, the slot gets the tensor's amax and counts, and the values are what they are
// without codes.
#include "cpu/fp8_codes.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "backend.h"
#include "backends.h"
#include "catch.h"
#include "fp8_operands.h"
#include "fp8_reference.h"

using namespace octavo;
using namespace octavo::testing;
using reference::Coded;
using reference::kFormats;

namespace {

constexpr Fp8Scaling kScalings[] = {Fp8Scaling::delayed, Fp8Scaling::current};

/// All sets of forms with codes.
std::vector<Forms> coded_forms(bool needs_values) {
  std::vector<Forms> all;
  for (const bool t : {false, true})
    for (int codes = 1; codes < 4; ++codes)
      if (t || !needs_values) all.push_back({.t = t, .q = (codes & 1) != 0, .q_t = (codes & 2) != 0});
  return all;
}

/// What an operator left in an operand and its slot, against what it should.
void check_forms(const DeviceOperand& got, const Forms& forms, const DeviceSlot::Start& start, bool record,
                 const std::vector<bf16>& values, const Coded& expected, std::int64_t rows,
                 std::int64_t columns) {
  // An operand that is not asked for keeps its pattern.
  const std::vector<std::uint8_t> unwritten(values.size(), 0xff);
  const std::vector<bf16> no_values(values.size(), bf16{0xffff});
  CHECK((bits_of(got.t.read()) == bits_of(forms.t ? values : no_values)));
  CHECK((got.q.read() == (forms.q ? expected.q : unwritten)));
  CHECK((got.q_t.read() == (forms.q_t ? reference::transpose(expected.q, rows, columns) : unwritten)));
  CHECK(bits_of(got.slot.scale.read()) == bits_of(std::vector<float>{expected.scale}));
  CHECK(bits_of(got.slot.scale_inv.read()) == bits_of(std::vector<float>{expected.scale_inv}));
  const std::uint32_t before = std::bit_cast<std::uint32_t>(start.amax);
  CHECK(got.slot.amax_bits() == (record ? std::max(before, expected.amax) : before));
  CHECK(got.slot.saturated.read()[0] == start.saturated + (record ? expected.saturated : 0));
  CHECK(got.slot.underflowed.read()[0] == start.underflowed + (record ? expected.underflowed : 0));
  if (got.slot.slot.scaling == Fp8Scaling::current)
    CHECK(static_cast<std::uint32_t>(got.slot.own_amax.read()[0]) == expected.amax);
}

/// All that is asked of a producer, for every set of forms. `tallied` gathers what was seen.
void check_producer(Backend& b, const Producer& p, cpu::Fp8Tally& tallied) {
  DeviceOperand plain(b, p.rows, p.columns, DType::e4m3, Fp8Scaling::delayed, {.t = true});
  const std::string others = p.run(b, plain.operand);
  const std::vector<bf16> values = plain.t.read();
  const float amax = std::bit_cast<float>(reference::amax_of(values));
  for (const DType format : kFormats)
    for (const Fp8Scaling scaling : kScalings)
      for (const float reach : {2.7f, 1e-4f}) {  // the first scale saturates, the second underflows
        const float scale = scaling == Fp8Scaling::current
                                ? reference::current_scale(format, values)
                                : reach * static_cast<float>(reference::largest_of(format)) / amax;
        const Coded expected = reference::quantise(format, values, scale);
        // Folded before this tensor: nothing, or more than it has.
        const DeviceSlot::Start start{.scale = scaling == Fp8Scaling::current ? 77 : scale,
                                      .amax = reach < 1 ? 1e30f : 0,
                                      .saturated = 5,
                                      .underflowed = std::int64_t{1} << 40};
        for (const bool record : {true, false})
          for (const Forms& forms : coded_forms(p.needs_values)) {
            INFO(b.name() << ": " << p.name << ", " << name_of(format) << ", "
                          << (scaling == Fp8Scaling::current ? "current" : "delayed") << ", scale " << scale
                          << ", record " << record << ", forms " << forms.t << forms.q << forms.q_t);
            const DeviceOperand got(b, p.rows, p.columns, format, scaling, forms, start, record);
            CHECK((p.run(b, got.operand) == others));
            check_forms(got, forms, start, record, values, expected, p.rows, p.columns);
          }
        if (scaling == Fp8Scaling::delayed) {
          tallied.saturated += static_cast<std::uint64_t>(expected.saturated);
          tallied.underflowed += static_cast<std::uint64_t>(expected.underflowed);
        }
      }
}

std::string all_forms(Backend& b, bool attention) {
  std::string bits;
  for (const Producer& p : all_producers()) {
    if (p.needs_values != attention) continue;
    for (const Fp8Scaling scaling : kScalings) {
      const DeviceOperand got(b, p.rows, p.columns, DType::e5m2, scaling, {.t = true, .q = true, .q_t = true},
                              {.scale = 1e4f});
      bits += p.run(b, got.operand);
      bits += got.bits();
    }
  }
  return bits;
}

std::vector<bf16> all_bf16_values() {
  std::vector<bf16> v;
  for (std::uint32_t u = 0; u < 65536; ++u) v.push_back({static_cast<std::uint16_t>(u)});
  return v;
}

/// Casts to all forms.
DeviceOperand& cast_all(Backend& b, DeviceOperand& y, const std::vector<float>& x) {
  DeviceArray<float> from(b, x, {y.t.tensor.dim(0), y.t.tensor.dim(1)}, "x");
  b.run(Cast{.x = from.tensor, .y = y.operand});
  return y;
}

constexpr Forms kAll{.t = true, .q = true, .q_t = true};

}  // namespace

TEST_CASE("every producer writes the codes of its values, in every set of forms", "[fp8]") {
  for (Backend* b : backends())
    for (const Producer& p : all_producers()) {
      cpu::Fp8Tally tallied;
      check_producer(*b, p, tallied);
      INFO(p.name);
      CHECK(tallied.saturated > 0);
      CHECK(tallied.underflowed > 0);
    }
}

TEST_CASE("operands have the same bits on any number of threads and any instruction set", "[fp8]") {
  check_same_bits_everywhere([](Backend& b) { return all_forms(b, false); });
}

TEST_CASE("attention's codes are those of its values on every instruction set, on any number of threads",
          "[fp8]") {
  const cpu::InstructionSet best = cpu::native_instruction_set();
  for (const cpu::InstructionSet set :
       {cpu::InstructionSet::avx512, cpu::InstructionSet::avx2, cpu::InstructionSet::baseline}) {
    if (set > best) continue;
    cpu::limit_instruction_set(set);
    INFO(cpu::name_of(set));
    std::string first;
    for (const int threads : {1, 2, 3}) {
      const std::unique_ptr<Backend> b = make_cpu_backend(threads);
      const std::string here = all_forms(*b, true);
      if (first.empty()) first = here;
      CHECK((here == first));
    }
    for (const Producer& p : all_producers()) {
      if (!p.needs_values) continue;
      const std::unique_ptr<Backend> b = make_cpu_backend(2);
      DeviceOperand got(*b, p.rows, p.columns, DType::e4m3, Fp8Scaling::delayed, kAll, {.scale = 100});
      p.run(*b, got.operand);
      const std::vector<bf16> values = got.t.read();
      check_forms(got, kAll, {}, true, values, reference::quantise(DType::e4m3, values, 100), p.rows,
                  p.columns);
    }
    cpu::limit_instruction_set(best);
  }
  omp_set_num_threads(omp_get_num_procs());
}

TEST_CASE("attention from a first query on leaves the codes and the amax of earlier rows out", "[fp8]") {
  using namespace producers;
  for (Backend* b : backends())
    for (const Fp8Scaling scaling : kScalings) {
      DeviceArray<bf16> qkv(*b, random_values<bf16>(kT * kPacked, 51, 2), {1, kT, kPacked}, "qkv");
      DeviceArray<float> lse(*b, {1, kHeads, kT}, "lse");
      constexpr std::int64_t kFirst = 21, kRest = kT - kFirst, kBefore = kFirst * kOut;
      // Values of earlier rows are as allocated here: NaN.
      DeviceOperand got(*b, kT, kOut, DType::e4m3, scaling, {.t = true, .q = true}, {.scale = 90});
      b->run(AttentionForward{.qkv = qkv.tensor,
                              .heads = kHeads,
                              .kv_heads = kKvHeads,
                              .scale = 0.25f,
                              .out = viewed(got.operand, {1, kT, kOut}),
                              .lse = lse.tensor,
                              .first_query = kFirst});
      const std::vector<bf16> all = got.t.read(), values(all.begin() + kBefore, all.end());
      const std::vector<std::uint8_t> codes = got.q.read();
      const float scale = scaling == Fp8Scaling::delayed ? 90 : reference::current_scale(DType::e4m3, values);
      const Coded expected = reference::quantise(DType::e4m3, values, scale);
      CHECK(std::all_of(codes.begin(), codes.begin() + kBefore, [](int c) { return c == 0xff; }));
      CHECK((std::vector<std::uint8_t>(codes.begin() + kBefore, codes.end()) == expected.q));
      CHECK(static_cast<std::int64_t>(values.size()) == kRest * kOut);
      CHECK(got.slot.scale.read()[0] == scale);
      CHECK(got.slot.amax_bits() == expected.amax);
    }
}

TEST_CASE("matrices of any size have their codes, however few or many rows there are", "[fp8]") {
  const std::pair<std::int64_t, std::int64_t> sizes[] = {{1, 1},   {1, 17},  {17, 1},   {16, 16},
                                                         {15, 31}, {33, 16}, {1100, 3}, {5, 4099}};
  for (Backend* b : backends())
    for (const auto& [rows, columns] : sizes)
      for (const Fp8Scaling scaling : kScalings) {
        INFO(rows << " x " << columns);
        const std::vector<float> x = random_values<float>(rows * columns, 31, 5);
        std::vector<bf16> values;
        for (const float v : x) values.push_back(to_bf16(v));
        for (const Forms& forms : coded_forms(false)) {
          DeviceOperand y(*b, rows, columns, DType::e4m3, scaling, forms, {.scale = 80});
          const float scale =
              scaling == Fp8Scaling::delayed ? 80 : reference::current_scale(DType::e4m3, values);
          check_forms(cast_all(*b, y, x), forms, {.scale = 80}, true, values,
                      reference::quantise(DType::e4m3, values, scale), rows, columns);
        }
      }
}

TEST_CASE("infinities, NaN and zeros have their codes, amax and counts", "[fp8]") {
  constexpr float kInf = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  const float max = std::numeric_limits<float>::max();  // rounds to infinity as bf16
  const std::vector<float> ordinary = {0.5f, -3, 0, -0.0f, 1e-40f, -1e-30f, 200};
  const std::vector<std::vector<float>> added = {{0, 0},    {kInf, 1},     {-kInf, 1},     {max, -max},
                                                 {kNan, 1}, {-kNan, kInf}, {1e-40f, 3e38f}};
  for (Backend* b : backends()) {
    std::vector<std::vector<float>> cases = {{0, -0.0f, 0}, {kNan}, {kInf}, {1e-38f, -2e-38f}, {1e-40f}};
    for (const std::vector<float>& extra : added) {
      cases.push_back(ordinary);
      cases.back().insert(cases.back().begin() + 3, extra.begin(), extra.end());
    }
    for (const std::vector<float>& x : cases)
      for (const DType format : kFormats)
        for (const Fp8Scaling scaling : kScalings) {
          const std::int64_t n = static_cast<std::int64_t>(x.size());
          std::vector<bf16> values;
          for (const float v : x) values.push_back(to_bf16(v));
          const float scale = scaling == Fp8Scaling::delayed ? 64 : reference::current_scale(format, values);
          INFO(name_of(format) << " scale " << scale << ", x[0] = " << x[0] << ", " << n << " values");
          DeviceOperand y(*b, n, 1, format, scaling, kAll, {.scale = 64});
          check_forms(cast_all(*b, y, x), kAll, {.scale = 64}, true, values,
                      reference::quantise(format, values, scale), n, 1);
        }
  }
}

TEST_CASE("amax, saturation and underflow are what they say", "[fp8]") {
  for (Backend* b : backends()) {
    // At scale 2: 225 becomes 450, beyond the largest value, which 224 becomes; 2^-12, 2^-11 and 3 2^-12
    // become a quarter, a half (a tie, to zero) and three quarters of the smallest denormal.
    DeviceOperand y(*b, 1, 6, DType::e4m3, Fp8Scaling::delayed, kAll, {.scale = 2});
    cast_all(*b, y, {225, -224, 0x1p-12f, -0x1p-11f, 0x1.8p-11f, 0});
    CHECK(y.q.read() == std::vector<std::uint8_t>{0x7e, 0xfe, 0x00, 0x80, 0x01, 0x00});
    CHECK(std::bit_cast<float>(y.slot.amax_bits()) == 225);
    CHECK(y.slot.saturated.read()[0] == 1);
    CHECK(y.slot.underflowed.read()[0] == 2);
    CHECK(y.slot.scale_inv.read()[0] == 0.5f);
    cast_all(*b, y, {225, 226, -3, 1, 1, 0x1p-20f});  // on top of it
    CHECK(std::bit_cast<float>(y.slot.amax_bits()) == 226);
    CHECK(y.slot.saturated.read()[0] == 3);
    CHECK(y.slot.underflowed.read()[0] == 3);
  }
}

TEST_CASE("AdamW casts a matrix to codes beside segments with working values, unless the step is skipped",
          "[fp8]") {
  // The matrix has no working values, so that those of the last segment move down; its segment has padding.
  constexpr std::int64_t kFirst = 32, kRows = 20, kColumns = 17, kMatrix = 352, kSize = kFirst + kMatrix + 70;
  for (Backend* b : backends())
    for (const std::int32_t skip : {0, 1}) {
      std::vector<float> start = random_values<float>(kSize, 41);
      std::vector<float> gradient = random_values<float>(kSize, 42);
      for (std::int64_t i = kFirst + kRows * kColumns; i < kFirst + kMatrix; ++i)
        start[static_cast<std::size_t>(i)] = gradient[static_cast<std::size_t>(i)] = 0;
      DeviceArray<float> param(*b, start, {kSize}), grad(*b, gradient, {kSize});
      DeviceArray<float> m(*b, std::vector<float>(kSize, 0.0f), {kSize}),
          v(*b, std::vector<float>(kSize, 0.0f), {kSize});
      DeviceArray<bf16> working(*b, {kSize - kMatrix}, "working");
      const DeviceOperand w(*b, kRows, kColumns, DType::e4m3, Fp8Scaling::delayed, {.t = false, .q = true},
                            {.scale = 300});
      const std::vector<ArenaSegment> segments = {
          {.begin = 0, .end = kFirst},
          {.begin = kFirst, .end = kFirst + kMatrix, .decays = true, .values = false, .codes = &w.operand},
          {.begin = kFirst + kMatrix, .end = kSize, .shift = kMatrix}};
      const DeviceState state(*b, StepState{.lr = 0.125f, .clip_factor = 1, .skip = skip});
      b->run(AdamW{.param = param.tensor,
                   .grad = grad.tensor,
                   .m = m.tensor,
                   .v = v.tensor,
                   .working = working.tensor,
                   .segments = segments,
                   .state = state.state});
      if (skip != 0) {
        const DeviceOperand untouched(*b, kRows, kColumns, DType::e4m3, Fp8Scaling::delayed, {},
                                      {.scale = 300});
        CHECK((w.bits() == untouched.bits()));
        CHECK((bits_of(param.read()) == bits_of(start)));
        continue;
      }
      std::vector<bf16> rounded;
      for (const float x : param.read()) rounded.push_back(to_bf16(x));
      const auto matrix = rounded.begin() + kFirst;
      const std::vector<bf16> values(matrix, matrix + kRows * kColumns);
      check_forms(w, {.t = false, .q = true}, {.scale = 300}, true, values,
                  reference::quantise(DType::e4m3, values, 300), kRows, kColumns);
      for (std::size_t i = kRows * kColumns; i < kMatrix; ++i) CHECK(matrix[static_cast<long>(i)].bits == 0);
      rounded.erase(matrix, matrix + kMatrix);
      CHECK((bits_of(working.read()) == bits_of(rounded)));
    }
}

TEST_CASE("the kernels quantise every bf16 value and widen every code, at any length", "[fp8]") {
  const std::vector<bf16> all = all_bf16_values();
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::uint8_t>(i);
  const cpu::InstructionSet best = cpu::native_instruction_set();
  for (const cpu::InstructionSet set :
       {cpu::InstructionSet::avx512, cpu::InstructionSet::avx2, cpu::InstructionSet::baseline}) {
    if (set > best) continue;
    cpu::limit_instruction_set(set);
    INFO(cpu::name_of(set));
    for (const DType format : kFormats) {
      for (const float scale :
           {1.0f, 0x1.3579bcp-3f, 1e-20f, 3e25f, 1.3e-36f, std::numeric_limits<float>::max()}) {
        INFO(name_of(format) << " scale " << scale);
        const Coded expected = reference::quantise(format, all, scale);
        std::vector<std::uint8_t> q(all.size());
        const cpu::Fp8Tally tally =
            cpu::quantise(format, all.data(), static_cast<std::int64_t>(all.size()), scale, q.data());
        CHECK((q == expected.q));
        CHECK(tally.amax == expected.amax);
        CHECK(static_cast<std::int64_t>(tally.saturated) == expected.saturated);
        CHECK(static_cast<std::int64_t>(tally.underflowed) == expected.underflowed);
      }
      for (std::size_t n = 0; n < 50; ++n) {
        const std::vector<bf16> x(all.begin() + 0x3f00, all.begin() + 0x3f00 + static_cast<long>(n));
        const Coded expected = reference::quantise(format, x, 5);
        std::vector<std::uint8_t> q(n + 1, 0x55);
        const cpu::Fp8Tally tally =
            cpu::quantise(format, x.data(), static_cast<std::int64_t>(n), 5, q.data());
        CHECK(q.back() == 0x55);
        q.pop_back();
        CHECK((q == expected.q));
        CHECK(tally.amax == expected.amax);
        CHECK(cpu::amax_bits(x.data(), static_cast<std::int64_t>(n)) == expected.amax);
      }
      for (std::size_t n = 0; n <= 256; ++n) {
        std::vector<bf16> wide(n + 1, bf16{0x1234});
        cpu::widen_codes(format, codes.data(), static_cast<std::int64_t>(n), wide.data());
        CHECK(wide.back().bits == 0x1234);
        for (std::size_t i = 0; i < n; ++i) {
          const double value = reference::value_of(format, static_cast<int>(i));
          const float got = to_float(wide[i]);
          if (std::isnan(value) ? !std::isnan(got)
                                : static_cast<double>(got) != value ||
                                      std::signbit(static_cast<double>(got)) != std::signbit(value))
            FAIL(name_of(format) << " code " << i << " became " << got << " at length " << n);
        }
      }
    }
    cpu::limit_instruction_set(best);
  }
}
