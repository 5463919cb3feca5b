// validate(): every field of every operator with a wrong value, and the words of the refusal.
#include <limits>

#include "backend.h"
#include "bad_arguments.h"
#include "catch.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

StepState state;

constexpr std::int64_t B = 2, T = 3, N = 6, C = 8, V = 11, Vp = 64, H = 4, Hkv = 2, D = 2;

Dropout dropout() {
  return {.p = 0.5f, .samples = Tensor(memory, DType::i64, {B}), .state = &state};
}

template <typename Op>
std::vector<Case<Op>> dropout_cases() {
  return {{"dropout.p", [](Op& o) { o.dropout.p = 1; }},
          {"dropout.p", [](Op& o) { o.dropout.p = -0.1f; }},
          {"dropout.p", [](Op& o) { o.dropout.p = 0.999f; }},
          {"dropout.p", [](Op& o) { o.dropout.p = std::numeric_limits<float>::quiet_NaN(); }},
          {"dropout.samples", [](Op& o) { o.dropout.samples = {}; }},
          {"dropout.samples", [](Op& o) { o.dropout.samples = Tensor(memory, DType::i64, {B + 1}); }},
          {"dropout.samples", [](Op& o) { o.dropout.samples = i32({B}); }},
          {"dropout.state", [](Op& o) { o.dropout.state = nullptr; }},
          {"dropout.layer", [](Op& o) { o.dropout.layer = 1u << 20; }}};
}
template <typename Op>
std::vector<Case<Op>> operator+(std::vector<Case<Op>> a, const std::vector<Case<Op>>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("a refusal says what was found and what is allowed") {
  ActivationForward op{.x = f32({N, C}), .y = {.t = half({N, C + 1})}};
  CHECK_THROWS_WITH(validate(op), "ActivationForward.y: found bf16 [6,9], allowed: f32 [6,8]");
  op.y.t = {};
  CHECK_THROWS_WITH(validate(op), "ActivationForward.y: found absent, allowed: values or FP8 codes");
}

TEST_CASE("embedding arguments are checked") {
  using F = EmbeddingForward;
  check<F>("EmbeddingForward",
           {.tokens = i32({B, T}),
            .wte = half({Vp, C}),
            .wpe = half({T + 2, C}),
            .x = half({N, C}),
            .dropout = dropout()},
           std::vector<Case<F>>{{"tokens", [](F& o) { o.tokens = {}; }},
                                {"tokens", [](F& o) { o.tokens = i32({N}); }},
                                {"tokens",
                                 [](F& o) {
                                   o.tokens = f32({B, T});
                                 }},
                                {"tokens",
                                 [](F& o) {
                                   o.tokens = i32({0, T});
                                 }},
                                {"wte",
                                 [](F& o) {
                                   o.wte = i32({Vp, C});
                                 }},
                                {"wte", [](F& o) { o.wte = {}; }},
                                {"wpe",
                                 [](F& o) {
                                   o.wpe = half({T - 1, C});
                                 }},
                                {"wpe",
                                 [](F& o) {
                                   o.wpe = half({T, C + 1});
                                 }},
                                {"wpe",
                                 [](F& o) {
                                   o.wpe = f32({T, C});
                                 }},
                                {"x",
                                 [](F& o) {
                                   o.x = half({N - 1, C});
                                 }},
                                {"x",
                                 [](F& o) {
                                   o.x = f32({N, C});
                                 }}} +
               dropout_cases<F>());
  using G = EmbeddingBackward;
  check<G>("EmbeddingBackward",
           {.tokens = i32({B, T}),
            .dx = half({N, C}),
            .dwte = f32({Vp, C}),
            .dwpe = f32({T, C}),
            .dropout = dropout()},
           std::vector<Case<G>>{{"tokens",
                                 [](G& o) {
                                   o.tokens = half({B, T});
                                 }},
                                {"dx",
                                 [](G& o) {
                                   o.dx = half({N, C - 1});
                                 }},
                                {"dx", [](G& o) { o.dx = {}; }},
                                {"dwte",
                                 [](G& o) {
                                   o.dwte = half({Vp, C});
                                 }},
                                {"dwpe",
                                 [](G& o) {
                                   o.dwpe = f32({T - 1, C});
                                 }},
                                {"dwpe",
                                 [](G& o) {
                                   o.dwpe = half({T, C});
                                 }}} +
               dropout_cases<G>());
}

TEST_CASE("norm arguments are checked") {
  using F = NormForward;
  const F good{.x = half({N, C}),
               .branch = half({N, C}),
               .dropout = dropout(),
               .residual = half({N, C}),
               .gain = f32({C}),
               .bias = f32({C}),
               .y = {.t = half({N, C})},
               .mean = f32({N}),
               .rstd = f32({N}),
               .T = T};
  check<F>("NormForward", good,
           std::vector<Case<F>>{{"x", [](F& o) { o.x = {}; }},
                                {"branch",
                                 [](F& o) {
                                   o.branch = f32({N, C});
                                 }},
                                {"residual", [](F& o) { o.residual = {}; }},
                                {"residual", [](F& o) { o.branch = {}; }},
                                {"residual",
                                 [](F& o) {
                                   o.residual = half({N, C + 1});
                                 }},
                                {"gain", [](F& o) { o.gain = half({C}); }},
                                {"gain", [](F& o) { o.gain = {}; }},
                                {"bias", [](F& o) { o.bias = f32({C + 1}); }},
                                {"y",
                                 [](F& o) {
                                   o.y.t = f32({N, C});
                                 }},
                                {"y",
                                 [](F& o) {
                                   o.y.q = Tensor(memory, DType::e4m3, {N, C});
                                 }},
                                {"gain", [](F& o) { o.y.t = {}; }},
                                {"mean", [](F& o) { o.mean = f32({C}); }},
                                {"rstd", [](F& o) { o.rstd = {}; }},
                                {"eps", [](F& o) { o.eps = -1; }},
                                {"T", [](F& o) { o.T = 0; }},
                                {"T", [](F& o) { o.T = 4; }}} +
               dropout_cases<F>());
  check<F>("NormForward",
           {.x = f32({N, C}),
            .gain = f32({C}),
            .bias = f32({C}),
            .y = {.t = f32({N, C})},
            .mean = f32({N}),
            .rstd = f32({N})},
           {{"residual",
             [](F& o) {
               o.residual = f32({N, C});
             }},
            {"dropout.p", [](F& o) { o.dropout = dropout(), o.T = T; }},
            {"y", [](F& o) { o.y.t = {}; }}});
  check<F>("NormForward", {.x = f32({N, C}), .branch = f32({N, C}), .residual = f32({N, C})},
           {{"gain", [](F& o) { o.gain = f32({C}); }},
            {"bias", [](F& o) { o.bias = f32({C}); }},
            {"mean", [](F& o) { o.mean = f32({N}); }},
            {"rstd", [](F& o) { o.rstd = f32({N}); }}});

  using G = NormBackward;
  check<G>("NormBackward",
           {.dy = half({N, C}),
            .residual = half({N, C}),
            .gain = f32({C}),
            .mean = f32({N}),
            .rstd = f32({N}),
            .dresidual = half({N, C}),
            .dgain = f32({C}),
            .dbias = f32({C}),
            .dbranch = {.t = half({N, C})},
            .dropout = dropout(),
            .dbranch_bias = f32({C}),
            .T = T},
           std::vector<Case<G>>{{"dy",
                                 [](G& o) {
                                   o.dy = i32({N, C});
                                 }},
                                {"residual",
                                 [](G& o) {
                                   o.residual = f32({N, C});
                                 }},
                                {"gain", [](G& o) { o.gain = {}; }},
                                {"mean", [](G& o) { o.mean = f32({C}); }},
                                {"rstd", [](G& o) { o.rstd = f32({C}); }},
                                {"dresidual", [](G& o) { o.dresidual = {}; }},
                                {"dgain", [](G& o) { o.dgain = half({C}); }},
                                {"dbias", [](G& o) { o.dbias = {}; }},
                                {"dbranch",
                                 [](G& o) {
                                   o.dbranch.t = half({N, C + 1});
                                 }},
                                {"dbranch",
                                 [](G& o) {
                                   o.dbranch.q_t = Tensor(memory, DType::e5m2, {C, N});
                                 }},
                                {"dropout.p", [](G& o) { o.dbranch.t = {}; }},
                                {"dbranch_bias", [](G& o) { o.dbranch_bias = f32({N}); }},
                                {"T", [](G& o) { o.T = 5; }}} +
               dropout_cases<G>());
}

TEST_CASE("matmul arguments are checked in each of the three products") {
  using M = Matmul;
  const std::int64_t I = 5, O = 7;
  const M fprop{.a = {.t = half({N, I})}, .b = {.t = half({O, I})}, .bias = half({O}), .d = half({N, O})};
  check<M>("Matmul", fprop,
           {{"a", [](M& o) { o.a.t = {}; }},
            {"b",
             [](M& o) {
               o.b.t = half({7, 6});
             }},
            {"b",
             [](M& o) {
               o.b.t = f32({7, 5});
             }},
            {"bias", [](M& o) { o.bias = half({5}); }},
            {"bias", [](M& o) { o.bias = f32({7}); }},
            {"d",
             [](M& o) {
               o.d = half({7, N});
             }},
            {"d",
             [](M& o) {
               o.d = f32({N, 7});
             }},
            {"accumulate", [](M& o) { o.accumulate = true; }},
            {"gemm", [](M& o) { o.gemm = static_cast<Gemm>(9); }}});
  check<M>("Matmul",
           {.gemm = Gemm::dgrad, .a = {.t = half({N, O})}, .b = {.t = half({O, I})}, .d = half({N, I})},
           {{"b",
             [](M& o) {
               o.b.t = half({5, 7});
             }},
            {"d",
             [](M& o) {
               o.d = half({N, 7});
             }},
            {"bias", [](M& o) { o.bias = half({5}); }},
            {"accumulate", [](M& o) { o.accumulate = true; }}});
  check<M>("Matmul",
           {.gemm = Gemm::wgrad,
            .a = {.t = half({N, O})},
            .b = {.t = half({N, I})},
            .d = f32({O, I}),
            .accumulate = true},
           {{"b",
             [](M& o) {
               o.b.t = half({N + 1, 5});
             }},
            {"d",
             [](M& o) {
               o.d = half({7, 5});
             }},
            {"d",
             [](M& o) {
               o.d = f32({5, 7});
             }},
            {"bias", [](M& o) { o.bias = half({7}); }}});
}

TEST_CASE("attention arguments are checked") {
  using F = AttentionForward;
  const F good{.qkv = half({B, T, (H + 2 * Hkv) * D}),
               .heads = H,
               .kv_heads = Hkv,
               .scale = 0.5f,
               .out = {.t = half({B, T, H * D})},
               .lse = f32({B, H, T}),
               .dropout = dropout()};
  check<F>("AttentionForward", good,
           std::vector<Case<F>>{{"qkv",
                                 [](F& o) {
                                   o.qkv = half({B, T, 15});
                                 }},
                                {"qkv",
                                 [](F& o) {
                                   o.qkv = half({N, 16});
                                 }},
                                {"qkv",
                                 [](F& o) {
                                   o.qkv = half({B, T, 7, 2});
                                 }},
                                {"heads", [](F& o) { o.heads = 0; }},
                                {"kv_heads", [](F& o) { o.kv_heads = 0; }},
                                {"kv_heads", [](F& o) { o.kv_heads = 3; }},
                                {"scale", [](F& o) { o.scale = 0; }},
                                {"scale", [](F& o) { o.scale = std::numeric_limits<float>::infinity(); }},
                                {"out",
                                 [](F& o) {
                                   o.out.t = half({B, T, H * D + 1});
                                 }},
                                {"out",
                                 [](F& o) {
                                   o.out.t = f32({B, T, H * D});
                                 }},
                                {"lse",
                                 [](F& o) {
                                   o.lse = f32({B, T, H});
                                 }},
                                {"first_query", [](F& o) { o.first_query = T; }},
                                {"first_query", [](F& o) { o.first_query = -1; }}} +
               dropout_cases<F>());
  F rank4 = good;
  rank4.qkv = half({B, T, H + 2 * Hkv, D});
  CHECK_NOTHROW(validate(rank4));

  using G = AttentionBackward;
  check<G>("AttentionBackward",
           {.qkv = half({B, T, (H + 2 * Hkv) * D}),
            .out = half({B, T, H * D}),
            .dout = half({B, T, H * D}),
            .lse = f32({B, H, T}),
            .heads = H,
            .kv_heads = Hkv,
            .scale = 0.5f,
            .dqkv = {.t = half({B, T, (H + 2 * Hkv) * D})},
            .dqkv_bias = f32({(H + 2 * Hkv) * D}),
            .dropout = dropout()},
           std::vector<Case<G>>{{"out", [](G& o) { o.out = {}; }},
                                {"dout",
                                 [](G& o) {
                                   o.dout = f32({B, T, H * D});
                                 }},
                                {"lse",
                                 [](G& o) {
                                   o.lse = f32({B, H, T + 1});
                                 }},
                                {"dqkv", [](G& o) { o.dqkv.t = {}; }},
                                {"dqkv", [](G& o) { o.dqkv.slot = reinterpret_cast<Fp8Slot*>(memory); }},
                                {"dqkv_bias", [](G& o) { o.dqkv_bias = f32({H * D}); }}} +
               dropout_cases<G>());
}

TEST_CASE("arguments of the smaller operators are checked") {
  using BG = BiasGradient;
  check<BG>("BiasGradient", {.dy = half({N, C}), .db = f32({C})},
            {{"dy", [](BG& o) { o.dy = half({N}); }},
             {"dy",
              [](BG& o) {
                o.dy = half({0, C});
              }},
             {"db", [](BG& o) { o.db = half({C}); }},
             {"db", [](BG& o) { o.db = f32({N}); }}});
  using AF = ActivationForward;
  check<AF>("ActivationForward", {.x = half({N, C}), .y = {.t = half({N, C})}},
            {{"x",
              [](AF& o) {
                o.x = i32({N, C});
              }},
             {"y", [](AF& o) {
                o.y.t = f32({N, C});
              }}});
  using AB = ActivationBackward;
  check<AB>("ActivationBackward",
            {.x = half({N, C}), .dy = half({N, C}), .dx = {.t = half({N, C})}, .dbias = f32({C})},
            {{"x", [](AB& o) { o.x = {}; }},
             {"dy",
              [](AB& o) {
                o.dy = half({C, N});
              }},
             {"dx", [](AB& o) { o.dx.t = {}; }},
             {"dbias", [](AB& o) { o.dbias = half({C}); }}});
  using CE = CrossEntropy;
  check<CE>("CrossEntropy",
            {.mode = LossMode::loss_and_gradient,
             .logits = half({N, Vp}),
             .targets = i32({N}),
             .vocab = V,
             .losses = f32({N}),
             .state = &state},
            {{"logits", [](CE& o) { o.logits = {}; }},
             {"targets", [](CE& o) { o.targets = i32({N + 1}); }},
             {"targets", [](CE& o) { o.targets = f32({N}); }},
             {"vocab", [](CE& o) { o.vocab = 0; }},
             {"vocab", [](CE& o) { o.vocab = Vp + 1; }},
             {"losses", [](CE& o) { o.losses = half({N}); }},
             {"state", [](CE& o) { o.state = nullptr; }}});
  CHECK_NOTHROW(validate(CE{.logits = half({N, Vp}), .targets = i32({N}), .vocab = V, .losses = f32({N})}));
  using LS = LossSum;
  check<LS>("LossSum", {.losses = f32({N}), .state = &state},
            {{"losses", [](LS& o) { o.losses = half({N}); }}, {"state", [](LS& o) { o.state = nullptr; }}});
  using GN = GradientNorm;
  check<GN>("GradientNorm", {.grad = f32({N}), .state = &state},
            {{"grad",
              [](GN& o) {
                o.grad = f32({N, C});
              }},
             {"clip", [](GN& o) { o.clip = -1; }},
             {"clip", [](GN& o) { o.clip = std::numeric_limits<float>::quiet_NaN(); }},
             {"state", [](GN& o) { o.state = nullptr; }}});
  using CA = Cast;
  check<CA>("Cast", {.x = f32({N, C}), .y = {.t = half({N, C})}},
            {{"x",
              [](CA& o) {
                o.x = i32({N, C});
              }},
             {"x", [](CA& o) { o.x = {}; }},
             {"y",
              [](CA& o) {
                o.y.t = half({C, N});
              }},
             {"y",
              [](CA& o) {
                o.y.t = i32({N, C});
              }},
             {"y", [](CA& o) { o.y.t = {}; }}});
}

TEST_CASE("AdamW's arguments are checked, gaps and overlaps of segments included") {
  using A = AdamW;
  static const std::vector<ArenaSegment> good = {{0, 4, true}, {4, 10, false}},
                                         gap = {{0, 4, true}, {5, 10, false}},
                                         overlap = {{0, 4, true}, {3, 10, false}},
                                         empty = {{0, 0, true}, {0, 10, true}}, shorter = {{0, 9, true}};
  check<A>("AdamW",
           {.param = f32({10}),
            .grad = f32({10}),
            .m = f32({10}),
            .v = f32({10}),
            .working = half({10}),
            .segments = good,
            .state = &state},
           {{"param", [](A& o) { o.param = half({10}); }},
            {"grad", [](A& o) { o.grad = f32({9}); }},
            {"m", [](A& o) { o.m = {}; }},
            {"v", [](A& o) { o.v = f32({11}); }},
            {"working", [](A& o) { o.working = f32({10}); }},
            {"segments", [](A& o) { o.segments = gap; }},
            {"segments", [](A& o) { o.segments = overlap; }},
            {"segments", [](A& o) { o.segments = empty; }},
            {"segments", [](A& o) { o.segments = shorter; }},
            {"segments", [](A& o) { o.segments = {}; }},
            {"beta1", [](A& o) { o.beta1 = 1; }},
            {"beta2", [](A& o) { o.beta2 = -0.5f; }},
            {"eps", [](A& o) { o.eps = -1; }},
            {"weight_decay", [](A& o) { o.weight_decay = std::numeric_limits<float>::infinity(); }},
            {"state", [](A& o) { o.state = nullptr; }}});
}
