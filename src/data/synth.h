// synth.h - a corpus whose entropy rate is known exactly, so that a loss has a floor: `octavo data synth`.
//
// The source is a Markov chain of order k over V symbols. One distribution p over 0..V-1 serves every state:
// the next symbol is s(state) + j modulo V with j drawn from p, and s is a keyed table in which, whatever the
// newest k-1 symbols are, the oldest one runs through all shifts. Hence
//   * given the state, the next symbol has entropy H(p): that is the entropy rate, whatever the tables hold;
//   * the transition matrix is doubly stochastic: all k-grams are equally likely, and nothing is to be learnt
//     from frequencies alone (the unigram entropy is ln V).
// p is geometric, p_j ~ r^j, with r chosen for the entropy that was asked for, and rounded to multiples of
// 2^-32: the rate is computed from the rounded values, which are those that are drawn.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/dataset_json.h"
#include "data/pack.h"

namespace octavo {

class MarkovSource {
 public:
  /// `entropy` in nats per token, of (0, ln vocab]. Throws RequestError for values out of range.
  MarkovSource(std::int64_t vocab, std::int64_t order, double entropy, std::uint64_t seed);

  /// Nats per token, exact to the rounding of a double.
  double entropy_rate() const { return entropy_rate_; }

  /// `count` tokens of an independent realisation `stream`, from the stationary distribution, in chunks.
  void generate(std::uint64_t stream, std::int64_t count,
                const std::function<void(std::span<const std::int32_t>)>& sink) const;

 private:
  std::int64_t vocab_, order_, states_;
  std::uint64_t seed_;
  double entropy_rate_ = 0;
  std::vector<std::uint64_t> cumulative_;  // sums of p_0..p_j in units of 2^-32
  std::vector<std::int32_t> shift_;        // s(state); state = sum of (i-th oldest symbol) * V^i
};

struct SynthOptions {
  std::string out;
  std::int64_t tokens = 0;                 // for training
  std::optional<std::int64_t> val_tokens;  // nothing: a tenth of `tokens`, at least 1024
  std::int64_t vocab = 64, order = 1;
  std::optional<double> entropy;  // nats per token; nothing: half of ln vocab
  std::int64_t seed = 1;
  std::int64_t shard_tokens = 100'000'000;
};

/// Writes train and val shards and dataset.json (with the entropy rate) into a new folder, all or nothing.
/// Throws RequestError for a wrong request, RunError when the disk fails.
DatasetDescription synthesise(const SynthOptions& options, const Progress& progress);

}  // namespace octavo
