// model_forward.cpp - the network as a list of operator calls.
//
// N = B T rows. Each block reads the residual stream and adds two branches to it:
//
//   stream1 ─► norm1 ─► qkv ─► attention ─► proj ─► (+ stream1) = stream2
//   stream2 ─► norm2 ─► fc  ─► gelu      ─► out  ─► (+ stream2) = stream1 of the next block
//
// A branch joins the stream inside the norm that follows it: one pass over memory instead of two.
#include <cmath>

#include "model.h"

namespace octavo {

void Model::forward(const Batch& batch, Pass pass) {
  forward_rows(batch, pass, {0, plan_.B * plan_.T});
}

namespace {

/// The rows of tensors and operands that a call works on; amaxes are recorded in training only.
struct Part {
  std::int64_t first, count;
  bool record;

  Tensor operator()(const Tensor& t) const { return t.rows(first, count); }
  Operand operator()(const Operand& o) const {
    Operand p = o;
    if (p.t) p.t = (*this)(p.t);
    if (p.q) p.q = (*this)(p.q);
    p.record = record;
    return p;
  }
};

}  // namespace

void Model::forward_rows(const Batch& batch, Pass pass, Range rows) {
  const Part part{rows.first, rows.count, pass == Pass::train};
  const std::int64_t context = plan_.shape.context;
  const bool all = rows.count == plan_.B * plan_.T;
  const Tensor tokens =
      all ? batch.tokens : batch.tokens.view({plan_.T}).rows(rows.first, rows.count).view({1, rows.count});
  const Tensor positions = weight(table_.wpe).t;

  backend_.run(EmbeddingForward{.tokens = tokens,
                                .wte = weight(table_.wte).t,
                                .wpe = all ? positions : positions.rows(rows.first, context - rows.first),
                                .x = part(acts_.layers[0].residual1),
                                .dropout = dropout(0, DropPlace::embedding, batch, pass)});
  const LayerActivations& first = acts_.layers[0];
  backend_.run(NormForward{.x = part(first.residual1),
                           .gain = norm_vector(table_.layers[0].norm1_gain),
                           .bias = norm_vector(table_.layers[0].norm1_bias),
                           .y = part(first.norm1),
                           .mean = part(first.mean1),
                           .rstd = part(first.rstd1),
                           .eps = static_cast<float>(plan_.shape.norm_eps),
                           .T = plan_.T});

  const std::size_t L = acts_.layers.size();
  for (std::size_t l = 0; l < L; ++l) {
    const LayerActivations& a = acts_.layers[l];
    const LayerParameters& p = table_.layers[l];
    block_to_stream2(l, batch, pass, rows);
    mlp_hidden(l, pass, rows);
    backend_.run(Matmul{.gemm = Gemm::fprop,
                        .a = part(a.hidden),
                        .b = weight(p.out_weight),
                        .codes = plan_.fp8.paths(l, Linear::out).fprop,
                        .bias = vector(p.out_bias),
                        .d = part(acts_.branch)});
    // The MLP's branch joins the stream in the norm of the next block, or in the final norm.
    const bool last = l + 1 == L;
    const LayerActivations& next = acts_.layers[last ? l : l + 1];
    const LayerParameters& q = table_.layers[last ? l : l + 1];
    backend_.run(NormForward{.x = part(a.residual2),
                             .branch = part(acts_.branch),
                             .dropout = dropout(l, DropPlace::mlp_out, batch, pass),
                             .residual = part(last ? acts_.residual : next.residual1),
                             .gain = norm_vector(last ? table_.normf_gain : q.norm1_gain),
                             .bias = norm_vector(last ? table_.normf_bias : q.norm1_bias),
                             .y = part(last ? acts_.final : next.norm1),
                             .mean = part(last ? acts_.mean : next.mean1),
                             .rstd = part(last ? acts_.rstd : next.rstd1),
                             .eps = static_cast<float>(plan_.shape.norm_eps),
                             .T = plan_.T});
  }
}

void Model::block_to_stream2(std::size_t l, const Batch& batch, Pass pass, Range rows) {
  const Part part{rows.first, rows.count, pass == Pass::train};
  const LayerActivations& a = acts_.layers[l];
  const LayerParameters& p = table_.layers[l];
  const ModelShape& s = plan_.shape;
  // In generation (rows from `first` on) attention also reads the keys and values of the rows before.
  const bool all = rows.count == plan_.B * plan_.T;
  const std::int64_t B = all ? plan_.B : 1, T = all ? plan_.T : rows.first + rows.count;

  backend_.run(Matmul{.gemm = Gemm::fprop,
                      .a = part(a.norm1),
                      .b = weight(p.qkv_weight),
                      .codes = plan_.fp8.paths(l, Linear::qkv).fprop,
                      .bias = vector(p.qkv_bias),
                      .d = part(a.qkv)});
  Operand attention = all ? part(a.attention) : Part{0, B * T, false}(a.attention);
  attention.t = attention.t.view({B, T, s.channels});
  backend_.run(AttentionForward{.qkv = a.qkv.rows(0, B * T).view({B, T, s.qkv_width()}),
                                .heads = s.heads,
                                .kv_heads = s.kv_heads,
                                .scale = 1.0f / std::sqrt(static_cast<float>(s.head_size())),
                                .out = attention,
                                .lse = all ? a.lse : Tensor(a.lse.data, DType::f32, {B, s.heads, T}, "lse"),
                                .dropout = dropout(l, DropPlace::attention, batch, pass),
                                .first_query = all ? 0 : rows.first});
  backend_.run(Matmul{.gemm = Gemm::fprop,
                      .a = part(a.attention),
                      .b = weight(p.proj_weight),
                      .codes = plan_.fp8.paths(l, Linear::proj).fprop,
                      .bias = vector(p.proj_bias),
                      .d = part(acts_.branch)});
  backend_.run(NormForward{.x = part(a.residual1),
                           .branch = part(acts_.branch),
                           .dropout = dropout(l, DropPlace::attention_out, batch, pass),
                           .residual = part(a.residual2),
                           .gain = norm_vector(p.norm2_gain),
                           .bias = norm_vector(p.norm2_bias),
                           .y = part(a.norm2),
                           .mean = part(a.mean2),
                           .rstd = part(a.rstd2),
                           .eps = static_cast<float>(s.norm_eps),
                           .T = plan_.T});
}

void Model::mlp_hidden(std::size_t l, Pass pass, Range rows) {
  const Part part{rows.first, rows.count, pass == Pass::train};
  const LayerActivations& a = acts_.layers[l];
  const LayerParameters& p = table_.layers[l];
  backend_.run(Matmul{.gemm = Gemm::fprop,
                      .a = part(a.norm2),
                      .b = weight(p.fc_weight),
                      .codes = plan_.fp8.paths(l, Linear::fc).fprop,
                      .bias = vector(p.fc_bias),
                      .d = part(a.fc)});
  backend_.run(ActivationForward{.x = part(a.fc), .y = part(a.hidden)});
}

void Model::losses(const Batch& batch, std::vector<float>& out) {
  head_and_loss(batch, LossMode::loss_only, false);
  out.resize(static_cast<std::size_t>(plan_.B * plan_.T));
  backend_.copy_to_host(out.data(), acts_.losses.data, acts_.losses.bytes());
}

void Model::extend(const std::int32_t* tokens, std::int64_t first, std::int64_t count,
                   std::vector<float>& logits) {
  backend_.copy_to_device(batch_.tokens.as<std::int32_t>() + first, tokens,
                          static_cast<std::size_t>(count) * sizeof *tokens);
  forward_rows(batch_, Pass::evaluate, {first, count});
  const Tensor row = acts_.logits.rows(0, 1);
  backend_.run(Matmul{.gemm = Gemm::fprop,
                      .a = {.t = acts_.final.t.rows(first + count - 1, 1)},
                      .b = weight(table_.head),
                      .d = row});
  const std::size_t V = static_cast<std::size_t>(plan_.shape.vocab);
  logits.resize(V);
  if (row.dtype == DType::f32) {
    backend_.copy_to_host(logits.data(), row.data, V * sizeof(float));
    return;
  }
  std::vector<bf16> narrow(V);
  backend_.copy_to_host(narrow.data(), row.data, V * sizeof(bf16));
  for (std::size_t i = 0; i < V; ++i) logits[i] = to_float(narrow[i]);
}

}  // namespace octavo
