// synth.cpp - the corpus has the entropy rate that is stated, by measurement on what was drawn.
#include "data/synth.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "catch.h"
#include "data/tokens.h"
#include "files.h"
#include "refusal.h"
#include "temp_dir.h"

using namespace octavo;
using testing::refusal;

namespace {

std::vector<std::int32_t> draw(const MarkovSource& source, std::uint64_t stream, std::int64_t count) {
  std::vector<std::int32_t> ids;
  source.generate(stream, count, [&](std::span<const std::int32_t> part) {
    ids.insert(ids.end(), part.begin(), part.end());
  });
  return ids;
}

struct Measured {
  double conditional;  // entropy of the next id given `order` ids, nats
  double bias;         // (states * (V - 1)) / 2n: what a finite sample takes off (Miller 1955)
};

Measured measure(const std::vector<std::int32_t>& ids, std::int64_t vocab, std::size_t order) {
  std::map<std::vector<std::int32_t>, std::vector<std::int64_t>> next;
  for (std::size_t t = order; t < ids.size(); ++t) {
    auto& counts = next[{ids.begin() + static_cast<std::ptrdiff_t>(t - order),
                         ids.begin() + static_cast<std::ptrdiff_t>(t)}];
    counts.resize(static_cast<std::size_t>(vocab));
    ++counts[static_cast<std::size_t>(ids[t])];
  }
  const double n = static_cast<double>(ids.size() - order);
  double entropy = 0;
  double cells = 0;
  for (const auto& [state, counts] : next) {
    double total = 0;
    for (const std::int64_t c : counts) {
      total += static_cast<double>(c);
      cells += c > 0 ? 1 : 0;
    }
    entropy += total / n * entropy_of(counts);
    cells -= 1;
  }
  return {entropy, cells / (2 * n)};
}

}  // namespace

TEST_CASE("synth: the conditional entropy of the corpus is the stated rate") {
  struct Case {
    std::int64_t vocab, order;
    double entropy;
  };
  for (const Case& c : {Case{64, 1, 2.0}, Case{8, 2, 0.7}, Case{2, 5, 0.4}, Case{5, 1, std::log(5.0)}}) {
    const MarkovSource source(c.vocab, c.order, c.entropy, 3);
    CHECK(source.entropy_rate() == Approx(c.entropy).epsilon(1e-6));
    const std::vector<std::int32_t> ids = draw(source, 0, 400000);
    const Measured full = measure(ids, c.vocab, static_cast<std::size_t>(c.order));
    // -ln p has a standard deviation of at most about one rate here; five standard errors.
    const double tolerance = 5 * 1.5 / std::sqrt(400000.0);
    CHECK(std::abs(full.conditional + full.bias - source.entropy_rate()) < tolerance);
    // Nothing is to be learnt from fewer than `order` symbols: they are equally likely in all combinations.
    const Measured less = measure(ids, c.vocab, static_cast<std::size_t>(c.order - 1));
    CHECK(std::abs(less.conditional + less.bias - std::log(static_cast<double>(c.vocab))) < tolerance);
  }
}

TEST_CASE("synth: the rate is the entropy of the probabilities that are drawn, exactly") {
  // Order 1, V = 2: p and 1 - p in units of 2^-32; the frequency of one transition gives p.
  const MarkovSource source(2, 1, 0.5, 1);
  const std::vector<std::int32_t> ids = draw(source, 0, 1000000);
  double repeats = 0;
  for (std::size_t t = 1; t < ids.size(); ++t) repeats += ids[t] == ids[t - 1] ? 1 : 0;
  double p = repeats / static_cast<double>(ids.size() - 1);
  p = std::max(p, 1 - p);
  CHECK(-(p * std::log(p) + (1 - p) * std::log(1 - p)) == Approx(source.entropy_rate()).margin(0.005));
  // ln V is reached, and rounding to 2^-32 does not raise the rate above it.
  CHECK(MarkovSource(64, 1, std::log(64.0), 1).entropy_rate() == Approx(std::log(64.0)).epsilon(1e-15));
  CHECK(MarkovSource(3, 1, std::log(3.0), 1).entropy_rate() <= std::log(3.0) * (1 + 1e-15));
}

