// window_order.h - which tokens the n-th training sample holds, and the fixed windows of an evaluation.
//
// Nothing is stored or shuffled: the position of sample i is a function of (tokens, T, seed, i). So the state
// of a loader is the count of samples consumed, every rank count sees the same order, and resuming is exact.
#pragma once

#include <cstdint>
#include <span>

#include "data/tokens.h"

namespace octavo {

/// A keyed bijection of [0, size): a balanced Feistel network over the next even number of bits, walked along
/// its cycle until it is back in the range (Black, Rogaway, "Ciphers with arbitrary finite domains", 2002).
class KeyedBijection {
 public:
  KeyedBijection(std::int64_t size, std::uint64_t seed, std::uint32_t purpose, std::uint64_t index);
  std::int64_t operator()(std::int64_t i) const;

 private:
  std::uint64_t size_;
  int half_bits_;
  std::uint32_t k0_, k1_;
};

/// Windows of T+1 tokens at stride T over a stream. Each epoch visits its `windows()` windows once, in a
/// keyed order, all shifted by a keyed offset; windows() is the same for every epoch.
class WindowOrder {
 public:
  /// Throws RequestError when the stream has fewer than T + 1 tokens.
  WindowOrder(std::int64_t tokens, std::int64_t T, std::uint64_t seed);

  std::int64_t windows() const { return windows_; }
  std::int64_t T() const { return T_; }
  /// Epoch of global sample i >= 0, and the first of its T + 1 tokens.
  std::int64_t epoch(std::int64_t sample) const { return sample / windows_; }
  std::int64_t start(std::int64_t sample) const;

 private:
  std::int64_t T_, windows_, slack_;
  std::uint64_t seed_;
};

/// Reads samples: tokens[B,T] and targets[B,T] (the next token), B = samples.size(), T = order.T().
void fill_batch(const TokenStream& stream, const WindowOrder& order, std::span<const std::int64_t> samples,
                std::int32_t* tokens, std::int32_t* targets);

/// The windows that every evaluation reads: non-overlapping, from the start of the stream, so that each token
/// but the first is predicted exactly once, up to `eval_tokens` predictions (-1: all).
class EvaluationWindows {
 public:
  /// Throws RequestError when the stream has fewer than 2 tokens.
  EvaluationWindows(const TokenStream& stream, std::int64_t T, std::int64_t eval_tokens);

  std::int64_t windows() const { return (targets_ + T_ - 1) / T_; }
  /// Predictions in all.
  std::int64_t targets() const { return targets_; }
  /// Windows [first, first + B) into tokens[B,T], targets[B,T]. Behind the last prediction, and in windows
  /// past the end, the token is 0 and the target -1.
  void fill(std::int64_t first, std::int64_t B, std::int32_t* tokens, std::int32_t* targets) const;

 private:
  TokenStream stream_;
  std::int64_t T_, targets_;
};

}  // namespace octavo
