// dropout.h - the bytes behind a dropout mask, as many Philox counters at a time as a vector has lanes.
//
// The contract of the mask is Dropout's comment in backend.h. A row's mask is drawn into a buffer of bytes,
// one per column; the loop that uses the values applies it with drop().
#pragma once

#include <cstdint>
#include <cstring>

#include "backend.h"
#include "cpu/scratch.h"
#include "cpu/vec.h"
#include "rng.h"

namespace octavo::cpu {

/// A mask made ready for its loop; cheap to copy into a kernel.
struct DropoutMask {
  PhiloxKey key{};
  std::uint32_t step = 0;
  std::uint32_t threshold = 0;  // 0: nothing is dropped, no bytes need to be drawn
  float scale = 1;
  const std::int64_t* samples = nullptr;

  DropoutMask() = default;
  explicit DropoutMask(const Dropout& d, std::uint32_t head = 0) {
    if (!(d.p > 0)) return;
    threshold = dropout_threshold(d.p);
    scale = dropout_scale(threshold);
    key = dropout_key(d.seed, d.layer, static_cast<std::uint32_t>(d.place), head);
    step = static_cast<std::uint32_t>(d.state->step);
    samples = d.samples.as<std::int64_t>();
  }
  bool active() const { return threshold > 0; }
  std::uint32_t sample(std::int64_t sequence) const { return static_cast<std::uint32_t>(samples[sequence]); }
};

/// Columns are drawn in groups of this many: sixteen counters of sixteen bytes each.
inline constexpr std::int64_t kMaskGroup = 256;

/// Bytes that draw_mask() may write for `columns` columns.
constexpr std::int64_t mask_bytes(std::int64_t columns) {
  return (columns + kMaskGroup - 1) / kMaskGroup * kMaskGroup;
}

/// The calling thread's room for one row of a mask; null where nothing is dropped.
inline std::uint8_t* mask_row(const DropoutMask& mask, std::int64_t columns) {
  static thread_local Scratch scratch;
  return mask.active() ? scratch.get<std::uint8_t>(static_cast<std::size_t>(mask_bytes(columns))) : nullptr;
}

// Instructions that GCC 12 does not make of anything written in its vector extension; `op` is the mnemonic.
#define OCTAVO_TWO_OPERANDS(name, Type, op)                                                             \
  template <int W>                                                                                      \
  OCTAVO_INLINE typename Native<W>::Type name(typename Native<W>::Type a, typename Native<W>::Type b) { \
    if constexpr (W == 4)                                                                               \
      asm(op " %1, %0" : "+x"(a) : "x"(b));                                                             \
    else                                                                                                \
      asm("v" op " %2, %1, %0" : "=v"(a) : "v"(a), "v"(b));                                             \
    return a;                                                                                           \
  }
OCTAVO_TWO_OPERANDS(multiply_even_words, L, "pmuludq")  // 64-bit products of lanes 0, 2, ...
OCTAVO_TWO_OPERANDS(interleave_low, U, "punpckldq")     // in each 16 bytes: a0 b0 a1 b1
OCTAVO_TWO_OPERANDS(interleave_high, U, "punpckhdq")    // a2 b2 a3 b3
OCTAVO_TWO_OPERANDS(join_low, U, "punpcklqdq")          // a0 a1 b0 b1
OCTAVO_TWO_OPERANDS(join_high, U, "punpckhqdq")         // a2 a3 b2 b3
#undef OCTAVO_TWO_OPERANDS

/// High and low halves of the 64-bit products of words with one constant.
template <int W>
OCTAVO_INLINE void multiply_wide(typename Native<W>::U a, std::uint32_t constant, typename Native<W>::U& high,
                                 typename Native<W>::U& low) {
  using L = typename Native<W>::L;
  using U = typename Native<W>::U;
  const L pairs = (L)a, c = L{} + std::uint64_t{constant}, lower = L{} + std::uint64_t{0xffffffffu};
  const L even = multiply_even_words<W>(pairs, c), odd = multiply_even_words<W>(pairs >> 32, c);
  low = (U)((even & lower) | (odd << 32));
  high = (U)((even >> 32) | (odd & ~lower));
}

/// Draws the bytes of columns [first, first + columns) of one row. `first` is a multiple of 16. Writes
/// mask_bytes(columns) bytes.
template <int W>
OCTAVO_INLINE void draw_mask(const DropoutMask& mask, std::uint32_t sample, std::int64_t row,
                             std::int64_t first, std::int64_t columns, std::uint8_t* bytes) {
  using U = typename Native<W>::U;
  constexpr int kRuns = W / 4;  // 16-byte runs of a native vector
  // Lane 4 L + k holds counter kRuns k + L, so that the transposition below, which stays within 16-byte runs,
  // leaves the blocks of neighbouring counters side by side.
  alignas(64) std::uint32_t order[W];
  for (int lane = 0; lane < W; ++lane)
    order[lane] = static_cast<std::uint32_t>(kRuns * (lane % 4) + lane / 4);
  U counters;
  std::memcpy(&counters, order, sizeof counters);
  const std::int64_t end = mask_bytes(columns);
  for (std::int64_t column = 0; column < end; column += 16 * W) {
    U c0 = counters + static_cast<std::uint32_t>((first + column) / 16);
    U c1 = U{} + static_cast<std::uint32_t>(row), c2 = U{} + sample, c3 = U{} + mask.step;
    PhiloxKey key = mask.key;
    for (int round = 0; round < 10; ++round) {
      U high0, low0, high1, low1;
      multiply_wide<W>(c0, 0xD2511F53u, high0, low0);
      multiply_wide<W>(c2, 0xCD9E8D57u, high1, low1);
      c0 = high1 ^ c1 ^ key.k0;
      c2 = high0 ^ c3 ^ key.k1;
      c1 = low1;
      c3 = low0;
      key.k0 += 0x9E3779B9u;
      key.k1 += 0xBB67AE85u;
    }
    const U a = interleave_low<W>(c0, c1), b = interleave_high<W>(c0, c1);
    const U c = interleave_low<W>(c2, c3), d = interleave_high<W>(c2, c3);
    const U blocks[4] = {join_low<W>(a, c), join_high<W>(a, c), join_low<W>(b, d), join_high<W>(b, d)};
    std::memcpy(bytes + column, blocks, sizeof blocks);
  }
}

/// x times the scale where its byte keeps it, else 0. `bytes` are the sixteen of this chunk.
template <int W>
OCTAVO_INLINE Floats<W> drop(Floats<W> x, const std::uint8_t* bytes, std::uint32_t threshold, float scale) {
  // byte < threshold, as the sign of the difference spread over the word: both are below 2^31
  const Words<W> below = load_bytes<W>(bytes) - Words<W>::broadcast(threshold);
  Words<W> keep;
  for (int i = 0; i < Words<W>::kParts; ++i)
    keep.v[i] = ~(typename Native<W>::U)((typename Native<W>::I)below.v[i] >> 31);
  return floats_of(bits_of(x * Floats<W>::broadcast(scale)) & keep);
}

}  // namespace octavo::cpu
