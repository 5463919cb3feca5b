#include "oracle_model.h"

#include <cmath>
#include <cstddef>
#include <numbers>
#include <string>
#include <utility>

#include "rng.h"

namespace octavo::testing {
namespace {

using Values = std::vector<double>;

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// Factors of a dropout place, [rows, columns] of every sequence (and head): 0, or what kept values are
/// multiplied by. All 1 where there is no dropout.
Values mask(const OracleDropout& d, const OracleBatch& batch, std::int64_t layer, DropPlace place,
            std::int64_t heads, std::int64_t columns) {
  const std::int64_t B = batch.B, T = batch.T;
  Values factors(index(B * heads * T * columns), 1.0);
  if (!(d.p > 0)) return factors;
  const double threshold = std::floor(256.0 * static_cast<double>(d.p) + 0.5);
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t h = 0; h < heads; ++h) {
      const PhiloxKey key = dropout_key(d.seed, static_cast<std::uint32_t>(layer),
                                        static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(h));
      for (std::int64_t t = 0; t < T; ++t)
        for (std::int64_t c = 0; c < columns; ++c) {
          const Philox4 r =
              philox(key, static_cast<std::uint32_t>(c / 16), static_cast<std::uint32_t>(t),
                     static_cast<std::uint32_t>(batch.samples[index(b)]), static_cast<std::uint32_t>(d.step));
          const std::uint32_t byte = (r.v[(c % 16) / 4] >> (8 * (c % 4))) & 0xff;
          factors[index(((b * heads + h) * T + t) * columns + c)] =
              static_cast<double>(byte) >= threshold ? 256.0 / (256.0 - threshold) : 0.0;
        }
    }
  return factors;
}

void multiply(Values& x, const Values& factors) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= factors[i];
}
void add(Values& x, const Values& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

struct Norm {
  Values xhat, rstd, y;
};

double gelu(double x) {
  const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(inner));
}
double gelu_slope(double x) {
  const double k = std::sqrt(2 / std::numbers::pi);
  const double t = std::tanh(k * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
}

/// Everything that a block computed, for its backward pass.
struct Block {
  Norm norm1, norm2;
  Values qkv, probabilities, attention, fc, hidden;
  Values attention_mask, proj_mask, out_mask;
};

class Oracle {
 public:
  Oracle(const ModelShape& shape, const ParameterTable& table, std::span<const double> weights,
         const OracleBatch& batch, const OracleDropout& dropout)
      : s_(shape), table_(table), w_(weights), batch_(batch), dropout_(dropout), N_(batch.B * batch.T) {}

  OracleResult run(double grad_scale);

 private:
  double weight(int p, std::int64_t i) const { return w_[index(table_[p].offset + i)]; }
  double& gradient(int p, std::int64_t i) { return result_.gradients[index(table_[p].offset + i)]; }

  Values linear(const Values& x, int w, int b, std::int64_t in, std::int64_t out) const;
  Values linear_backward(const Values& x, const Values& dy, int w, int b, std::int64_t in, std::int64_t out);
  Norm norm(const Values& x, int gain, int bias) const;
  Values norm_backward(const Norm& n, const Values& dy, int gain, int bias);
  void attention(Block& block) const;
  Values attention_backward(const Block& block, const Values& dout) const;
  /// Position in `qkv` of row (b, t), slot 0..H+2Hkv, element 0.
  std::int64_t slot(std::int64_t b, std::int64_t t, std::int64_t i) const {
    return (b * batch_.T + t) * s_.qkv_width() + i * s_.head_size();
  }
  Values embed() const;
  void forward(Values& x);
  Values head(const Values& final, double grad_scale);
  Values backward(Values dx);

  const ModelShape& s_;
  const ParameterTable& table_;
  std::span<const double> w_;
  const OracleBatch& batch_;
  const OracleDropout& dropout_;
  std::int64_t N_;
  std::vector<Block> blocks_;
  Values embedding_mask_;
  OracleResult result_;
};

/// y = x w^T + b, w stored (out, in); b < 0: no bias.
Values Oracle::linear(const Values& x, int w, int b, std::int64_t in, std::int64_t out) const {
  Values y(index(N_ * out));
  for (std::int64_t n = 0; n < N_; ++n)
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = b < 0 ? 0 : weight(b, o);
      for (std::int64_t i = 0; i < in; ++i) sum += x[index(n * in + i)] * weight(w, o * in + i);
      y[index(n * out + o)] = sum;
    }
  return y;
}

