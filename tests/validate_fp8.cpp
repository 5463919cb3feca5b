// validate() on what FP8 adds to the operators: codes and slots of every operand, products of codes, the
// update.
#include "backend.h"
#include "bad_arguments.h"
#include "catch.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

constexpr DType kE4m3 = DType::e4m3, kE5m2 = DType::e5m2;

Tensor e4m3(std::initializer_list<std::int64_t> dims) {
  return Tensor(memory, kE4m3, dims);
}
Tensor e5m2(std::initializer_list<std::int64_t> dims) {
  return Tensor(memory, kE5m2, dims);
}

StepState state;

/// Its numbers are never read.
template <typename T>
T* number() {
  return reinterpret_cast<T*>(memory);
}
const Fp8Slot kSlot{.format = kE4m3,
                    .scale = number<float>(),
                    .scale_inv = number<float>(),
                    .amax = number<std::int32_t>(),
                    .own_amax = number<std::int32_t>(),
                    .saturated = number<std::int64_t>(),
                    .underflowed = number<std::int64_t>()};

Fp8Slot slot_of(DType format) {
  Fp8Slot slot = kSlot;
  slot.format = format;
  return slot;
}
const Fp8Slot kGradientSlot = slot_of(kE5m2), kValueSlot = slot_of(DType::bf16);

/// A slot that lacks one number.
template <typename T>
Fp8Slot without(T* Fp8Slot::*member) {
  Fp8Slot slot = kSlot;
  slot.*member = nullptr;
  return slot;
}
const Fp8Slot kUnplaced[] = {without(&Fp8Slot::scale),     without(&Fp8Slot::scale_inv),
                             without(&Fp8Slot::amax),      without(&Fp8Slot::own_amax),
                             without(&Fp8Slot::saturated), without(&Fp8Slot::underflowed)};

/// The forms of a [rows,columns] operand that an operator writes, as Op::*member, right and wrong.
template <typename Op>
void check_written(const char* name, Op op, Operand Op::*member, const char* field, std::int64_t rows,
                   std::int64_t columns, bool needs_values) {
  Operand& y = op.*member;
  y.q = e4m3({rows, columns});
  y.q_t = e4m3({columns, rows});
  y.slot = &kSlot;
  const auto with = [&](auto change) { return Case<Op>{field, [=](Op& o) { change(o.*member); }}; };
  std::vector<Case<Op>> cases = {with([=](Operand& o) {
                                   o.q = e5m2({rows, columns});
                                 }),
                                 with([=](Operand& o) {
                                   o.q_t = e5m2({columns, rows});
                                 }),
                                 with([=](Operand& o) { o.q.dtype = DType::u8; }),
                                 with([=](Operand& o) {
                                   o.q = e4m3({rows + 1, columns});
                                 }),
                                 with([=](Operand& o) {
                                   o.q = e4m3({columns, rows});
                                 }),
                                 with([=](Operand& o) {
                                   o.q_t = e4m3({rows, columns});
                                 }),
                                 with([=](Operand& o) { o.q_t = e4m3({rows * columns}); }),
                                 with([](Operand& o) { o.slot = nullptr; }),
                                 with([](Operand& o) { o.q = {}, o.q_t = {}; }),  // a slot without codes
                                 with([](Operand& o) { o.slot = &kGradientSlot; }),
                                 with([](Operand& o) { o.slot = &kValueSlot; })};
  for (const Fp8Slot& slot : kUnplaced) cases.push_back(with([&slot](Operand& o) { o.slot = &slot; }));
  if (needs_values) cases.push_back({field, [=](Op& o) { (o.*member).t = {}; }});
  check<Op>(name, op, cases);

  // Each form alone, in either format.
  for (const Fp8Slot* slot : {&kSlot, &kGradientSlot})
    for (const bool plain : {false, true})
      for (const bool values : {false, true}) {
        if (needs_values && !values) continue;
        Op good = op;
        Operand& o = good.*member;
        o.slot = slot;
        o.q.dtype = o.q_t.dtype = slot->format;
        (plain ? o.q_t : o.q) = {};
        if (!values) o.t = {};
        CHECK_NOTHROW(validate(good));
      }
}

constexpr std::int64_t B = 2, T = 3, N = 6, C = 8, H = 4, Hkv = 2, D = 2, kPacked = (H + 2 * Hkv) * D;

}  // namespace

