// attention_tiles.h - the pieces that both directions of attention are made of: a register-blocked product of
// small tiles, the packing of its operands, a base-2 exponential, and the choice of instruction set.
//
// All seven products of attention (S = Q K^T and P V forward; S, dP = dO V^T, dV += P^T dO, dK += dS^T Q and
// dQ += dS K backward) are one kernel, product(), over matrices of 32-bit words. A word is an f32 value, or,
// where the processor multiplies bf16 (`Pairs`), two neighbouring bf16 values along the summed dimension;
// only the multiply-accumulate differs. The left operand is read one word at a time, so that it may be stored
// in either orientation; the right operand is packed with the summed dimension outermost:
//
// * rows, [row][channel]: words of a row as they are in memory; left operand of S, dP, P V and dQ;
// * columns, [channel][row]: the same transposed, by tiles of kTile rows; right operand of S and dP;
// * stacked, [row][channel]: in f32 as rows, of pairs rows 2i and 2i + 1 in one word; right operand
// elsewhere.
//
// Sources including this are compiled with -ffp-contract=fast: a fused multiply-add is both faster and more
// exact. AVX2 and AVX-512 give the same f32 bits; a processor without the instruction, and bf16 pairs, round
// differently. The number of threads never changes a bit.
//
// A NaN or an infinity reaches what depends on it and nothing else, position by position: what the diagonal
// hides is masked before it is used (scores, probabilities, their gradients) or left out of the sum
// (product_triangle()).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/bf16_products.h"
#include "cpu/dropout.h"
#include "cpu/instruction_set.h"
#include "cpu/vec.h"

namespace octavo::cpu {

/// Queries and keys are processed in square tiles: scores of one tile (16 KiB) stay in the first-level cache.
inline constexpr std::int64_t kTile = 64;
/// Rows of a product computed at a time: with four vectors of columns, sixteen sums in registers.
inline constexpr std::int64_t kRows = 4;
/// Key tiles whose dropout bytes are drawn together.
inline constexpr std::int64_t kMaskTiles = kMaskGroup / kTile;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// Words behind `values` values.
template <bool Pairs>
constexpr std::int64_t words(std::int64_t values) {
  return Pairs ? values / 2 : values;
}

// ---- Choice of instruction set ---------------------------------------------------------------------------

// As run_avx2() and run_baseline() in instruction_set.h, with fused multiply-add.
template <class Kernel, class... Args>
__attribute__((target("avx2,fma"))) void run_fma(Args... args) {
  Kernel::template run<8>(args...);
}

/// Whether products of bf16 tiles run on bf16 pairs: the processor has the instruction, and neither the
/// tests' limit nor oneDNN's (ONEDNN_MAX_CPU_ISA) forbids it.
inline bool pairs_in_use() {
  return instruction_set() == InstructionSet::avx512 && has_bf16_products() &&
         __builtin_cpu_supports("avx512bf16");
}

/// Runs Kernel<T, Pairs>::run for the element type and the instruction set in use.
template <template <class, bool> class Kernel, class T, class... Args>
void dispatch_attention(Args... args) {
  if constexpr (std::is_same_v<T, bf16>)
    if (pairs_in_use()) return run_avx512<Kernel<T, true>>(args...);
  const InstructionSet set = instruction_set();
  if (set == InstructionSet::avx512) return run_avx512<Kernel<T, false>>(args...);
  if (set == InstructionSet::avx2 && __builtin_cpu_supports("fma")) return run_fma<Kernel<T, false>>(args...);
  run_baseline<Kernel<T, false>>(args...);
}

// ---- Products --------------------------------------------------------------------------------------------

template <int W>
OCTAVO_INLINE typename Native<W>::F repeat_word(const float* word) {
  std::uint32_t bits;  // as an integer: adding zero to a float would not be free
  std::memcpy(&bits, word, sizeof bits);
  return (typename Native<W>::F)(typename Native<W>::U{} + bits);
}

/// sum + a b, the sum in a register (by value: an asm operand in an array would pin the array to memory).
template <int W, bool Pairs>
OCTAVO_INLINE typename Native<W>::F multiply_add(typename Native<W>::F sum, typename Native<W>::F a,
                                                 typename Native<W>::F b) {
  if constexpr (Pairs)
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  else
    sum += a * b;
  return sum;
}

/// A matrix of words whose element (row, k) is words[row * row_stride + k * depth_stride].
struct Left {
  const float* words;
  std::int64_t row_stride, depth_stride;
};

/// kRows rows and V native vectors of columns of a product: c = or += sum over k of a(., k) b[k][.].
template <int W, bool Pairs, int V>
OCTAVO_INLINE void product_panel(std::int64_t depth, Left a, const float* b, std::int64_t b_stride, float* c,
                                 std::int64_t c_stride, bool accumulate) {
  using F = typename Native<W>::F;
  F sum[kRows][V];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      if (accumulate)
        std::memcpy(&sum[r][v], c + r * c_stride + v * W, sizeof(F));
      else
        sum[r][v] = F{};
  const float* left = a.words;
  for (std::int64_t k = 0; k < depth; ++k) {
    F column[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) std::memcpy(&column[v], b + v * W, sizeof(F));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F row = repeat_word<W>(left + r * a.row_stride);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[r][v] = multiply_add<W, Pairs>(sum[r][v], row, column[v]);
    }
    left += a.depth_stride;
    b += b_stride;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) std::memcpy(c + r * c_stride + v * W, &sum[r][v], sizeof(F));
}