Values Oracle::linear_backward(const Values& x, const Values& dy, int w, int b, std::int64_t in,
                               std::int64_t out) {
  Values dx(index(N_ * in));
  for (std::int64_t n = 0; n < N_; ++n)
    for (std::int64_t o = 0; o < out; ++o) {
      const double g = dy[index(n * out + o)];
      if (b >= 0) gradient(b, o) += g;
      for (std::int64_t i = 0; i < in; ++i) {
        gradient(w, o * in + i) += g * x[index(n * in + i)];
        dx[index(n * in + i)] += g * weight(w, o * in + i);
      }
    }
  return dx;
}

Norm Oracle::norm(const Values& x, int gain, int bias) const {
  const std::int64_t C = s_.channels;
  Norm r{Values(x.size()), Values(index(N_)), Values(x.size())};
  for (std::int64_t n = 0; n < N_; ++n) {
    double mean = 0, variance = 0;
    for (std::int64_t c = 0; c < C; ++c) mean += x[index(n * C + c)];
    mean /= static_cast<double>(C);
    for (std::int64_t c = 0; c < C; ++c) variance += std::pow(x[index(n * C + c)] - mean, 2);
    variance /= static_cast<double>(C);
    r.rstd[index(n)] = 1 / std::sqrt(variance + s_.norm_eps);
    for (std::int64_t c = 0; c < C; ++c) {
      const std::size_t i = index(n * C + c);
      r.xhat[i] = (x[i] - mean) * r.rstd[index(n)];
      r.y[i] = r.xhat[i] * weight(gain, c) + weight(bias, c);
    }
  }
  return r;
}

Values Oracle::norm_backward(const Norm& r, const Values& dy, int gain, int bias) {
  const std::int64_t C = s_.channels;
  Values dx(dy.size());
  for (std::int64_t n = 0; n < N_; ++n) {
    double mean = 0, projection = 0;  // of g, and of g along xhat
    for (std::int64_t c = 0; c < C; ++c) {
      const std::size_t i = index(n * C + c);
      gradient(gain, c) += dy[i] * r.xhat[i];
      gradient(bias, c) += dy[i];
      mean += dy[i] * weight(gain, c) / static_cast<double>(C);
      projection += dy[i] * weight(gain, c) * r.xhat[i] / static_cast<double>(C);
    }
    for (std::int64_t c = 0; c < C; ++c) {
      const std::size_t i = index(n * C + c);
      dx[i] = r.rstd[index(n)] * (dy[i] * weight(gain, c) - mean - r.xhat[i] * projection);
    }
  }
  return dx;
}

/// softmax(q k^T / sqrt(D)) v over the past, with the whole matrix of probabilities (before dropout) kept.
void Oracle::attention(Block& k) const {
  const std::int64_t B = batch_.B, T = batch_.T, H = s_.heads, D = s_.head_size(), share = H / s_.kv_heads;
  k.probabilities.assign(index(B * H * T * T), 0);
  k.attention.assign(index(N_ * s_.channels), 0);
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t h = 0; h < H; ++h)
      for (std::int64_t t = 0; t < T; ++t) {
        const std::int64_t row = ((b * H + h) * T + t) * T, q = slot(b, t, h);
        double sum = 0, largest = -1e300;
        Values scores(index(t + 1));
        for (std::int64_t u = 0; u <= t; ++u) {
          const std::int64_t key = slot(b, u, H + h / share);
          for (std::int64_t d = 0; d < D; ++d)
            scores[index(u)] += k.qkv[index(q + d)] * k.qkv[index(key + d)];
          scores[index(u)] /= std::sqrt(static_cast<double>(D));
          largest = std::max(largest, scores[index(u)]);
        }
        for (double& score : scores) sum += score = std::exp(score - largest);
        for (std::int64_t u = 0; u <= t; ++u) {
          k.probabilities[index(row + u)] = scores[index(u)] / sum;
          const double p = scores[index(u)] / sum * k.attention_mask[index(row + u)];
          const std::int64_t value = slot(b, u, H + s_.kv_heads + h / share);
          for (std::int64_t d = 0; d < D; ++d)
            k.attention[index((b * T + t) * s_.channels + h * D + d)] += p * k.qkv[index(value + d)];
        }
      }
}