TEST_CASE("codes and slots of every operand that is written are checked", "[fp8]") {
  check_written<NormForward>("NormForward",
                             {.x = half({N, C}),
                              .gain = f32({C}),
                              .bias = f32({C}),
                              .y = {.t = half({N, C})},
                              .mean = f32({N}),
                              .rstd = f32({N})},
                             &NormForward::y, "y", N, C, false);
  check_written<NormBackward>("NormBackward",
                              {.dy = half({N, C}),
                               .residual = half({N, C}),
                               .gain = f32({C}),
                               .mean = f32({N}),
                               .rstd = f32({N}),
                               .dresidual = half({N, C}),
                               .dgain = f32({C}),
                               .dbias = f32({C}),
                               .dbranch = {.t = half({N, C})}},
                              &NormBackward::dbranch, "dbranch", N, C, false);
  check_written<AttentionForward>("AttentionForward",
                                  {.qkv = half({B, T, kPacked}),
                                   .heads = H,
                                   .kv_heads = Hkv,
                                   .scale = 0.5f,
                                   .out = {.t = half({B, T, H * D})},
                                   .lse = f32({B, H, T})},
                                  &AttentionForward::out, "out", N, H * D, true);
  check_written<AttentionBackward>("AttentionBackward",
                                   {.qkv = half({B, T, kPacked}),
                                    .out = half({B, T, H * D}),
                                    .dout = half({B, T, H * D}),
                                    .lse = f32({B, H, T}),
                                    .heads = H,
                                    .kv_heads = Hkv,
                                    .scale = 0.5f,
                                    .dqkv = {.t = half({B, T, kPacked})}},
                                   &AttentionBackward::dqkv, "dqkv", N, kPacked, true);
  check_written<ActivationForward>("ActivationForward", {.x = half({N, C}), .y = {.t = half({N, C})}},
                                   &ActivationForward::y, "y", N, C, false);
  check_written<ActivationBackward>("ActivationBackward",
                                    {.x = half({N, C}), .dy = half({N, C}), .dx = {.t = half({N, C})}},
                                    &ActivationBackward::dx, "dx", N, C, false);
  for (const Tensor& x : {f32({N, C}), half({N, C})})
    check_written<Cast>("Cast", {.x = x, .y = {.t = half({N, C})}}, &Cast::y, "y", N, C, false);
}

TEST_CASE("attention from a first query on writes the codes of one sequence, plain", "[fp8]") {
  const AttentionForward op{.qkv = half({1, T, kPacked}),
                            .heads = H,
                            .kv_heads = Hkv,
                            .scale = 0.5f,
                            .out = {.t = half({1, T, H * D}), .q = e4m3({T, H * D}), .slot = &kSlot},
                            .lse = f32({1, H, T}),
                            .first_query = 1};
  check<AttentionForward>("AttentionForward", op,
                          {{"first_query",
                            [](AttentionForward& o) {
                              o.out.q_t = e4m3({H * D, T});
                            }},
                           {"first_query", [](AttentionForward& o) {
                              o.qkv = half({B, T, kPacked});
                              o.out.t = half({B, T, H * D}), o.out.q = e4m3({N, H * D});
                              o.lse = f32({B, H, T});
                            }}});
}

TEST_CASE("codes of f32 values, and operands without any form, are refused", "[fp8]") {
  const Operand codes{.q = e4m3({N, C}), .slot = &kSlot};
  check<ActivationForward>(
      "ActivationForward", {.x = f32({N, C}), .y = {.t = f32({N, C})}},
      {{"y", [&](ActivationForward& o) { o.y = codes; }}, {"y", [](ActivationForward& o) { o.y = {}; }}});
  check<ActivationBackward>("ActivationBackward",
                            {.x = f32({N, C}), .dy = f32({N, C}), .dx = {.t = f32({N, C})}},
                            {{"dx", [&](ActivationBackward& o) { o.dx = codes; }},
                             {"dx", [](ActivationBackward& o) { o.dx = {}; }}});
  check<Cast>("Cast", {.x = f32({N, C}), .y = codes},
              {{"y",
                [](Cast& o) {
                  o.y.t = f32({N, C});
                }},
               {"x", [](Cast& o) { o.x = f32({N * C}); }},
               {"y", [](Cast& o) { o.y = {}; }}});
}