/// c[kRows][columns] = or += a b, `columns` a multiple of 16, `depth` in words.
template <int W, bool Pairs>
OCTAVO_INLINE void product(std::int64_t depth, Left a, const float* b, std::int64_t b_stride, float* c,
                           std::int64_t c_stride, std::int64_t columns, bool accumulate) {
  constexpr int V = W == 16 ? 4 : 2;  // sums must fit the registers: 32 of AVX-512, else 16
  std::int64_t column = 0;
  for (; column + V * W <= columns; column += V * W)
    product_panel<W, Pairs, V>(depth, a, b + column, b_stride, c + column, c_stride, accumulate);
  if constexpr (W == 16) {  // on the narrow sets a panel is 16 columns at most
    switch ((columns - column) / 16) {
      case 3:
        return product_panel<W, Pairs, 3>(depth, a, b + column, b_stride, c + column, c_stride, accumulate);
      case 2:
        return product_panel<W, Pairs, 2>(depth, a, b + column, b_stride, c + column, c_stride, accumulate);
      case 1:
        return product_panel<W, Pairs, 1>(depth, a, b + column, b_stride, c + column, c_stride, accumulate);
    }
  }
}

/// Of the kRows values of a summed dimension that cross the diagonal, row r counts the first r + 1, or those
/// from r on.
enum class Triangle : bool { up_to_row, from_row };

/// c[kRows][columns] += a b over words<Pairs>(kRows) words, each row over what it counts alone. The rest is
/// left out, not multiplied by its probability of zero: zero times NaN is NaN, so that one position's would
/// reach others that never see it.
template <int W, bool Pairs, Triangle Part>
OCTAVO_INLINE void product_triangle(Left a, const float* b, std::int64_t b_stride, float* c,
                                    std::int64_t c_stride, std::int64_t columns) {
  using F = typename Native<W>::F;
  using U = typename Native<W>::U;
  constexpr auto counts = [](int row, int value) {
    return Part == Triangle::up_to_row ? value <= row : value >= row;
  };
  constexpr int kValues = Pairs ? 2 : 1;  // of a word, the first in its low half
  for (std::int64_t column = 0; column < columns; column += W) {
    F right[kRows / kValues];
#pragma GCC unroll 8
    for (int k = 0; k < kRows / kValues; ++k) std::memcpy(&right[k], b + k * b_stride + column, sizeof(F));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      F sum;
      std::memcpy(&sum, c + r * c_stride + column, sizeof(F));
#pragma GCC unroll 8
      for (int k = 0; k < kRows / kValues; ++k) {
        const bool first = counts(r, k * kValues), last = counts(r, k * kValues + kValues - 1);
        if (!first && !last) continue;
        F word = right[k];
        if (first != last) word = (F)((U)word & (U{} + (first ? 0x0000ffffu : 0xffff0000u)));
        sum = multiply_add<W, Pairs>(sum, repeat_word<W>(a.words + r * a.row_stride + k * a.depth_stride),
                                     word);
      }
      std::memcpy(c + r * c_stride + column, &sum, sizeof(F));
    }
  }
}

