// synth.cpp - see synth.h.

#include "data/synth.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/output_folder.h"
#include "data/shard_writer.h"
#include "data/tokens.h"
#include "error.h"
#include "rng.h"

namespace octavo {

namespace {

constexpr std::int64_t kMaxStates = 1 << 22;
constexpr double kUnit = 0x1p32;
constexpr std::size_t kChunk = 1 << 16;
constexpr std::int64_t kMinValTokens = 1024;

// Streams of kRandomSynth: the tables, then realisations.
constexpr std::uint64_t kTables = 0, kFirstRealisation = 1;

std::vector<double> geometric(std::int64_t vocab, double ratio) {
  std::vector<double> p(static_cast<std::size_t>(vocab));
  double value = 1;
  for (double& x : p) {
    x = value;
    value *= ratio;
  }
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

double entropy_in_nats(const std::vector<double>& p) {
  double entropy = 0;
  for (const double x : p) entropy -= x > 0 ? x * std::log(x) : 0;
  return entropy;
}

// The geometric distribution of the given entropy, by bisection: the entropy grows with the ratio.
std::vector<double> distribution_of(std::int64_t vocab, double entropy) {
  double low = 0;
  double high = 1;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (entropy_in_nats(geometric(vocab, middle)) < entropy ? low : high) = middle;
  }
  return geometric(vocab, high);
}

}  // namespace

MarkovSource::MarkovSource(std::int64_t vocab, std::int64_t order, double entropy, std::uint64_t seed)
    : vocab_(vocab), order_(order), states_(1), seed_(seed) {
  if (vocab < 2 || vocab > kMaxStates) refuse("--vocab: {}; allowed: 2 to {}", vocab, kMaxStates);
  if (order < 1) refuse("--order: {}; allowed: 1 or more", order);
  for (std::int64_t i = 0; i < order; ++i) {
    if (states_ > kMaxStates / vocab) {
      refuse("--order: {} with a vocabulary of {}; allowed: vocab^order up to {}", order, vocab, kMaxStates);
    }
    states_ *= vocab;
  }
  const double most = std::log(static_cast<double>(vocab));
  if (!(entropy > 0 && entropy <= most)) {
    refuse("--entropy: {} nats per token; allowed: above 0, up to ln {} = {:.6f}", entropy, vocab, most);
  }

  std::vector<double> p = distribution_of(vocab, entropy);
  // Rounded to 2^-32; what the sum then lacks or has too much goes to the likeliest symbol.
  double rest = kUnit;
  for (std::size_t j = 1; j < p.size(); ++j) {
    p[j] = std::floor(p[j] * kUnit + 0.5);
    rest -= p[j];
  }
  p[0] = rest;
  std::uint64_t sum = 0;
  for (double& x : p) {
    sum += static_cast<std::uint64_t>(x);
    cumulative_.push_back(sum);
    x /= kUnit;
  }
  entropy_rate_ = entropy_in_nats(p);

  // Fisher and Yates, one row of V shifts for each choice of the newest k-1 symbols.
  shift_.resize(static_cast<std::size_t>(states_));
  const PhiloxKey key = philox_key(seed, kRandomSynth, kTables);
  for (std::int64_t row = 0; row < states_; row += vocab) {
    const auto begin = shift_.begin() + row;
    std::iota(begin, begin + vocab, 0);
    for (std::int64_t i = vocab - 1; i > 0; --i) {
      const Philox4 r = philox(key, static_cast<std::uint32_t>(row + i), 0, 0, 0);
      const std::uint64_t bits = static_cast<std::uint64_t>(r.v[0]) << 32 | r.v[1];
      std::iter_swap(begin + i, begin + static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(i + 1)));
    }
  }
}

void MarkovSource::generate(std::uint64_t stream, std::int64_t count,
                            const std::function<void(std::span<const std::int32_t>)>& sink) const {
  const PhiloxKey key = philox_key(seed_, kRandomSynth, kFirstRealisation + stream);
  std::vector<std::int32_t> chunk;
  std::int64_t state = 0;
  Philox4 random{};
  for (std::int64_t t = 0; t < count; ++t) {
    if (t % 4 == 0) {
      const std::uint64_t counter = static_cast<std::uint64_t>(t / 4);
      random =
          philox(key, static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0);
    }
    const std::uint64_t draw = random.v[t % 4];
    std::int64_t next;
    if (t < order_) {  // the stationary distribution of k-grams is uniform
      next = static_cast<std::int64_t>(draw * static_cast<std::uint64_t>(vocab_) >> 32);
    } else {
      const auto j = std::upper_bound(cumulative_.begin(), cumulative_.end(), draw) - cumulative_.begin();
      next = (shift_[static_cast<std::size_t>(state)] + j) % vocab_;
    }
    state = state / vocab_ + states_ / vocab_ * next;
    chunk.push_back(static_cast<std::int32_t>(next));
    if (chunk.size() == kChunk || t + 1 == count) {
      sink(chunk);
      chunk.clear();
    }
  }
}

DatasetDescription synthesise(const SynthOptions& options, const Progress& progress) {
  const std::int64_t val_tokens = options.val_tokens.value_or(std::max(options.tokens / 10, kMinValTokens));
  if (options.tokens < 2) refuse("--tokens: {}; allowed: at least 2", options.tokens);
  if (val_tokens < 0) refuse("--val-tokens: {}; allowed: 0 or more", val_tokens);
  if (options.vocab < 2) refuse("--vocab: {}; allowed: 2 to {}", options.vocab, kMaxStates);
  const double entropy = options.entropy.value_or(0.5 * std::log(static_cast<double>(options.vocab)));
  const MarkovSource source(options.vocab, options.order, entropy, static_cast<std::uint64_t>(options.seed));

  NewFolder folder(options.out);
  ShardWriter train(folder, "train", options.vocab, options.shard_tokens);
  ShardWriter val(folder, "val", options.vocab, options.shard_tokens);
  constexpr std::int64_t kProgressTokens = 1 << 26;
  source.generate(0, options.tokens, [&](std::span<const std::int32_t> ids) {
    train.append(ids);
    if (train.tokens() % kProgressTokens == 0) {
      progress(fmt::format("{} of {} tokens", train.tokens(), options.tokens));
    }
  });
  source.generate(1, val_tokens, [&](std::span<const std::int32_t> ids) { val.append(ids); });

  DatasetDescription description;
  description.tokenizer_kind = "none";
  description.vocab = options.vocab;
  description.train = train.finish();
  description.val = val.finish();
  description.entropy_rate = source.entropy_rate();
  description.unigram_entropy = entropy_of(train.counts());
  description.made_by = {{"command", "octavo data synth"},
                         {"source", "Markov chain, one distribution for all states"},
                         {"order", options.order},
                         {"entropy_asked", entropy},
                         {"seed", options.seed}};
  write_dataset_json(description, folder.file(kDatasetFile));
  folder.publish();
  return description;
}

}  // namespace octavo
