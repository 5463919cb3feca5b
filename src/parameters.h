// parameters.h - the one table of parameters. Allocation, initialisation, optimizer groups, checkpoints and
// tests all walk it; nothing else knows how many parameters a GPT-2 has, nor in which order they lie.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend.h"
#include "tensor.h"

namespace octavo {

/// Shape of a GPT. B and T of a run are not part of it.
struct ModelShape {
  std::int64_t layers = 0, channels = 0, heads = 0, kv_heads = 0, context = 0;
  std::int64_t vocab = 0;         // V, real tokens
  std::int64_t padded_vocab = 0;  // Vp, V rounded up to kVocabPadding
  bool tied = true;
  double norm_eps = 1e-5;

  std::int64_t head_size() const { return channels / heads; }
  std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_size(); }
  std::int64_t hidden() const { return 4 * channels; }
};

inline constexpr std::int64_t kVocabPadding = 64;  // 50257 -> 50304; whole tiles for the head's products
inline std::int64_t pad_vocab(std::int64_t vocab) {
  return (vocab + kVocabPadding - 1) / kVocabPadding * kVocabPadding;
}

enum class Init : std::uint8_t { normal, residual_normal, zero, one };  // residual: std / sqrt(2 layers)

struct Parameter {
  std::string name;         // "layer3.qkv.weight"
  std::string hf_name;      // "h.3.attn.c_attn.weight", Hugging Face's GPT-2 name
  bool hf_transposed;       // stored (in, out) there (Conv1D), (out, in) here
  int rank;                 // 1 or 2
  std::int64_t rows, cols;  // rank 1: rows = 1
  std::int64_t saved_rows;  // rows without padding: what a checkpoint holds
  bool decays;              // weight decay applies (matrices and embeddings)
  bool norm;                // gain or bias of a norm: read in f32 by its operator, in every precision
  bool fp8;                 // one of the four linear layers of a block
  Init init;
  int bucket;           // gradients are complete (and reduced) in the order of buckets; wte and wpe last
  int shard_axis;       // axis along which tensor parallelism could split it; -1: replicated
  std::int64_t offset;  // first element in every flat arena (parameters, gradients, moments, working copies)
  std::int64_t size() const { return rows * cols; }
  /// Shape without padding rows, as it is saved: [cols] for rank 1.
  std::vector<std::int64_t> saved_shape() const;
};

/// Indices into the table, so that the model never searches by name.
struct LayerParameters {
  int norm1_gain, norm1_bias, qkv_weight, qkv_bias, proj_weight, proj_bias;
  int norm2_gain, norm2_bias, fc_weight, fc_bias, out_weight, out_bias;
};

struct ParameterTable {
  std::vector<Parameter> parameters;  // in arena order; each offset is a multiple of 64 elements
  std::vector<LayerParameters> layers;
  int wte = -1, wpe = -1, normf_gain = -1, normf_bias = -1,
      head = -1;                // head: own matrix where untied, else wte
  std::int64_t arena_size = 0;  // elements of a flat arena, gaps included (gaps are zero and stay zero)
  std::vector<ArenaSegment> segments;  // covers the arena in order, gaps merged with their left neighbour

  const Parameter& operator[](int i) const { return parameters[static_cast<std::size_t>(i)]; }
  /// Count of real parameters: no padding, the tied embedding once, positions included.
  std::int64_t count() const;
};

/// What is impossible about so many heads for these channels, as "found ...; allowed: ..."; empty where
/// nothing is. `channels_key` names the channels in the text: "model.channels", "n_embd".
std::string fault_of_heads(std::int64_t heads, std::int64_t channels, const char* channels_key);

/// Builds the table of a GPT-2. Throws RequestError when the shape is impossible (heads do not divide
/// channels, ...).
ParameterTable make_parameter_table(const ModelShape& shape);

/// Initial values (GPT-2): normal(0, std) for matrices and embeddings, residual projections scaled by
/// 1/sqrt(2 layers), gains 1, biases 0; padding rows 0. Parameter i, element j depends on (seed, i, j) alone.
/// `arena` has table.arena_size floats.
void initialise_parameters(const ParameterTable& table, const ModelShape& shape, double std,
                           std::uint64_t seed, float* arena);

/// Model FLOPs per token: 6 N + 6 L C T (causal attention at half). N counts the tied embedding once,
/// positions and the padded vocabulary, as llm.c does.
double flops_per_token(const ParameterTable& table, const ModelShape& shape, std::int64_t T);

}  // namespace octavo