TEST_CASE("synth: a function of seed and stream, whatever the length") {
  const MarkovSource source(16, 2, 1.0, 5);
  const auto ids = draw(source, 0, 200000);
  CHECK(draw(MarkovSource(16, 2, 1.0, 5), 0, 200000) == ids);
  CHECK(draw(source, 0, 70001) == std::vector<std::int32_t>(ids.begin(), ids.begin() + 70001));
  CHECK(draw(source, 1, 200000) != ids);
  CHECK(draw(MarkovSource(16, 2, 1.0, 6), 0, 200000) != ids);
  CHECK(*std::min_element(ids.begin(), ids.end()) == 0);
  CHECK(*std::max_element(ids.begin(), ids.end()) == 15);
}

TEST_CASE("synth: shards and description") {
  const testing::TempDir dir;
  SynthOptions options;
  options.out = (dir.path / "out").string();
  options.tokens = 10000;
  options.val_tokens = 500;
  options.vocab = 16;
  options.order = 2;
  options.entropy = 1.25;
  options.shard_tokens = 4000;
  const DatasetDescription made = synthesise(options, [](const std::string&) {});
  const auto read = read_dataset_json(options.out + "/dataset.json");
  REQUIRE(read);
  CHECK(read->train.size() == 3);
  CHECK(read->val.size() == 1);
  CHECK(read->val[0].tokens == 500);
  CHECK(read->tokenizer_kind == "none");
  CHECK(read->vocab == 16);
  REQUIRE(read->entropy_rate);
  CHECK(*read->entropy_rate == MarkovSource(16, 2, 1.25, 1).entropy_rate());  // to the last bit, through JSON
  const std::string first = options.out + "/" + read->train[0].name;
  const TokenStream stream = TokenStream::open({first}, "auto", nullptr);
  std::vector<std::int32_t> ids(4000);
  stream.read(0, 4000, ids.data());
  CHECK(ids == draw(MarkovSource(16, 2, 1.25, 1), 0, 4000));
}

TEST_CASE("synth: wrong requests are refused and leave nothing behind") {
  const testing::TempDir dir;
  const auto refused = [&](const std::function<void(SynthOptions&)>& change) {
    SynthOptions options;
    options.out = (dir.path / "out").string();
    options.tokens = 100;
    change(options);
    const std::string message = refusal([&] { synthesise(options, [](const std::string&) {}); });
    CHECK(std::filesystem::is_empty(dir.path));
    return message;
  };
  CHECK(refused([](auto& o) { o.tokens = 1; }) == "--tokens: 1; allowed: at least 2");
  CHECK(refused([](auto& o) { o.val_tokens = -1; }) == "--val-tokens: -1; allowed: 0 or more");
  CHECK(refused([](auto& o) { o.vocab = 1; }) == "--vocab: 1; allowed: 2 to 4194304");
  CHECK(refused([](auto& o) { o.order = 0; }) == "--order: 0; allowed: 1 or more");
  CHECK(refused([](auto& o) { o.order = 4; }) ==
        "--order: 4 with a vocabulary of 64; allowed: vocab^order up to 4194304");
  CHECK_THAT(refused([](auto& o) { o.entropy = 0; }),
             ContainsSubstring("--entropy: 0 nats per token; allowed"));
  CHECK(refused([](auto& o) { o.entropy = 5.0; }) ==
        "--entropy: 5 nats per token; allowed: above 0, up to ln 64 = 4.158883");
  CHECK_THAT(refused([](auto& o) { o.shard_tokens = 0; }), ContainsSubstring("tokens per shard: 0"));
}