// ---- Packing ---------------------------------------------------------------------------------------------

/// A head of a packed tensor: element (t, d) is data[t * stride + d].
template <class T>
struct Head {
  T* data;
  std::int64_t stride;

  Head(T* first, std::int64_t stride_, std::int64_t head, std::int64_t D)
      : data(first + head * D), stride(stride_) {}
  T* row(std::int64_t t) const { return data + t * stride; }
  /// The head that begins `channels` further on.
  Head next(std::int64_t channels) const { return {data, stride, 1, channels}; }
};

/// Sixteen words (or the first `count`) of a row in memory, from word w on.
template <int W, bool Pairs, class T, class Count>
OCTAVO_INLINE Floats<W> row_words(const T* row, std::int64_t w, Count count) {
  if constexpr (Pairs) {
    float raw[16] = {};
    std::memcpy(raw, row + 2 * w, static_cast<std::size_t>(count) * sizeof(float));
    return load<W>(static_cast<const float*>(raw));
  } else {
    return load<W>(row + w, count);
  }
}

/// Rows [begin, end) as words [row][channel] from `out` on, channels padded with zeros to whole chunks; then
/// rows of zeros up to `padded_end`. `out` holds row `begin` first.
template <int W, bool Pairs, class T>
OCTAVO_INLINE void pack_rows(Head<T> head, std::int64_t begin, std::int64_t end, std::int64_t padded_end,
                             std::int64_t D, float* out) {
  const std::int64_t count = words<Pairs>(D), stride = round_up(count, 16);
  for (std::int64_t t = begin; t < end; ++t) {
    const T* row = head.row(t);
    float* to = out + (t - begin) * stride;
    chunks(
        count, [&](std::int64_t w, auto n)
                   __attribute__((always_inline)) { store(to + w, row_words<W, Pairs>(row, w, n)); });
  }
  std::memset(out + (end - begin) * stride, 0, static_cast<std::size_t>((padded_end - end) * stride) * 4);
}

template <std::size_t... I>
OCTAVO_INLINE auto zip_low(auto a, auto b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, (I / 2 + (I % 2) * sizeof...(I))...);
}
template <std::size_t... I>
OCTAVO_INLINE auto zip_high(auto a, auto b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, (I / 2 + sizeof...(I) / 2 + (I % 2) * sizeof...(I))...);
}

