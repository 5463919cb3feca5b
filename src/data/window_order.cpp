// window_order.cpp - see window_order.h.

#include "data/window_order.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>
#include <vector>

#include "error.h"
#include "rng.h"

namespace octavo {

namespace {

// Eight rounds with Philox as round function: far past the four that make a Feistel network pseudo-random.
constexpr std::uint32_t kRounds = 8;

// From this many windows on, one of them (at most 1 %) is given up so that the shift can reach a whole
// stride.
constexpr std::int64_t kWindowsForFullShift = 100;

}  // namespace

KeyedBijection::KeyedBijection(std::int64_t size, std::uint64_t seed, std::uint32_t purpose,
                               std::uint64_t index) {
  if (size < 1) throw std::logic_error("KeyedBijection: size < 1");
  size_ = static_cast<std::uint64_t>(size);
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2);
  const PhiloxKey key = philox_key(seed, purpose, index);
  k0_ = key.k0;
  k1_ = key.k1;
}

std::int64_t KeyedBijection::operator()(std::int64_t i) const {
  std::uint64_t x = static_cast<std::uint64_t>(i);
  if (i < 0 || x >= size_) throw std::logic_error("KeyedBijection: argument outside the range");
  const std::uint32_t mask = static_cast<std::uint32_t>((std::uint64_t{1} << half_bits_) - 1);
  do {
    std::uint32_t left = static_cast<std::uint32_t>(x >> half_bits_);
    std::uint32_t right = static_cast<std::uint32_t>(x) & mask;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const std::uint32_t f = philox({k0_, k1_}, right, round, 0, 0).v[0] & mask;
      left = std::exchange(right, left ^ f);
    }
    x = static_cast<std::uint64_t>(left) << half_bits_ | right;
  } while (x >= size_);
  return static_cast<std::int64_t>(x);
}

WindowOrder::WindowOrder(std::int64_t tokens, std::int64_t T, std::uint64_t seed) : T_(T), seed_(seed) {
  if (T < 1) throw std::logic_error("WindowOrder: T < 1");
  if (tokens < T + 1) {
    refuse("training data: {} tokens; allowed: at least {}, one window of {} tokens and the one behind it",
           tokens, T + 1, T);
  }
  windows_ = (tokens - 1) / T;
  if (windows_ >= kWindowsForFullShift) --windows_;
  slack_ = std::min(tokens - 1 - windows_ * T, T - 1);
}

std::int64_t WindowOrder::start(std::int64_t sample) const {
  if (sample < 0) throw std::logic_error("WindowOrder: sample < 0");
  const std::uint64_t e = static_cast<std::uint64_t>(epoch(sample));
  const std::int64_t place = KeyedBijection(windows_, seed_, kRandomOrder, e)(sample % windows_);
  // 64 bits modulo at most 2^31 or so: the bias is below 2^-32.
  const Philox4 r = philox(philox_key(seed_, kRandomOffset, e), 0, 0, 0, 0);
  const std::uint64_t bits = static_cast<std::uint64_t>(r.v[0]) << 32 | r.v[1];
  return place * T_ + static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(slack_ + 1));
}

void fill_batch(const TokenStream& stream, const WindowOrder& order, std::span<const std::int64_t> samples,
                std::int32_t* tokens, std::int32_t* targets) {
  const std::int64_t T = order.T();
  std::vector<std::int32_t> window(static_cast<std::size_t>(T + 1));
  for (const std::int64_t sample : samples) {
    stream.read(order.start(sample), T + 1, window.data());
    tokens = std::copy(window.begin(), window.end() - 1, tokens);
    targets = std::copy(window.begin() + 1, window.end(), targets);
  }
}

EvaluationWindows::EvaluationWindows(const TokenStream& stream, std::int64_t T, std::int64_t eval_tokens)
    : stream_(stream), T_(T), targets_(stream.size() - 1) {
  if (T < 1) throw std::logic_error("EvaluationWindows: T < 1");
  if (targets_ < 1) {
    refuse("validation data: {} tokens; allowed: at least 2, so that one can be predicted", stream.size());
  }
  if (eval_tokens >= 0) targets_ = std::min(targets_, std::max<std::int64_t>(eval_tokens, 1));
}

void EvaluationWindows::fill(std::int64_t first, std::int64_t B, std::int32_t* tokens,
                             std::int32_t* targets) const {
  std::vector<std::int32_t> window(static_cast<std::size_t>(T_ + 1));
  for (std::int64_t b = first; b < first + B; ++b) {
    const std::int64_t count = std::clamp<std::int64_t>(targets_ - b * T_, 0, T_);
    if (count > 0) stream_.read(b * T_, count + 1, window.data());
    std::fill(tokens, tokens + T_, 0);
    std::fill(targets, targets + T_, -1);
    std::copy_n(window.begin(), count, tokens);
    std::copy_n(window.begin() + 1, count, targets);
    tokens += T_;
    targets += T_;
  }
}

}  // namespace octavo