TEST_CASE("codes of AdamW's segments are checked", "[fp8]") {
  using A = AdamW;
  static const Operand good{.q = e4m3({4, 5}), .q_t = e4m3({5, 4}), .slot = &kSlot},
      large{.q = e4m3({5, 5}), .slot = &kSlot}, flat{.q = e4m3({20}), .slot = &kSlot}, none{},
      other{.q = e5m2({4, 5}), .slot = &kSlot},
      unequal{.q = e4m3({4, 5}), .q_t = e4m3({4, 5}), .slot = &kSlot}, no_slot{.q = e4m3({4, 5})},
      with_values{.t = half({4, 5}), .q = e4m3({4, 5}), .slot = &kSlot},
      transposed{.q_t = e5m2({5, 4}), .slot = &kGradientSlot},
      unplaced{.q = e4m3({4, 5}), .slot = &kUnplaced[0]};
  static const auto segments = [](const Operand& codes, bool values, std::int64_t shift) {
    return std::vector<ArenaSegment>{
        {.begin = 0, .end = 8},
        {.begin = 8, .end = 32, .decays = true, .values = values, .shift = shift, .codes = &codes}};
  };
  static const auto right = segments(good, true, 0), alone = segments(transposed, false, 0),
                    moved = segments(good, true, 24), too_large = segments(large, true, 0),
                    of_vector = segments(flat, true, 0), empty = segments(none, true, 0),
                    of_other = segments(other, true, 0), of_unequal = segments(unequal, true, 0),
                    slotless = segments(no_slot, true, 0), of_values = segments(with_values, true, 0),
                    nowhere = segments(unplaced, true, 0), beyond = segments(good, true, -1);
  const A op{.param = f32({32}),
             .grad = f32({32}),
             .m = f32({32}),
             .v = f32({32}),
             .working = half({32}),
             .segments = right,
             .state = &state};
  check<A>("AdamW", op,
           {{"segments", [](A& o) { o.segments = too_large; }},
            {"segments", [](A& o) { o.segments = of_vector; }},
            {"segments", [](A& o) { o.segments = empty; }},
            {"segments", [](A& o) { o.segments = of_other; }},
            {"segments", [](A& o) { o.segments = of_unequal; }},
            {"segments", [](A& o) { o.segments = slotless; }},
            {"segments", [](A& o) { o.segments = of_values; }},
            {"segments", [](A& o) { o.segments = nowhere; }},
            {"segments", [](A& o) { o.segments = beyond; }},
            {"segments", [](A& o) { o.segments = moved; }},
            {"segments", [](A& o) { o.working = {}; }}});
  A codes_alone = op;
  codes_alone.segments = alone;
  codes_alone.working = half({8});
  CHECK_NOTHROW(validate(codes_alone));
}

