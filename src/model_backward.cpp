// model_backward.cpp - the mirror of model_forward.cpp.
//
// Parameter gradients are `=` in the first micro-batch of a step and `+=` afterwards (`accumulate`);
// gradients of activations are always `=`, except the residual stream's, to which each norm adds its part.
#include <algorithm>
#include <cmath>

#include "model.h"

namespace octavo {

void Model::head_and_loss(const Batch& batch, LossMode mode, bool accumulate) {
  const std::int64_t N = plan_.B * plan_.T, chunk = acts_.logits.dim(0);
  const Tensor targets = batch.targets.view({N});
  // Chunks of rows: the logits of all rows at once would be the largest tensor of the run.
  for (std::int64_t first = 0; first < N; first += chunk) {
    const std::int64_t count = std::min(chunk, N - first);
    const Operand final{.t = acts_.final.t.rows(first, count)};
    const Operand logits{.t = acts_.logits.rows(0, count)};
    backend_.run(Matmul{.gemm = Gemm::fprop, .a = final, .b = weight(table_.head), .d = logits.t});
    backend_.run(CrossEntropy{.mode = mode,
                              .logits = logits.t,
                              .targets = targets.rows(first, count),
                              .vocab = plan_.shape.vocab,
                              .losses = acts_.losses.rows(first, count),
                              .state = state_});
    if (mode == LossMode::loss_only) continue;
    backend_.run(Matmul{.gemm = Gemm::wgrad,
                        .a = logits,
                        .b = final,
                        .d = gradient(table_.head),
                        .accumulate = accumulate || first > 0});
    backend_.run(Matmul{
        .gemm = Gemm::dgrad, .a = logits, .b = weight(table_.head), .d = grads_.norm.rows(first, count)});
  }
}

void Model::backward(const Batch& batch, bool accumulate) {
  const std::size_t L = acts_.layers.size();
  head_and_loss(batch, LossMode::loss_and_gradient, accumulate);
  backend_.run(LossSum{.losses = acts_.losses, .state = state_});
  backend_.run(NormBackward{.dy = grads_.norm,
                            .residual = acts_.residual,
                            .gain = norm_vector(table_.normf_gain),
                            .mean = acts_.mean,
                            .rstd = acts_.rstd,
                            .dresidual = grads_.residual,
                            .accumulate_dresidual = false,
                            .dgain = gradient(table_.normf_gain),
                            .dbias = gradient(table_.normf_bias),
                            .dbranch = operand(grads_.branch, L - 1, Linear::out, Fp8Role::gradient),
                            .dropout = dropout(L - 1, DropPlace::mlp_out, batch, Pass::train),
                            .dbranch_bias = gradient(table_.layers[L - 1].out_bias),
                            .accumulate = accumulate,
                            .T = plan_.T});
  for (std::size_t l = L; l-- > 0;) {
    recompute_block(l, batch);
    backward_block(l, batch, accumulate);
  }
  backend_.run(EmbeddingBackward{.tokens = batch.tokens,
                                 .dx = grads_.residual,
                                 .dwte = gradient(table_.wte),
                                 .dwpe = gradient(table_.wpe),
                                 .accumulate_wte = accumulate || plan_.shape.tied,
                                 .accumulate_wpe = accumulate,
                                 .dropout = dropout(0, DropPlace::embedding, batch, Pass::train)});
}

void Model::recompute_block(std::size_t l, const Batch& batch) {
  if (plan_.recompute == Recompute::none) return;
  const Range all{0, plan_.B * plan_.T};
  const LayerActivations& a = acts_.layers[l];
  const LayerParameters& p = table_.layers[l];
  const auto again = [](Operand o) {
    o.record = false;
    return o;
  };
  auto norm = [&](const Tensor& x, int gain, int bias, const Operand& y, const Tensor& mean,
                  const Tensor& rstd) {
    backend_.run(NormForward{.x = x,
                             .gain = norm_vector(gain),
                             .bias = norm_vector(bias),
                             .y = again(y),
                             .mean = mean,
                             .rstd = rstd,
                             .eps = static_cast<float>(plan_.shape.norm_eps),
                             .T = plan_.T});
  };
  norm(a.residual1, p.norm1_gain, p.norm1_bias, a.norm1, a.mean1, a.rstd1);
  if (plan_.recompute == Recompute::block) {
    block_to_stream2(l, batch, Pass::recompute, all);
    mlp_hidden(l, Pass::recompute, all);
  } else {
    norm(a.residual2, p.norm2_gain, p.norm2_bias, a.norm2, a.mean2, a.rstd2);
    backend_.run(ActivationForward{.x = a.fc, .y = again(a.hidden)});
  }
}

void Model::backward_block(std::size_t l, const Batch& batch, bool accumulate) {
  const LayerActivations& a = acts_.layers[l];
  const LayerParameters& p = table_.layers[l];
  const ModelShape& s = plan_.shape;
  const std::int64_t B = plan_.B, T = plan_.T;
  // The norm that joined a branch also wrote that branch's gradient, as far as it is not the stream's.
  const Operand dout = operand(grads_.branch, l, Linear::out, Fp8Role::gradient);
  const Operand dproj = operand(grads_.branch, l, Linear::proj, Fp8Role::gradient);
  const Operand dfc = operand(grads_.hidden, l, Linear::fc, Fp8Role::gradient);
  const Operand dqkv = operand(grads_.qkv, l, Linear::qkv, Fp8Role::gradient);
  const auto linear = [&](Linear which) { return plan_.fp8.paths(l, which); };
  const auto branch = [&](Operand o) {
    if (!o.t) o.t = grads_.residual;
    return o;
  };

  // MLP: out, gelu, fc. Bias gradients of out and proj come from the norms above them.
  backend_.run(Matmul{.gemm = Gemm::wgrad,
                      .a = branch(dout),
                      .b = a.hidden,
                      .codes = linear(Linear::out).wgrad,
                      .d = gradient(p.out_weight),
                      .accumulate = accumulate});
  backend_.run(Matmul{.gemm = Gemm::dgrad,
                      .a = branch(dout),
                      .b = weight(p.out_weight),
                      .codes = linear(Linear::out).dgrad,
                      .d = grads_.hidden.t});
  backend_.run(ActivationBackward{
      .x = a.fc, .dy = grads_.hidden.t, .dx = dfc, .dbias = gradient(p.fc_bias), .accumulate = accumulate});
  backend_.run(Matmul{.gemm = Gemm::wgrad,
                      .a = dfc,
                      .b = a.norm2,
                      .codes = linear(Linear::fc).wgrad,
                      .d = gradient(p.fc_weight),
                      .accumulate = accumulate});
  backend_.run(Matmul{.gemm = Gemm::dgrad,
                      .a = dfc,
                      .b = weight(p.fc_weight),
                      .codes = linear(Linear::fc).dgrad,
                      .d = grads_.norm});
  backend_.run(NormBackward{.dy = grads_.norm,
                            .residual = a.residual2,
                            .gain = norm_vector(p.norm2_gain),
                            .mean = a.mean2,
                            .rstd = a.rstd2,
                            .dresidual = grads_.residual,
                            .accumulate_dresidual = true,
                            .dgain = gradient(p.norm2_gain),
                            .dbias = gradient(p.norm2_bias),
                            .dbranch = dproj,
                            .dropout = dropout(l, DropPlace::attention_out, batch, Pass::train),
                            .dbranch_bias = gradient(p.proj_bias),
                            .accumulate = accumulate,
                            .T = T});

  // Attention: proj, attention, qkv.
  backend_.run(Matmul{.gemm = Gemm::wgrad,
                      .a = branch(dproj),
                      .b = a.attention,
                      .codes = linear(Linear::proj).wgrad,
                      .d = gradient(p.proj_weight),
                      .accumulate = accumulate});
  backend_.run(Matmul{.gemm = Gemm::dgrad,
                      .a = branch(dproj),
                      .b = weight(p.proj_weight),
                      .codes = linear(Linear::proj).dgrad,
                      .d = grads_.attention});
  Operand packed = dqkv;
  packed.t = packed.t.view({B, T, s.qkv_width()});
  backend_.run(AttentionBackward{.qkv = a.qkv.view({B, T, s.qkv_width()}),
                                 .out = a.attention.t.view({B, T, s.channels}),
                                 .dout = grads_.attention.view({B, T, s.channels}),
                                 .lse = a.lse,
                                 .heads = s.heads,
                                 .kv_heads = s.kv_heads,
                                 .scale = 1.0f / std::sqrt(static_cast<float>(s.head_size())),
                                 .dqkv = packed,
                                 .dqkv_bias = gradient(p.qkv_bias),
                                 .accumulate = accumulate,
                                 .dropout = dropout(l, DropPlace::attention, batch, Pass::train)});
  backend_.run(Matmul{.gemm = Gemm::wgrad,
                      .a = dqkv,
                      .b = a.norm1,
                      .codes = linear(Linear::qkv).wgrad,
                      .d = gradient(p.qkv_weight),
                      .accumulate = accumulate});
  backend_.run(Matmul{.gemm = Gemm::dgrad,
                      .a = dqkv,
                      .b = weight(p.qkv_weight),
                      .codes = linear(Linear::qkv).dgrad,
                      .d = grads_.norm});
  const bool first = l == 0;  // below the first block lies the embedding, which is no branch
  backend_.run(NormBackward{
      .dy = grads_.norm,
      .residual = a.residual1,
      .gain = norm_vector(p.norm1_gain),
      .mean = a.mean1,
      .rstd = a.rstd1,
      .dresidual = grads_.residual,
      .accumulate_dresidual = true,
      .dgain = gradient(p.norm1_gain),
      .dbias = gradient(p.norm1_bias),
      .dbranch = first ? Operand{} : operand(grads_.branch, l - 1, Linear::out, Fp8Role::gradient),
      .dropout = first ? Dropout{} : dropout(l - 1, DropPlace::mlp_out, batch, Pass::train),
      .dbranch_bias = first ? Tensor{} : gradient(table_.layers[l - 1].out_bias),
      .accumulate = accumulate,
      .T = T});
}

}  // namespace octavo