/// Transposes a square of W x W words: log2(W) rounds, each of which zips the two halves of the rows.
template <int W>
OCTAVO_INLINE void transpose_square(const float* in, std::int64_t in_stride, float* out,
                                    std::int64_t out_stride) {
  using F = typename Native<W>::F;
  constexpr auto lanes = std::make_index_sequence<W>{};
  F rows[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) std::memcpy(&rows[i], in + i * in_stride, sizeof(F));
#pragma GCC unroll 4
  for (int round = 1; round < W; round *= 2) {
    F zipped[W];
#pragma GCC unroll 8
    for (int i = 0; i < W / 2; ++i) {
      zipped[2 * i] = zip_low(rows[i], rows[i + W / 2], lanes);
      zipped[2 * i + 1] = zip_high(rows[i], rows[i + W / 2], lanes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) rows[i] = zipped[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) std::memcpy(out + i * out_stride, &rows[i], sizeof(F));
}

/// From the packed rows of one tile to its packed columns [channel][kTile].
template <int W, bool Pairs>
OCTAVO_INLINE void pack_columns(const float* rows, std::int64_t D, float* out) {
  const std::int64_t channels = round_up(words<Pairs>(D), 16);
  for (std::int64_t r = 0; r < kTile; r += W)
    for (std::int64_t c = 0; c < channels; c += W)
      transpose_square<W>(rows + r * channels + c, channels, out + c * kTile + r, kTile);
}

/// Words of two bf16 values each, from words that hold them in their high halves.
template <int W>
OCTAVO_INLINE Words<W> pair_up(Words<W> first, Words<W> second) {
  return (first >> 16) | second;
}

/// Rows [0, T) stacked, then zeros up to row `padded`: words [row][channel], or of pairs [row / 2][channel].
template <int W, bool Pairs, class T>
OCTAVO_INLINE void pack_stacked(Head<T> head, std::int64_t rows, std::int64_t padded, std::int64_t D,
                                float* out) {
  if constexpr (!Pairs) {
    pack_rows<W, false>(head, 0, rows, padded, D, out);
  } else {
    const std::int64_t stride = round_up(D, 16), stacked = (rows + 1) / 2;
    for (std::int64_t t = 0; t < rows; t += 2) {
      const T *row = head.row(t), *next = t + 1 < rows ? head.row(t + 1) : nullptr;
      float* to = out + t / 2 * stride;
      chunks(
          D, [&](std::int64_t d, auto n) __attribute__((always_inline)) {
            const Floats<W> second = next != nullptr ? load<W>(next + d, n) : Floats<W>::zero();
            store(to + d, floats_of(pair_up(bits_of(load<W>(row + d, n)), bits_of(second))));
          });
    }
    std::memset(out + stacked * stride, 0, static_cast<std::size_t>((padded / 2 - stacked) * stride) * 4);
  }
}

/// Sixteen floats rounded to bf16, each in 16 bits.
OCTAVO_INLINE Native<16>::H to_bf16_lanes(Floats<16> a) {
  Native<16>::H narrow;
  asm("vcvtneps2bf16 %1, %0" : "=v"(narrow) : "v"(a.v[0]));
  return narrow;
}

/// Sixteen neighbouring values of a row as words of that row: eight pairs, or sixteen floats.
template <int W, bool Pairs>
OCTAVO_INLINE void store_row_words(float* out, Floats<W> a) {
  if constexpr (Pairs) {
    const Native<16>::H narrow = to_bf16_lanes(a);
    std::memcpy(out, &narrow, sizeof narrow);
  } else {
    store(out, a);
  }
}

/// Sixteen columns of rows `row` (even) and `row` + 1 of a stacked tile of kTile columns.
template <int W, bool Pairs>
OCTAVO_INLINE void store_two_rows(float* tile, std::int64_t row, std::int64_t column, const Floats<W>* a) {
  if constexpr (Pairs) {
    const Words<16> first{{widen_part<16>(to_bf16_lanes(a[0]))}};
    const Words<16> second{{widen_part<16>(to_bf16_lanes(a[1])) << 16}};
    store(tile + row / 2 * kTile + column, floats_of(first | second));
  } else {
    store(tile + row * kTile + column, a[0]);
    store(tile + (row + 1) * kTile + column, a[1]);
  }
}

// ---- Softmax ---------------------------------------------------------------------------------------------

inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

/// 2^x for x <= 127, within 3 units in the last place; 2^-126 below -126, exactly 1 at 0, NaN for NaN.
/// x = n + r, |r| <= 1/2; 2^r by the minimax polynomial of degree 5 with its constant term set to 1.
template <int W>
OCTAVO_INLINE Floats<W> exp2(Floats<W> x) {
  using F = Floats<W>;
  x = max(F::broadcast(-126.0f), x);        // NaN passes
  const F shift = F::broadcast(0x1.8p23f);  // its unit in the last place is 1
  const F t = x + shift, r = x - (t - shift);
  F p = F::broadcast(1.32764725e-3f);
  p = p * r + F::broadcast(9.67554096e-3f);
  p = p * r + F::broadcast(5.55071309e-2f);
  p = p * r + F::broadcast(2.40221202e-1f);
  p = p * r + F::broadcast(6.93146944e-1f);
  p = p * r + F::broadcast(1.0f);
  return floats_of(bits_of(p) + (bits_of(t) << 23));  // the low bits of t are n: into the exponent
}

/// Natural logarithm of positive normal numbers, absolute error below 2e-7; NaN for NaN and infinity.
/// log(m 2^e) = e ln 2 + 2 artanh((m - 1) / (m + 1)), sqrt(1/2) <= m < sqrt(2).
template <int W>
OCTAVO_INLINE Floats<W> log(Floats<W> x) {
  using F = Floats<W>;
  using U = Words<W>;
  const U root_half = U::broadcast(0x3f3504f3u), mantissa = U::broadcast(0x007fffffu);
  const U shifted = bits_of(x) - root_half;  // exponent field counts from sqrt(1/2)
  const F m = floats_of((shifted & mantissa) + root_half);
  F e;
  for (int i = 0; i < F::kParts; ++i)
    e.v[i] = __builtin_convertvector((typename Native<W>::I)shifted.v[i] >> 23, typename Native<W>::F);
  const F one = F::broadcast(1.0f), s = (m - one) / (m + one), s2 = s * s;
  F series = F::broadcast(2.0f / 9);
  series = series * s2 + F::broadcast(2.0f / 7);
  series = series * s2 + F::broadcast(2.0f / 5);
  series = series * s2 + F::broadcast(2.0f / 3);
  series = series * s2 + F::broadcast(2.0f);
  return e * F::broadcast(kLn2) + (series * s + x * F::zero());  // the last term carries NaN and infinity
}

/// Largest of sixteen lanes.
template <int W>
OCTAVO_INLINE float largest_lane(Floats<W> a) {
  using Q = Native<4>::F;
  Q q[4];
  std::memcpy(q, a.v, sizeof q);
  const auto larger = [](Q x, Q y) __attribute__((always_inline)) {
    return x > y ? x : y;
  };
  Q m = larger(larger(q[0], q[1]), larger(q[2], q[3]));
  m = larger(m, __builtin_shufflevector(m, m, 2, 3, 0, 1));
  m = larger(m, __builtin_shufflevector(m, m, 1, 0, 3, 2));
  return m[0];
}

/// Of sixteen neighbouring keys a query sees the first `count` (none below 1, all above 15).
struct Visible {
  // Sixteen ones then sixteen zeros, read from the lane on that leaves `count` ones.
  alignas(64) static constexpr std::uint32_t kOnes[32] = {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u,
                                                          ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
  const std::uint32_t* ones;

  explicit OCTAVO_INLINE Visible(std::int64_t count)
      : ones(kOnes + 16 - std::clamp<std::int64_t>(count, 0, 16)) {}
  template <int W>
  OCTAVO_INLINE Words<W> mask() const {
    Words<W> m;
    std::memcpy(m.v, ones, sizeof m.v);
    return m;
  }
  /// Zero in the lanes that are not visible.
  template <int W>
  OCTAVO_INLINE Floats<W> or_zero(Floats<W> a) const {
    return floats_of(bits_of(a) & mask<W>());
  }
  /// Minus infinity in the lanes that are not visible.
  template <int W>
  OCTAVO_INLINE Floats<W> or_minus_infinity(Floats<W> a) const {
    const Words<W> m = mask<W>(), inverse = Words<W>::broadcast(~0u) - m;
    return floats_of((bits_of(a) & m) | (inverse & Words<W>::broadcast(0xff800000u)));
  }
};

/// Vectors of 16 keys that rows up to `row` (within a tile) need: all, or on the diagonal those up to the
/// row.
constexpr std::int64_t key_vectors(bool diagonal, std::int64_t row) {
  return diagonal ? row / 16 + 1 : kTile / 16;
}

/// Hands out parts of one buffer of floats, each 64-byte aligned. Without a buffer it only counts.
class Parts {
 public:
  explicit Parts(float* buffer) : buffer_(buffer) {}
  float* take(std::int64_t floats) {
    float* part = buffer_ == nullptr ? nullptr : buffer_ + used_;
    used_ += round_up(floats, 16);
    return part;
  }
  std::size_t used() const { return static_cast<std::size_t>(used_); }

 private:
  float* buffer_;
  std::int64_t used_ = 0;
};

}  // namespace octavo::cpu