TEST_CASE("products of codes are checked", "[fp8]") {
  using M = Matmul;
  constexpr std::int64_t I = 5, O = 7;
  const M fprop{.a = {.q = e4m3({N, I}), .slot = &kSlot},
                .b = {.q = e4m3({O, I}), .slot = &kSlot},
                .codes = true,
                .bias = half({O}),
                .d = half({N, O})};
  check<M>("Matmul", fprop,
           {{"a",
             [](M& o) {
               o.a = {.t = half({N, I})};
             }},
            {"a", [](M& o) { o.a.slot = nullptr; }},
            {"a", [](M& o) { o.a.slot = &kUnplaced[1]; }},
            {"a", [](M& o) { o.a.q.dtype = kE5m2; }},
            {"a", [](M& o) { o.a.q = e4m3({N * I}); }},
            {"a",
             [](M& o) {
               o.a.q = e4m3({0, I});
             }},
            {"a",
             [](M& o) {
               o.a = {.q_t = e4m3({I, N}), .slot = &kSlot};
             }},
            {"b",
             [](M& o) {
               o.b = {.q_t = e4m3({I, O}), .slot = &kSlot};
             }},
            {"b",
             [](M& o) {
               o.b = {.t = half({O, I})};
             }},
            {"b", [](M& o) { o.b.slot = nullptr; }},
            {"b",
             [](M& o) {
               o.b.q = e4m3({O, I + 1});
             }},
            {"b",
             [](M& o) {
               o.a = {.q = e5m2({N, I}), .slot = &kGradientSlot};
               o.b = {.q = e5m2({O, I}), .slot = &kGradientSlot};
             }},
            {"bias", [](M& o) { o.bias = f32({O}); }},
            {"bias", [](M& o) { o.bias = half({I}); }},
            {"d",
             [](M& o) {
               o.d = f32({N, O});
             }},
            {"d",
             [](M& o) {
               o.d = half({O, N});
             }},
            {"accumulate", [](M& o) { o.accumulate = true; }}});
  const M dgrad{.gemm = Gemm::dgrad,
                .a = {.q = e5m2({N, O}), .slot = &kGradientSlot},
                .b = {.q_t = e4m3({I, O}), .slot = &kSlot},
                .codes = true,
                .d = half({N, I})};
  check<M>("Matmul", dgrad,
           {{"a",
             [](M& o) {
               o.a = {.q_t = e5m2({O, N}), .slot = &kGradientSlot};
             }},
            {"b",
             [](M& o) {
               o.b.q_t = e4m3({O, I});
             }},
            {"b",
             [](M& o) {
               o.b.q = e4m3({I, O});
             }},  // not what q_t is the transpose of
            {"b",
             [](M& o) {
               o.b = {.q_t = e5m2({I, O}), .slot = &kGradientSlot};
             }},
            {"bias", [](M& o) { o.bias = half({I}); }},
            {"d", [](M& o) {
               o.d = half({N, O});
             }}});
  const M wgrad{.gemm = Gemm::wgrad,
                .a = {.q_t = e5m2({O, N}), .slot = &kGradientSlot},
                .b = {.q_t = e4m3({I, N}), .slot = &kSlot},
                .codes = true,
                .d = f32({O, I}),
                .accumulate = true};
  check<M>("Matmul", wgrad,
           {{"a", [](M& o) { o.a = {}; }},
            {"b",
             [](M& o) {
               o.b.q_t = e4m3({I, N + 1});
             }},
            {"b",
             [](M& o) {
               o.b.q = e4m3({I, N});
             }},
            {"b",
             [](M& o) {
               o.b = {.q_t = e5m2({I, N}), .slot = &kGradientSlot};
             }},
            {"d",
             [](M& o) {
               o.d = half({O, I});
             }},
            {"d", [](M& o) {
               o.d = f32({I, O});
             }}});
  M plain = wgrad;
  plain.a = {.q = e5m2({N, O}), .slot = &kGradientSlot};
  plain.b.q = e4m3({N, I});
  CHECK_NOTHROW(validate(plain));
}

TEST_CASE("the arguments of the FP8 update are checked", "[fp8]") {
  using U = Fp8Update;
  constexpr std::int64_t S = 3, L = 4;
  const U op{.amax = i32({S}),
             .history = f32({S, L}),
             .scale = f32({S}),
             .scaled_max = f32({S}),
             .last = f32({S}),
             .frozen = i32({S}),
             .state = &state};
  check<U>("Fp8Update", op,
           {{"amax", [](U& o) { o.amax = {}; }},
            {"amax", [](U& o) { o.amax = f32({S}); }},
            {"amax",
             [](U& o) {
               o.amax = i32({S, L});
             }},
            {"amax", [](U& o) { o.amax = i32({0}); }},
            {"history", [](U& o) { o.history = {}; }},
            {"history",
             [](U& o) {
               o.history = f32({L, S});
             }},
            {"history",
             [](U& o) {
               o.history = f32({S, 0});
             }},
            {"history",
             [](U& o) {
               o.history = i32({S, L});
             }},
            {"history", [](U& o) { o.history = f32({S}); }},
            {"history", [](U& o) { o.scaling = Fp8Scaling::current; }},
            {"scale", [](U& o) { o.scale = {}; }},
            {"scale", [](U& o) { o.scale = f32({S + 1}); }},
            {"scaled_max", [](U& o) { o.scaled_max = i32({S}); }},
            {"last", [](U& o) { o.last = {}; }},
            {"frozen", [](U& o) { o.frozen = f32({S}); }},
            {"state", [](U& o) { o.state = nullptr; }}});
  U current = op;
  current.scaling = Fp8Scaling::current;
  current.history = {};
  CHECK_NOTHROW(validate(current));
}
