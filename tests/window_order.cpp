// window_order.cpp - the order of samples is exact: a bijection, the same at any rank count and any start.
#include "data/window_order.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "catch.h"
#include "refusal.h"
#include "rng.h"
#include "shard_bytes.h"
#include "temp_dir.h"

using namespace octavo;
using testing::refusal;

namespace {

// A stream whose token at position i is i.
TokenStream counting_stream(const testing::TempDir& dir, std::int64_t tokens) {
  std::vector<std::uint16_t> ids(static_cast<std::size_t>(tokens));
  std::iota(ids.begin(), ids.end(), std::uint16_t{0});
  return TokenStream::open({dir.file("count.bin", testing::shard16(ids))}, "auto", nullptr);
}

}  // namespace

TEST_CASE("keyed bijection: every value exactly once, at every small size and some large ones") {
  for (std::int64_t size = 1; size <= 300; ++size) {
    const KeyedBijection order(size, 7, kRandomOrder, 3);
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t v = order(i);
      REQUIRE((v >= 0 && v < size));
      REQUIRE_FALSE(seen[static_cast<std::size_t>(v)]);
      seen[static_cast<std::size_t>(v)] = true;
    }
  }
  for (const std::int64_t size : {65536, 65537, 100003}) {
    const KeyedBijection order(size, 1, kRandomOrder, 0);
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) seen[static_cast<std::size_t>(order(i))] = true;
    CHECK(std::all_of(seen.begin(), seen.end(), [](bool b) { return b; }));
  }
  const std::int64_t huge = (std::int64_t{1} << 45) + 12345;  // 64-bit indices
  const KeyedBijection order(huge, 1, kRandomOrder, 0);
  std::set<std::int64_t> seen;
  for (std::int64_t i = huge - 2000; i < huge; ++i) seen.insert(order(i));
  CHECK(seen.size() == 2000);
  CHECK((*seen.begin() >= 0 && *seen.rbegin() < huge));
  CHECK(*seen.rbegin() - *seen.begin() > huge / 2);  // spread over the range
  CHECK_THROWS_AS(order(huge), std::logic_error);
  CHECK_THROWS_AS(order(-1), std::logic_error);
}

TEST_CASE("keyed bijection: looks like a random order") {
  // Of n random places, on average one stays and neighbours are n/3 apart.
  const std::int64_t n = 4096;
  double fixed = 0;
  double step = 0;
  for (std::uint64_t epoch = 0; epoch < 16; ++epoch) {
    const KeyedBijection order(n, 5, kRandomOrder, epoch);
    for (std::int64_t i = 0; i < n; ++i) {
      fixed += order(i) == i ? 1 : 0;
      if (i > 0) step += static_cast<double>(std::abs(order(i) - order(i - 1)));
    }
  }
  CHECK(fixed < 40);  // 16 expected, standard deviation 4
  CHECK(step / (16.0 * (n - 1)) == Approx(n / 3.0).epsilon(0.02));
}

TEST_CASE("window order: each epoch visits the same number of windows, once each, shifted") {
  for (const std::int64_t T : {1, 7, 64}) {
    for (const std::int64_t tokens : {T + 1, 3 * T + 1, 10 * T, 250 * T, 250 * T + 1}) {
      const WindowOrder order(tokens, T, 11);
      const std::int64_t W = order.windows();
      const std::int64_t most = (tokens - 1) / T;
      REQUIRE(W >= 1);
      REQUIRE(W >= most - most / 100);
      std::set<std::int64_t> shifts;
      for (std::int64_t epoch = 0; epoch < 6; ++epoch) {
        std::set<std::int64_t> starts;
        for (std::int64_t i = epoch * W; i < (epoch + 1) * W; ++i) {
          REQUIRE(order.epoch(i) == epoch);
          starts.insert(order.start(i));
        }
        REQUIRE(static_cast<std::int64_t>(starts.size()) == W);
        REQUIRE((*starts.begin() >= 0 && *starts.begin() < T));
        REQUIRE(*starts.rbegin() + T < tokens);                      // with the token behind the window
        REQUIRE(*starts.rbegin() - *starts.begin() == (W - 1) * T);  // at stride T, so without overlap
        shifts.insert(*starts.begin());
      }
      if (T > 1 && most >= 100) CHECK(shifts.size() > 1);
    }
  }
}

