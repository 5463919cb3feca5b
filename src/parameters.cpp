#include "parameters.h"

#include <cmath>
#include <numbers>
#include <string>

#include "error.h"
#include "rng.h"

namespace octavo {
namespace {

constexpr std::int64_t kArenaAlignment = 64;  // elements: 256 bytes of f32, 128 bytes of bf16

std::int64_t round_up(std::int64_t n, std::int64_t to) {
  return (n + to - 1) / to * to;
}

void check_shape(const ModelShape& s) {
  if (s.layers < 1 || s.channels < 1 || s.heads < 1 || s.context < 1 || s.vocab < 1)
    refuse("model: layers {}, channels {}, heads {}, context {}, vocab {}; allowed: each at least 1",
           s.layers, s.channels, s.heads, s.context, s.vocab);
  const std::string fault = fault_of_heads(s.heads, s.channels, "model.channels");
  if (!fault.empty()) refuse("model.heads: {}", fault);
  if (s.kv_heads < 1 || s.heads % s.kv_heads != 0)
    refuse("model: {} key/value heads for {} heads; allowed: a divisor of the heads", s.kv_heads, s.heads);
}

}  // namespace

std::string fault_of_heads(std::int64_t heads, std::int64_t channels, const char* channels_key) {
  if (channels % heads != 0)
    return fmt::format("found {}, which does not divide {} = {}; allowed: a divisor of it", heads,
                       channels_key, channels);
  const std::int64_t head = channels / heads;
  if (head % 8 == 0 && head <= 256) return "";
  return fmt::format(
      "found {}, so a head of {} / {} = {}; allowed: heads whose size is a multiple of 8 up to 256", heads,
      channels, heads, head);
}

std::vector<std::int64_t> Parameter::saved_shape() const {
  return rank == 1 ? std::vector{cols} : std::vector{saved_rows, cols};
}

std::int64_t ParameterTable::count() const {
  std::int64_t n = 0;
  for (const Parameter& p : parameters) n += p.saved_rows * p.cols;
  return n;
}

ParameterTable make_parameter_table(const ModelShape& s) {
  check_shape(s);
  ParameterTable table;
  const std::int64_t C = s.channels, F = s.hidden(), W = s.qkv_width();
  const int L = static_cast<int>(s.layers);

  auto add = [&](Parameter p) {
    if (p.saved_rows == 0) p.saved_rows = p.rows;
    p.offset = table.arena_size;
    table.arena_size += round_up(p.size(), kArenaAlignment);
    table.parameters.push_back(std::move(p));
    return static_cast<int>(table.parameters.size()) - 1;
  };
  auto vector = [&](std::string name, std::string hf, std::int64_t n, bool norm, Init init, int bucket) {
    return add({.name = std::move(name),
                .hf_name = std::move(hf),
                .hf_transposed = false,
                .rank = 1,
                .rows = 1,
                .cols = n,
                .saved_rows = 0,
                .decays = false,
                .norm = norm,
                .fp8 = false,
                .init = init,
                .bucket = bucket,
                .shard_axis = -1,
                .offset = 0});
  };
  // A linear layer y = x w^T + b, w stored (out, in). Split by output (column parallel) or by input (row
  // parallel).
  auto linear = [&](const std::string& name, const std::string& hf, std::int64_t out, std::int64_t in,
                    Init init, int shard_axis, int bucket, int& weight, int& bias) {
    weight = add({.name = name + ".weight",
                  .hf_name = hf + ".weight",
                  .hf_transposed = true,
                  .rank = 2,
                  .rows = out,
                  .cols = in,
                  .saved_rows = 0,
                  .decays = true,
                  .norm = false,
                  .fp8 = true,
                  .init = init,
                  .bucket = bucket,
                  .shard_axis = shard_axis,
                  .offset = 0});
    bias = vector(name + ".bias", hf + ".bias", out, false, Init::zero, bucket);
  };
  auto embedding = [&](std::string name, std::string hf, std::int64_t rows, std::int64_t saved, int bucket) {
    return add({.name = std::move(name),
                .hf_name = std::move(hf),
                .hf_transposed = false,
                .rank = 2,
                .rows = rows,
                .cols = C,
                .saved_rows = saved,
                .decays = true,
                .norm = false,
                .fp8 = false,
                .init = Init::normal,
                .bucket = bucket,
                .shard_axis = 0,
                .offset = 0});
  };

  // Backward finishes the final norm first, then the layers from the top, then the embeddings.
  const int last_bucket = L + 1;
  table.wte = embedding("wte.weight", "wte.weight", s.padded_vocab, s.vocab, last_bucket);
  table.wpe = embedding("wpe.weight", "wpe.weight", s.context, s.context, last_bucket);
  for (int l = 0; l < L; ++l) {
    const std::string name = "layer" + std::to_string(l) + ".", hf = "h." + std::to_string(l) + ".";
    const int bucket = L - l;
    LayerParameters p{};
    p.norm1_gain = vector(name + "norm1.gain", hf + "ln_1.weight", C, true, Init::one, bucket);
    p.norm1_bias = vector(name + "norm1.bias", hf + "ln_1.bias", C, true, Init::zero, bucket);
    linear(name + "qkv", hf + "attn.c_attn", W, C, Init::normal, 0, bucket, p.qkv_weight, p.qkv_bias);
    linear(name + "proj", hf + "attn.c_proj", C, C, Init::residual_normal, 1, bucket, p.proj_weight,
           p.proj_bias);
    p.norm2_gain = vector(name + "norm2.gain", hf + "ln_2.weight", C, true, Init::one, bucket);
    p.norm2_bias = vector(name + "norm2.bias", hf + "ln_2.bias", C, true, Init::zero, bucket);
    linear(name + "fc", hf + "mlp.c_fc", F, C, Init::normal, 0, bucket, p.fc_weight, p.fc_bias);
    linear(name + "out", hf + "mlp.c_proj", C, F, Init::residual_normal, 1, bucket, p.out_weight, p.out_bias);
    table.layers.push_back(p);
  }
  table.normf_gain = vector("normf.gain", "ln_f.weight", C, true, Init::one, 0);
  table.normf_bias = vector("normf.bias", "ln_f.bias", C, true, Init::zero, 0);
  table.head = s.tied ? table.wte : embedding("head.weight", "lm_head.weight", s.padded_vocab, s.vocab, 0);

  for (const Parameter& p : table.parameters) {
    const std::int64_t end = p.offset + round_up(p.size(), kArenaAlignment);
    if (!table.segments.empty() && table.segments.back().decays == p.decays)
      table.segments.back().end = end;
    else
      table.segments.push_back({p.offset, end, p.decays});
  }
  return table;
}

void initialise_parameters(const ParameterTable& table, const ModelShape& shape, double std,
                           std::uint64_t seed, float* arena) {
  const double residual_std = std / std::sqrt(2.0 * static_cast<double>(shape.layers));
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const Parameter& p = table.parameters[i];
    float* out = arena + p.offset;
    if (p.init == Init::zero || p.init == Init::one) {
      for (std::int64_t j = 0; j < p.size(); ++j) out[j] = p.init == Init::one ? 1.0f : 0.0f;
      continue;
    }
    const double scale = p.init == Init::normal ? std : residual_std;
    const PhiloxKey key = philox_key(seed, kRandomInit, i);
    const std::int64_t real = p.saved_rows * p.cols;
#pragma omp parallel for schedule(static)
    for (std::int64_t pair = 0; pair < (real + 1) / 2; ++pair) {
      // Box and Muller 1958: two uniforms give two independent normals.
      const Philox4 r =
          philox(key, static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32), 0, 0);
      const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform53(r.v[0], r.v[1])));
      const double angle = 2.0 * std::numbers::pi * uniform53(r.v[2], r.v[3]);
      out[2 * pair] = static_cast<float>(scale * radius * std::cos(angle));
      if (2 * pair + 1 < real) out[2 * pair + 1] = static_cast<float>(scale * radius * std::sin(angle));
    }
    for (std::int64_t j = real; j < p.size(); ++j) out[j] = 0.0f;
  }
}

double flops_per_token(const ParameterTable& table, const ModelShape& s, std::int64_t T) {
  double n = 0;
  for (const Parameter& p : table.parameters) n += static_cast<double>(p.size());
  return 6.0 * n +
         6.0 * static_cast<double>(s.layers) * static_cast<double>(s.channels) * static_cast<double>(T);
}

}  // namespace octavo
