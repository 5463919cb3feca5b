// oracle_model.h - a GPT-2 in plain double-precision loops: forward, loss, the whole backward pass, AdamW.
//
// The judge of the model. It shares nothing with src/ but the shape, the table of parameters (names and
// offsets) and the random numbers of dropout masks; it keeps every intermediate value, T x T matrices and
// masks included. It is itself judged by finite differences and by PyTorch's golden files (oracle_model.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parameters.h"

namespace octavo::testing {

/// B sequences of T tokens; target -1 is not counted.
struct OracleBatch {
  std::int64_t B = 0, T = 0;
  std::vector<std::int32_t> tokens, targets;  // [B*T]
  std::vector<std::int64_t> samples;          // [B] global index of each sequence; read by dropout only
};

/// Masks as the Dropout contract in src/backend.h defines them. p 0: none.
struct OracleDropout {
  float p = 0;
  std::uint64_t seed = 0;
  std::int64_t step = 0;
};

struct OracleResult {
  std::int64_t counted = 0;       // targets that are not -1
  double loss_sum = 0;            // over the counted targets, nats
  std::vector<double> losses;     // [B*T], 0 where the target is -1
  std::vector<double> logits;     // [B*T, vocab], without padding
  std::vector<double> gradients;  // [arena_size], of loss_sum * grad_scale
};

/// Loss and gradients at `weights` ([table.arena_size], laid out as the table says).
OracleResult run_oracle(const ModelShape& shape, const ParameterTable& table, std::span<const double> weights,
                        const OracleBatch& batch, double grad_scale, const OracleDropout& dropout = {});

struct OracleAdamW {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, clip = 1.0;
  std::int64_t updates = 0;
  std::vector<double> m, v;  // [arena_size]; empty before the first update

  /// One update in place: clip to the global norm, then AdamW (Loshchilov, Hutter 2019) with decay on
  /// parameters of rank 2. Returns the norm before clipping.
  double update(const ParameterTable& table, std::vector<double>& weights,
                const std::vector<double>& gradients, double lr);
};

}  // namespace octavo::testing