Values Oracle::attention_backward(const Block& k, const Values& dout) const {
  const std::int64_t B = batch_.B, T = batch_.T, H = s_.heads, D = s_.head_size(), share = H / s_.kv_heads;
  Values dqkv(k.qkv.size());
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t h = 0; h < H; ++h)
      for (std::int64_t t = 0; t < T; ++t) {
        const std::int64_t row = ((b * H + h) * T + t) * T, q = slot(b, t, h);
        const std::int64_t out = (b * T + t) * s_.channels + h * D;
        Values dp(index(t + 1));
        double mean = 0;
        for (std::int64_t u = 0; u <= t; ++u) {
          const std::int64_t value = slot(b, u, H + s_.kv_heads + h / share);
          const double p = k.probabilities[index(row + u)], factor = k.attention_mask[index(row + u)];
          for (std::int64_t d = 0; d < D; ++d) {
            dp[index(u)] += dout[index(out + d)] * k.qkv[index(value + d)] * factor;
            dqkv[index(value + d)] += p * factor * dout[index(out + d)];
          }
          mean += p * dp[index(u)];
        }
        for (std::int64_t u = 0; u <= t; ++u) {
          const std::int64_t key = slot(b, u, H + h / share);
          const double ds =
              k.probabilities[index(row + u)] * (dp[index(u)] - mean) / std::sqrt(static_cast<double>(D));
          for (std::int64_t d = 0; d < D; ++d) {
            dqkv[index(q + d)] += ds * k.qkv[index(key + d)];
            dqkv[index(key + d)] += ds * k.qkv[index(q + d)];
          }
        }
      }
  return dqkv;
}

Values Oracle::embed() const {
  const std::int64_t C = s_.channels;
  Values x(index(N_ * C));
  for (std::int64_t n = 0; n < N_; ++n)
    for (std::int64_t c = 0; c < C; ++c)
      x[index(n * C + c)] =
          weight(table_.wte, batch_.tokens[index(n)] * C + c) + weight(table_.wpe, n % batch_.T * C + c);
  return x;
}

/// Through all blocks; x is the residual stream.
void Oracle::forward(Values& x) {
  const std::int64_t C = s_.channels;
  embedding_mask_ = mask(dropout_, batch_, 0, DropPlace::embedding, 1, C);
  multiply(x, embedding_mask_);
  for (std::int64_t l = 0; l < s_.layers; ++l) {
    const LayerParameters& p = table_.layers[index(l)];
    Block k;
    k.attention_mask = mask(dropout_, batch_, l, DropPlace::attention, s_.heads, batch_.T);
    k.proj_mask = mask(dropout_, batch_, l, DropPlace::attention_out, 1, C);
    k.out_mask = mask(dropout_, batch_, l, DropPlace::mlp_out, 1, C);

    k.norm1 = norm(x, p.norm1_gain, p.norm1_bias);
    k.qkv = linear(k.norm1.y, p.qkv_weight, p.qkv_bias, C, s_.qkv_width());
    attention(k);
    Values branch = linear(k.attention, p.proj_weight, p.proj_bias, C, C);
    multiply(branch, k.proj_mask);
    add(x, branch);

    k.norm2 = norm(x, p.norm2_gain, p.norm2_bias);
    k.fc = linear(k.norm2.y, p.fc_weight, p.fc_bias, C, s_.hidden());
    k.hidden = k.fc;
    for (double& v : k.hidden) v = gelu(v);
    branch = linear(k.hidden, p.out_weight, p.out_bias, s_.hidden(), C);
    multiply(branch, k.out_mask);
    add(x, branch);
    blocks_.push_back(std::move(k));
  }
}