TEST_CASE("window order: epochs and seeds differ, equal seeds agree") {
  const WindowOrder a(100000, 32, 1), same(100000, 32, 1), other(100000, 32, 2);
  int equal_epoch = 0;
  int equal_seed = 0;
  for (std::int64_t i = 0; i < 500; ++i) {
    REQUIRE(a.start(i) == same.start(i));
    equal_epoch += a.start(i) == a.start(i + a.windows()) ? 1 : 0;
    equal_seed += a.start(i) == other.start(i) ? 1 : 0;
  }
  CHECK(equal_epoch < 10);
  CHECK(equal_seed < 10);
}

TEST_CASE("window order: any rank count and any restart see the same samples") {
  const testing::TempDir dir;
  const TokenStream stream = counting_stream(dir, 5000);
  const std::int64_t T = 16;
  const WindowOrder order(stream.size(), T, 3);
  const std::int64_t batch = 24;
  const std::size_t row = static_cast<std::size_t>(T);
  const auto samples_of = [](std::int64_t first, std::int64_t count) {
    std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
    std::iota(samples.begin(), samples.end(), first);
    return samples;
  };
  for (const std::int64_t step : {0, 5, 200}) {  // past the first epoch too
    std::vector<std::int32_t> whole(row * 24), whole_targets(row * 24);
    fill_batch(stream, order, samples_of(step * batch, batch), whole.data(), whole_targets.data());
    for (const std::int64_t ranks : {2, 3, 4, 8}) {
      std::vector<std::int32_t> joined, joined_targets;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const WindowOrder own(stream.size(), T, 3);  // each rank makes its own, at whatever step it starts
        const std::int64_t share = batch / ranks;
        std::vector<std::int32_t> tokens(row * static_cast<std::size_t>(share)), targets(tokens.size());
        fill_batch(stream, own, samples_of(step * batch + rank * share, share), tokens.data(),
                   targets.data());
        joined.insert(joined.end(), tokens.begin(), tokens.end());
        joined_targets.insert(joined_targets.end(), targets.begin(), targets.end());
      }
      CHECK(joined == whole);
      CHECK(joined_targets == whole_targets);
    }
    for (std::size_t i = 0; i < whole.size(); ++i) REQUIRE(whole_targets[i] == whole[i] + 1);
    CHECK(whole[0] == order.start(step * batch));
  }
}

TEST_CASE("window order: too little data is refused with the numbers") {
  CHECK(refusal([] { WindowOrder(64, 64, 1); }) ==
        "training data: 64 tokens; allowed: at least 65, one window of 64 tokens and the one behind it");
  CHECK(WindowOrder(65, 64, 1).windows() == 1);
}

TEST_CASE("evaluation windows: every token but the first is predicted exactly once") {
  const testing::TempDir dir;
  for (const std::int64_t tokens : {2, 8, 9, 17, 100, 101}) {
    const TokenStream stream = counting_stream(dir, tokens);
    const std::int64_t T = 8;
    for (const std::int64_t limit :
         {std::int64_t{-1}, std::int64_t{1}, std::int64_t{20}, std::int64_t{1000}}) {
      const EvaluationWindows windows(stream, T, limit);
      const std::int64_t expected = limit < 0 ? tokens - 1 : std::min(limit, tokens - 1);
      REQUIRE(windows.targets() == expected);
      REQUIRE(windows.windows() == (expected + T - 1) / T);
      const std::int64_t B = 3;
      std::int64_t next = 1;
      for (std::int64_t first = 0; first < windows.windows(); first += B) {
        std::vector<std::int32_t> in(static_cast<std::size_t>(B * T), 77), out(in);
        windows.fill(first, B, in.data(), out.data());
        for (std::size_t i = 0; i < in.size(); ++i) {
          if (next <= expected) {
            REQUIRE(out[i] == next);
            REQUIRE(in[i] == next - 1);
            ++next;
          } else {
            REQUIRE(out[i] == -1);
            REQUIRE(in[i] == 0);
          }
        }
      }
      REQUIRE(next == expected + 1);
    }
  }
  const TokenStream one = counting_stream(dir, 1);
  CHECK_THAT(refusal([&] { EvaluationWindows(one, 8, -1); }),
             ContainsSubstring("validation data: 1 tokens; allowed: at least 2"));
}
