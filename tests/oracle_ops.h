// oracle_ops.h - every operator once more, as plain loops in double precision: what each backend is held to.
//
// Arguments are the values that the operator read, widened; results are unrounded, with the norm that the
// tolerance needs (see tolerance.h). Nothing here is shared with a backend but Philox, whose published test
// vectors are in dropout.cpp. Matrices are row-major; `old` is what an output held before (empty: `=`).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "backend.h"
#include "rng.h"
#include "tolerance.h"

namespace octavo::testing::oracle {

using Values = std::vector<double>;

/// Element (row n, column c) of a matrix with C columns.
inline std::size_t at(std::int64_t n, std::int64_t c, std::int64_t C) {
  return static_cast<std::size_t>(n * C + c);
}
inline double old_value(const Values& old, std::size_t i) {
  return old.empty() ? 0.0 : old[i];
}

/// A dropout mask, by its definition, one element at a time.
struct Mask {
  double p = 0;
  std::uint64_t seed = 0;
  std::uint32_t layer = 0;
  DropPlace place = DropPlace::embedding;
  std::vector<std::int64_t> samples;
  std::int64_t step = 0;
  std::uint32_t head = 0;

  /// What an element is multiplied by: 0, or 256 / (256 - round(256 p)).
  double factor(std::int64_t sequence, std::int64_t row, std::int64_t column) const {
    if (p == 0) return 1;
    const int threshold = static_cast<int>(std::lround(256 * p));
    const PhiloxKey key = dropout_key(seed, layer, static_cast<std::uint32_t>(place), head);
    const Philox4 block =
        philox(key, static_cast<std::uint32_t>(column / 16), static_cast<std::uint32_t>(row),
               static_cast<std::uint32_t>(samples[static_cast<std::size_t>(sequence)] & 0xffffffff),
               static_cast<std::uint32_t>(step));
    const int byte = static_cast<int>((block.v[column % 16 / 4] >> (8 * (column % 4))) & 0xff);
    return byte >= threshold ? 256.0 / (256 - threshold) : 0.0;
  }
};

/// The factors of an [N,C] tensor of sequences of T positions.
inline Values mask_factors(const Mask& mask, std::int64_t N, std::int64_t C, std::int64_t T) {
  Values f(static_cast<std::size_t>(N * C));
  for (std::int64_t n = 0; n < N; ++n)
    for (std::int64_t c = 0; c < C; ++c) f[at(n, c, C)] = mask.factor(n / T, n % T, c);
  return f;
}

/// out[c] = old[c] + sum over n of x[n][c].
inline Reference column_sums(const Values& x, std::int64_t N, std::int64_t C, const Values& old = {}) {
  Reference r;
  for (std::int64_t c = 0; c < C; ++c) {
    double sum = old_value(old, static_cast<std::size_t>(c)), norm = std::abs(sum);
    for (std::int64_t n = 0; n < N; ++n) {
      sum += x[at(n, c, C)];
      norm += std::abs(x[at(n, c, C)]);
    }
    r.value.push_back(sum);
    r.norm = std::max(r.norm, norm);
  }
  return r;
}

inline Reference embedding_forward(const std::vector<std::int32_t>& tokens, const Values& wte,
                                   const Values& wpe, std::int64_t B, std::int64_t T, std::int64_t C,
                                   const Values& factors) {
  Reference r;
  for (std::int64_t n = 0; n < B * T; ++n)
    for (std::int64_t c = 0; c < C; ++c) {
      const double a = wte[at(tokens[static_cast<std::size_t>(n)], c, C)], b = wpe[at(n % T, c, C)];
      r.value.push_back((a + b) * factors[at(n, c, C)]);
      r.norm = std::max(r.norm, (std::abs(a) + std::abs(b)) * factors[at(n, c, C)]);
    }
  return r;
}

struct EmbeddingGradients {
  Reference dwte, dwpe;
};
inline EmbeddingGradients embedding_backward(const std::vector<std::int32_t>& tokens, const Values& dx,
                                             std::int64_t B, std::int64_t T, std::int64_t C,
                                             const Values& factors, const Values& old_wte,
                                             const Values& old_wpe) {
  EmbeddingGradients g{{old_wte, 0}, {old_wpe, 0}};
  Values wte_norm = old_wte, wpe_norm = old_wpe;
  for (Values* v : {&wte_norm, &wpe_norm})
    for (double& x : *v) x = std::abs(x);
  for (std::int64_t n = 0; n < B * T; ++n)
    for (std::int64_t c = 0; c < C; ++c) {
      const double d = dx[at(n, c, C)] * factors[at(n, c, C)];
      const std::size_t e = at(tokens[static_cast<std::size_t>(n)], c, C), p = at(n % T, c, C);
      g.dwte.value[e] += d;
      g.dwpe.value[p] += d;
      wte_norm[e] += std::abs(d);
      wpe_norm[p] += std::abs(d);
    }
  g.dwte.norm = *std::max_element(wte_norm.begin(), wte_norm.end());
  g.dwpe.norm = *std::max_element(wpe_norm.begin(), wpe_norm.end());
  return g;
}

/// x + factors * branch.
inline Reference residual(const Values& x, const Values& branch, const Values& factors) {
  Reference r;
  for (std::size_t i = 0; i < x.size(); ++i) {
    r.value.push_back(x[i] + factors[i] * branch[i]);
    r.norm = std::max(r.norm, std::abs(x[i]) + factors[i] * std::abs(branch[i]));
  }
  return r;
}

struct Norm {
  Reference y, mean, rstd;
};
inline Norm norm_forward(const Values& r, const Values& gain, const Values& bias, std::int64_t N,
                         std::int64_t C, double eps) {
  Norm out;
  for (std::int64_t n = 0; n < N; ++n) {
    double mean = 0, magnitude = 0, variance = 0;
    for (std::int64_t c = 0; c < C; ++c) mean += r[at(n, c, C)], magnitude += std::abs(r[at(n, c, C)]);
    mean /= static_cast<double>(C);
    magnitude /= static_cast<double>(C);
    for (std::int64_t c = 0; c < C; ++c) variance += (r[at(n, c, C)] - mean) * (r[at(n, c, C)] - mean);
    variance /= static_cast<double>(C);
    const double rstd = 1 / std::sqrt(variance + eps);
    out.mean.value.push_back(mean);
    out.rstd.value.push_back(rstd);
    out.mean.norm = std::max(out.mean.norm, magnitude);
    // an error of the mean enters each difference from it
    out.rstd.norm = std::max(out.rstd.norm, rstd * (1 + magnitude * rstd));
    for (std::int64_t c = 0; c < C; ++c) {
      const std::size_t k = static_cast<std::size_t>(c);
      out.y.value.push_back((r[at(n, c, C)] - mean) * rstd * gain[k] + bias[k]);
      const double size = (std::abs(r[at(n, c, C)]) + magnitude) * rstd;
      out.y.norm = std::max(out.y.norm, size * std::abs(gain[k]) + std::abs(bias[k]));
    }
  }
  return out;
}

struct NormGradients {
  Reference dresidual, dgain, dbias;
};
inline NormGradients norm_backward(const Values& dy, const Values& r, const Values& gain, const Values& mean,
                                   const Values& rstd, std::int64_t N, std::int64_t C,
                                   const Values& old_dresidual, const Values& old_dgain,
                                   const Values& old_dbias) {
  NormGradients out;
  Values dgain_terms(dy.size());
  for (std::int64_t n = 0; n < N; ++n) {
    const std::size_t m = static_cast<std::size_t>(n);
    double mean_g = 0, mean_gx = 0, size_g = 0, size_gx = 0;
    for (std::int64_t c = 0; c < C; ++c) {
      const double g = dy[at(n, c, C)] * gain[static_cast<std::size_t>(c)];
      const double xhat = (r[at(n, c, C)] - mean[m]) * rstd[m];
      mean_g += g / static_cast<double>(C);
      mean_gx += g * xhat / static_cast<double>(C);
      size_g += std::abs(g) / static_cast<double>(C);
      size_gx += std::abs(g * xhat) / static_cast<double>(C);
      dgain_terms[at(n, c, C)] = dy[at(n, c, C)] * xhat;
    }
    for (std::int64_t c = 0; c < C; ++c) {
      const double g = dy[at(n, c, C)] * gain[static_cast<std::size_t>(c)];
      const double xhat = (r[at(n, c, C)] - mean[m]) * rstd[m];
      const double old = old_value(old_dresidual, at(n, c, C));
      out.dresidual.value.push_back(old + rstd[m] * (g - mean_g - xhat * mean_gx));
      out.dresidual.norm = std::max(
          out.dresidual.norm, std::abs(old) + rstd[m] * (std::abs(g) + size_g + std::abs(xhat) * size_gx));
    }
  }
  out.dgain = column_sums(dgain_terms, N, C, old_dgain);
  out.dbias = column_sums(dy, N, C, old_dbias);
  return out;
}

inline double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
inline double gelu_derivative(double x) {
  const double k = std::sqrt(2 / M_PI), t = std::tanh(k * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
}
inline Reference activation_forward(const Values& x) {
  Reference r;
  for (const double v : x) {
    r.value.push_back(gelu(v));
    r.norm = std::max(r.norm, std::abs(v));
  }
  return r;
}
inline Reference activation_backward(const Values& x, const Values& dy) {
  Reference r;
  for (std::size_t i = 0; i < x.size(); ++i) {
    r.value.push_back(dy[i] * gelu_derivative(x[i]));
    r.norm = std::max(r.norm, 2 * std::abs(dy[i]));  // s and x s (1 - s) slope are both below 1
  }
  return r;
}

struct CrossEntropyResult {
  Reference losses, dlogits;
};
inline CrossEntropyResult cross_entropy(const Values& logits, const std::vector<std::int32_t>& targets,
                                        std::int64_t N, std::int64_t Vp, std::int64_t V, double grad_scale) {
  CrossEntropyResult out;
  for (std::int64_t n = 0; n < N; ++n) {
    const std::int32_t target = targets[static_cast<std::size_t>(n)];
    double top = -1e300, sum = 0;
    for (std::int64_t c = 0; c < V; ++c) top = std::max(top, logits[at(n, c, Vp)]);
    for (std::int64_t c = 0; c < V; ++c) sum += std::exp(logits[at(n, c, Vp)] - top);
    const bool counts = target >= 0;
    out.losses.value.push_back(counts ? std::log(sum) + top - logits[at(n, target, Vp)] : 0);
    if (counts)  // an error of an exponential enters the logarithm of their sum relative to the sum
      out.losses.norm =
          std::max(out.losses.norm, 1 + std::abs(std::log(sum) + top - logits[at(n, target, Vp)]));
    for (std::int64_t c = 0; c < Vp; ++c) {
      const double p = counts && c < V ? std::exp(logits[at(n, c, Vp)] - top) / sum : 0;
      out.dlogits.value.push_back((p - (counts && c == target ? 1 : 0)) * grad_scale);
      out.dlogits.norm = std::max(out.dlogits.norm, p * std::abs(grad_scale));
    }
  }
  return out;
}

inline Reference gradient_norm(const Values& g) {
  double sum = 0;
  for (const double v : g) sum += v * v;
  return {{std::sqrt(sum)}, std::sqrt(sum)};
}

/// The three products of a linear layer (see Gemm): a and b as the operator reads them.
inline Reference matmul(Gemm gemm, const Values& a, const Values& b, const Values& bias, const Values& old,
                        std::int64_t N, std::int64_t O, std::int64_t I) {
  const std::int64_t rows = gemm == Gemm::wgrad ? O : N, columns = gemm == Gemm::fprop ? O : I;
  const std::int64_t depth = gemm == Gemm::fprop ? I : gemm == Gemm::dgrad ? O : N;
  Reference r;
  for (std::int64_t m = 0; m < rows; ++m)
    for (std::int64_t n = 0; n < columns; ++n) {
      double sum = old_value(old, at(m, n, columns)) + old_value(bias, static_cast<std::size_t>(n));
      double norm = std::abs(sum);
      for (std::int64_t k = 0; k < depth; ++k) {
        const double x = gemm == Gemm::wgrad ? a[at(k, m, O)] : a[at(m, k, depth)];
        const double y = gemm == Gemm::fprop ? b[at(n, k, I)] : b[at(k, n, I)];
        sum += x * y;
        norm += std::abs(x * y);
      }
      r.value.push_back(sum);
      r.norm = std::max(r.norm, norm);
    }
  return r;
}

struct AttentionShape {
  std::int64_t B, T, H, Hkv, D;
  double scale;

  std::int64_t width() const { return (H + 2 * Hkv) * D; }
  std::size_t count() const { return static_cast<std::size_t>(B * T * width()); }
  std::size_t q(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) const {
    return static_cast<std::size_t>((b * T + t) * width() + h * D + d);
  }
  std::size_t k(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) const {
    return q(b, t, H + h / (H / Hkv), d);
  }
  std::size_t v(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) const {
    return q(b, t, H + Hkv + h / (H / Hkv), d);
  }
  std::size_t out(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) const {
    return static_cast<std::size_t>(((b * T + t) * H + h) * D + d);
  }
  std::size_t row(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return static_cast<std::size_t>((b * H + h) * T + t);
  }
  /// The scaled score of a query and a key, and the sum of the magnitudes behind it.
  double score(const Values& qkv, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j,
               double& size) const {
    double sum = 0;
    size = 0;
    for (std::int64_t d = 0; d < D; ++d) {
      const double term = qkv[q(b, i, h, d)] * qkv[k(b, j, h, d)] * scale;
      sum += term;
      size += std::abs(term);
    }
    return sum;
  }
};

struct AttentionResult {
  Reference out, lse;
  double score_size = 0;  // the largest sum of magnitudes behind a score: its error is relative to that, and
                          // an error of a score is a relative error of its probability
};
inline AttentionResult attention_forward(const AttentionShape& s, const Values& qkv, Mask mask) {
  AttentionResult r;
  r.out.value.resize(static_cast<std::size_t>(s.B * s.T * s.H * s.D));
  r.lse.value.resize(static_cast<std::size_t>(s.B * s.H * s.T));
  for (std::int64_t b = 0; b < s.B; ++b)
    for (std::int64_t h = 0; h < s.H; ++h)
      for (std::int64_t i = 0; i < s.T; ++i) {
        mask.head = static_cast<std::uint32_t>(h);
        Values p(static_cast<std::size_t>(i + 1));
        double top = -1e300, total = 0;
        for (std::int64_t j = 0; j <= i; ++j) {
          double size = 0;
          p[static_cast<std::size_t>(j)] = s.score(qkv, b, h, i, j, size);
          top = std::max(top, p[static_cast<std::size_t>(j)]);
          r.score_size = std::max(r.score_size, size);
        }
        for (double& x : p) total += x = std::exp(x - top);
        r.lse.value[s.row(b, h, i)] = top + std::log(total);
        for (std::int64_t j = 0; j <= i; ++j) p[static_cast<std::size_t>(j)] *= mask.factor(b, i, j) / total;
        for (std::int64_t d = 0; d < s.D; ++d) {
          double sum = 0, norm = 0;
          for (std::int64_t j = 0; j <= i; ++j) {
            const double term = p[static_cast<std::size_t>(j)] * qkv[s.v(b, j, h, d)];
            sum += term;
            norm += std::abs(term);
          }
          r.out.value[s.out(b, i, h, d)] = sum;
          r.out.norm = std::max(r.out.norm, norm);
        }
      }
  r.lse.norm = 1 + r.score_size;
  return r;
}

/// dqkv, from out and lse as the operator reads them. The norm is the largest of the three parts'.
inline Reference attention_backward(const AttentionShape& s, const Values& qkv, const Values& out,
                                    const Values& dout, const Values& lse, Mask mask) {
  Reference r{Values(s.count()), 0};
  Values norm(s.count());
  const auto add = [&](std::size_t i, double value, double size) {
    r.value[i] += value;
    norm[i] += size;
  };
  for (std::int64_t b = 0; b < s.B; ++b)
    for (std::int64_t h = 0; h < s.H; ++h)
      for (std::int64_t i = 0; i < s.T; ++i) {
        mask.head = static_cast<std::uint32_t>(h);
        double delta = 0, delta_size = 0;
        for (std::int64_t d = 0; d < s.D; ++d) {
          const double term = dout[s.out(b, i, h, d)] * out[s.out(b, i, h, d)];
          delta += term;
          delta_size += std::abs(term);
        }
        for (std::int64_t j = 0; j <= i; ++j) {
          double size = 0, dp = 0, dp_size = 0;
          const double p = std::exp(s.score(qkv, b, h, i, j, size) - lse[s.row(b, h, i)]);
          const double factor = mask.factor(b, i, j);
          for (std::int64_t d = 0; d < s.D; ++d) {
            const double g = dout[s.out(b, i, h, d)], term = g * qkv[s.v(b, j, h, d)] * factor;
            dp += term;
            dp_size += std::abs(term);
            add(s.v(b, j, h, d), p * factor * g, std::abs(p * factor * g));
          }
          const double ds = p * (dp - delta) * s.scale, ds_size = p * (dp_size + delta_size) * s.scale;
          for (std::int64_t d = 0; d < s.D; ++d) {
            const double k = qkv[s.k(b, j, h, d)], q = qkv[s.q(b, i, h, d)];
            add(s.q(b, i, h, d), ds * k, ds_size * std::abs(k));
            add(s.k(b, j, h, d), ds * q, ds_size * std::abs(q));
          }
        }
      }
  r.norm = *std::max_element(norm.begin(), norm.end());
  return r;
}

struct AdamWHyper {
  double lr, beta1, beta2, eps, clip_factor;
  std::int64_t t;
};
struct AdamWResult {
  Reference param, m, v;
};
/// `decay[i]` is the weight decay of element i.
inline AdamWResult adamw(const Values& param, const Values& grad, const Values& m, const Values& v,
                         const Values& decay, const AdamWHyper& h) {
  AdamWResult out;
  for (std::size_t i = 0; i < param.size(); ++i) {
    const double g = grad[i] * h.clip_factor;
    const double m1 = h.beta1 * m[i] + (1 - h.beta1) * g, v1 = h.beta2 * v[i] + (1 - h.beta2) * g * g;
    const double mhat = m1 / (1 - std::pow(h.beta1, static_cast<double>(h.t)));
    const double vhat = v1 / (1 - std::pow(h.beta2, static_cast<double>(h.t)));
    const double step = mhat / (std::sqrt(vhat) + h.eps);
    out.param.value.push_back(param[i] - h.lr * (step + decay[i] * param[i]));
    out.m.value.push_back(m1);
    out.v.value.push_back(v1);
    const double size_m = h.beta1 * std::abs(m[i]) + (1 - h.beta1) * std::abs(g);
    out.m.norm = std::max(out.m.norm, size_m);
    out.v.norm = std::max(out.v.norm, v1);
    out.param.norm = std::max(
        out.param.norm, std::abs(param[i]) + h.lr * (size_m / std::max(std::abs(m1), 1e-30) * std::abs(step) +
                                                     decay[i] * std::abs(param[i])));
  }
  return out;
}

}  // namespace octavo::testing::oracle