/// Logits, losses and the gradient of the final norm's output.
Values Oracle::head(const Values& final, double grad_scale) {
  const std::int64_t C = s_.channels, V = s_.vocab;
  result_.logits = linear(final, table_.head, -1, C, V);
  result_.losses.assign(index(N_), 0);
  Values dlogits(result_.logits.size());
  for (std::int64_t n = 0; n < N_; ++n) {
    const std::int64_t target = batch_.targets[index(n)];
    if (target < 0) continue;
    const double* z = &result_.logits[index(n * V)];
    double largest = z[0], sum = 0;
    for (std::int64_t v = 0; v < V; ++v) largest = std::max(largest, z[v]);
    for (std::int64_t v = 0; v < V; ++v) sum += std::exp(z[v] - largest);
    result_.losses[index(n)] = largest + std::log(sum) - z[target];
    result_.loss_sum += result_.losses[index(n)];
    ++result_.counted;
    for (std::int64_t v = 0; v < V; ++v)
      dlogits[index(n * V + v)] = (std::exp(z[v] - largest) / sum - (v == target ? 1.0 : 0.0)) * grad_scale;
  }
  return linear_backward(final, dlogits, table_.head, -1, C, V);
}

/// From the gradient of the last residual stream to that of the embedding's output.
Values Oracle::backward(Values dx) {
  const std::int64_t C = s_.channels;
  for (std::int64_t l = s_.layers; l-- > 0;) {
    const LayerParameters& p = table_.layers[index(l)];
    const Block& k = blocks_[index(l)];
    Values dbranch = dx;
    multiply(dbranch, k.out_mask);
    Values d = linear_backward(k.hidden, dbranch, p.out_weight, p.out_bias, s_.hidden(), C);
    for (std::size_t i = 0; i < d.size(); ++i) d[i] *= gelu_slope(k.fc[i]);
    d = linear_backward(k.norm2.y, d, p.fc_weight, p.fc_bias, C, s_.hidden());
    add(dx, norm_backward(k.norm2, d, p.norm2_gain, p.norm2_bias));

    dbranch = dx;
    multiply(dbranch, k.proj_mask);
    d = linear_backward(k.attention, dbranch, p.proj_weight, p.proj_bias, C, C);
    d = linear_backward(k.norm1.y, attention_backward(k, d), p.qkv_weight, p.qkv_bias, C, s_.qkv_width());
    add(dx, norm_backward(k.norm1, d, p.norm1_gain, p.norm1_bias));
  }
  multiply(dx, embedding_mask_);
  return dx;
}

OracleResult Oracle::run(double grad_scale) {
  result_.gradients.assign(index(table_.arena_size), 0);
  Values x = embed();
  forward(x);
  const Norm final = norm(x, table_.normf_gain, table_.normf_bias);
  const Values dfinal = head(final.y, grad_scale);
  const Values dx = backward(norm_backward(final, dfinal, table_.normf_gain, table_.normf_bias));
  const std::int64_t C = s_.channels;
  for (std::int64_t n = 0; n < N_; ++n)
    for (std::int64_t c = 0; c < C; ++c) {
      gradient(table_.wte, batch_.tokens[index(n)] * C + c) += dx[index(n * C + c)];
      gradient(table_.wpe, n % batch_.T * C + c) += dx[index(n * C + c)];
    }
  return std::move(result_);
}

}  // namespace

OracleResult run_oracle(const ModelShape& shape, const ParameterTable& table, std::span<const double> weights,
                        const OracleBatch& batch, double grad_scale, const OracleDropout& dropout) {
  return Oracle(shape, table, weights, batch, dropout).run(grad_scale);
}

double OracleAdamW::update(const ParameterTable& table, std::vector<double>& weights,
                           const std::vector<double>& gradients, double lr) {
  m.resize(weights.size());
  v.resize(weights.size());
  double squares = 0;
  for (double g : gradients) squares += g * g;
  const double norm = std::sqrt(squares);
  const double factor = norm > clip ? clip / norm : 1.0;
  ++updates;
  const double correction1 = 1 - std::pow(beta1, static_cast<double>(updates));
  const double correction2 = 1 - std::pow(beta2, static_cast<double>(updates));
  for (const Parameter& p : table.parameters)
    for (std::int64_t j = 0; j < p.size(); ++j) {
      const std::size_t i = index(p.offset + j);
      const double g = gradients[i] * factor, decay = p.rank == 2 ? weight_decay : 0.0;
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      weights[i] -= lr * (m[i] / correction1 / (std::sqrt(v[i] / correction2) + eps) + decay * weights[i]);
    }
  return norm;
}

}  // namespace octavo::testing
