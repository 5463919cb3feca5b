// attention_forward.cpp - causal attention, forward: one task a (sequence, query head), online softmax over
// tiles of keys (Dao, "FlashAttention-2", 2023, algorithm 1), nothing of size T x T in memory.
//
// Operations: 2 D T (T + 1) multiply-adds a head, counting what causality leaves; tiles above the diagonal
// are skipped, on it groups of 16 keys. Memory: qkv is read and out written once; a head's packed keys and
// values (8 T D bytes in f32, 4 T D in bf16) stay in the second-level cache.
#include <cmath>

#include "cpu/attention_tiles.h"
#include "cpu/fp8_codes.h"
#include "cpu/operators.h"
#include "cpu/scratch.h"
#include "parallel.h"

namespace octavo::cpu {

namespace {

/// One head of one sequence.
template <class T>
struct HeadForward {
  Head<const T> q, k, v;
  Head<T> out;
  float* lse;
  std::int64_t positions, D, first_query;
  float scale;
  DropoutMask mask;
  std::uint32_t sample;
};

/// Scratch of one head, in floats.
template <bool Pairs>
struct ForwardBuffers {
  float *rows, *keys, *values, *q, *out, *scores, *weights, *sums, *largest, *mask_bytes;
  std::size_t used;

  ForwardBuffers(float* buffer, std::int64_t positions, std::int64_t D, bool drops) {
    const std::int64_t padded = round_up(positions, kTile), channels = round_up(words<Pairs>(D), 16);
    Parts parts(buffer);
    rows = parts.take(kTile * channels);
    keys = parts.take(padded * channels);
    values = parts.take(words<Pairs>(padded) * round_up(D, 16));
    q = parts.take(kTile * channels);
    out = parts.take(kTile * round_up(D, 16));
    scores = parts.take(kRows * kTile);
    weights = parts.take(kRows * kTile);
    sums = parts.take(kTile * 16);
    largest = parts.take(kTile + 16);  // read in whole vectors
    mask_bytes = parts.take(drops ? kTile * kMaskGroup / 4 : 0);
    used = parts.used();
  }
};

template <class T, bool Pairs>
struct ForwardKernel {
  template <int W>
  static OCTAVO_INLINE void run(HeadForward<T> h, float* buffer) {
    const ForwardBuffers<Pairs> b(buffer, h.positions, h.D, h.mask.active());
    const std::int64_t tiles = (h.positions + kTile - 1) / kTile, channels = round_up(words<Pairs>(h.D), 16);
    const std::int64_t columns = round_up(h.D, 16);
    for (std::int64_t j = 0; j < tiles; ++j) {
      const std::int64_t begin = j * kTile, end = std::min(h.positions, begin + kTile);
      pack_rows<W, Pairs>(h.k, begin, end, begin + kTile, h.D, b.rows);
      pack_columns<W, Pairs>(b.rows, h.D, b.keys + begin * channels);
    }
    pack_stacked<W, Pairs>(h.v, h.positions, tiles * kTile, h.D, b.values);

    for (std::int64_t i = h.first_query / kTile; i < tiles; ++i) {
      const std::int64_t begin = i * kTile, end = std::min(h.positions, begin + kTile);
      const std::int64_t first = std::max(begin, h.first_query);  // rows before it are not asked for
      const std::int64_t first_block = (first - begin) / kRows * kRows;
      std::memset(b.q, 0, static_cast<std::size_t>((first - begin) * channels) * sizeof(float));
      pack_rows<W, Pairs>(h.q, first, end, begin + kTile, h.D, b.q + (first - begin) * channels);
      std::memset(b.out, 0, static_cast<std::size_t>(kTile * columns) * sizeof(float));
      std::memset(b.sums, 0, static_cast<std::size_t>(kTile * 16) * sizeof(float));
      std::fill_n(b.largest, kTile + 16, -__builtin_inff());
      for (std::int64_t j = 0; j <= i; ++j) {
        if (h.mask.active() && j % kMaskTiles == 0)
          for (std::int64_t t = first; t < end; ++t)
            draw_mask<W>(h.mask, h.sample, t, j * kTile, 1, mask_row_of(b, t - begin));
        for (std::int64_t r = first_block; r < end - begin; r += kRows) {
          if (j == i)
            add_keys<W, true>(h, b, r, j);
          else
            add_keys<W, false>(h, b, r, j);
        }
      }
      finish_rows<W>(h, b, begin, first, end);
    }
  }

 private:
  static OCTAVO_INLINE std::uint8_t* mask_row_of(const ForwardBuffers<Pairs>& b, std::int64_t row) {
    return reinterpret_cast<std::uint8_t*>(b.mask_bytes) + row * kMaskGroup;
  }

  /// Adds the keys and values of tile j to kRows rows of the query tile: one step of the online softmax.
  template <int W, bool Diagonal>
  static OCTAVO_INLINE void add_keys(const HeadForward<T>& h, const ForwardBuffers<Pairs>& b, std::int64_t r,
                                     std::int64_t j) {
    using F = Floats<W>;
    const std::int64_t depth = words<Pairs>(h.D), channels = round_up(depth, 16), columns = round_up(h.D, 16);
    const std::int64_t vectors = key_vectors(Diagonal, r + kRows - 1);
    const F scale = F::broadcast(h.scale * kLog2E);
    product<W, Pairs>(depth, {b.q + r * channels, channels, 1}, b.keys + j * kTile * channels, kTile,
                      b.scores, kTile, vectors * 16, false);

    float tops[16] = {};
    bool grows = false;
    for (std::int64_t k = 0; k < kRows; ++k) {
      F top = F::broadcast(-__builtin_inff());
      for (std::int64_t v = 0; v < vectors; ++v) {
        float* s = b.scores + k * kTile + 16 * v;
        F x = load<W>(static_cast<const float*>(s));
        if (Diagonal) {
          x = Visible(r + k + 1 - 16 * v).or_minus_infinity(x);
          store(s, x);
        }
        top = max(top, x);
      }
      const float largest = largest_lane(top) * h.scale * kLog2E;
      grows = grows || largest > b.largest[r + k];
      tops[k] = std::max(b.largest[r + k], largest);
    }
    // What has been summed so far is relative to the old maximum.
    float factors[16];
    store(factors,
          exp2(load<W>(static_cast<const float*>(b.largest + r)) - load<W>(static_cast<const float*>(tops))));
    std::memcpy(b.largest + r, tops, kRows * sizeof(float));

    for (std::int64_t k = 0; k < kRows; ++k) {
      const F top = F::broadcast(tops[k]);
      float* sums = b.sums + (r + k) * 16;
      F sum = load<W>(static_cast<const float*>(sums)) * F::broadcast(factors[k]);
      for (std::int64_t v = 0; v < vectors; ++v) {
        F p = exp2(load<W>(static_cast<const float*>(b.scores + k * kTile + 16 * v)) * scale - top);
        if (Diagonal) p = Visible(r + k + 1 - 16 * v).or_zero(p);
        sum += p;
        if (h.mask.active())
          p = drop(p, mask_row_of(b, r + k) + j % kMaskTiles * kTile + 16 * v, h.mask.threshold,
                   h.mask.scale);
        store_row_words<W, Pairs>(b.weights + words<Pairs>(k * kTile + 16 * v), p);
      }
      store(sums, sum);
    }
    float* out = b.out + r * columns;
    if (grows)
      for (std::int64_t k = 0; k < kRows; ++k)
        for (std::int64_t c = 0; c < columns; c += 16)
          store(out + k * columns + c,
                load<W>(static_cast<const float*>(out + k * columns + c)) * F::broadcast(factors[k]));
    const float* values = b.values + words<Pairs>(j * kTile) * columns;
    const std::int64_t seen = words<Pairs>(Diagonal ? r : kTile);  // by all rows of the block
    product<W, Pairs>(seen, {b.weights, words<Pairs>(kTile), 1}, values, columns, out, columns, columns,
                      true);
    if (Diagonal)
      product_triangle<W, Pairs, Triangle::up_to_row>({b.weights + seen, words<Pairs>(kTile), 1},
                                                      values + seen * columns, columns, out, columns,
                                                      columns);
  }

  template <int W>
  static OCTAVO_INLINE void finish_rows(const HeadForward<T>& h, const ForwardBuffers<Pairs>& b,
                                        std::int64_t begin, std::int64_t first, std::int64_t end) {
    using F = Floats<W>;
    const std::int64_t columns = round_up(h.D, 16);
    float totals[kTile + 16];
    for (std::int64_t r = 0; r < kTile; ++r)
      totals[r] = sum_of(load<W>(static_cast<const float*>(b.sums + r * 16)));
    for (std::int64_t t = first; t < end; ++t) {
      const F factor = F::broadcast(1.0f / totals[t - begin]);
      const float* from = b.out + (t - begin) * columns;
      T* to = h.out.row(t);
      chunks(
          h.D, [&](std::int64_t c, auto n)
                   __attribute__((always_inline)) { store(to + c, load<W>(from + c) * factor, n); });
    }
    float lse[kTile];
    for (std::int64_t r = 0; r < kTile; r += 16)
      store(lse + r, load<W>(static_cast<const float*>(b.largest + r)) * F::broadcast(kLn2) +
                         log(load<W>(static_cast<const float*>(totals + r))));
    std::memcpy(h.lse + first, lse + (first - begin), static_cast<std::size_t>(end - first) * sizeof(float));
  }
};

template <class T>
void forward(const AttentionForward& op) {
  const std::int64_t B = op.qkv.dim(0), positions = op.qkv.dim(1), H = op.heads, Hkv = op.kv_heads;
  const std::int64_t width = op.qkv.numel() / (B * positions), D = width / (H + 2 * Hkv);
  const bool drops = DropoutMask(op.dropout).active();
  const T* qkv = op.qkv.as<T>();
  T* out = op.out.t.as<T>();
  float* lse = op.lse.as<float>();
  // The larger of what both forms of the kernel take.
  const std::size_t room = std::max(ForwardBuffers<false>(nullptr, positions, D, drops).used,
                                    ForwardBuffers<true>(nullptr, positions, D, drops).used);
  parallel_tasks(B * H, [&](std::int64_t task) {
    static thread_local Scratch scratch;
    const std::int64_t sequence = task / H, head = task % H, kv_head = head / (H / Hkv);
    const T* first = qkv + sequence * positions * width;
    const DropoutMask mask(op.dropout, static_cast<std::uint32_t>(head));
    dispatch_attention<ForwardKernel, T>(
        HeadForward<T>{.q = {first, width, head, D},
                       .k = {first, width, H + kv_head, D},
                       .v = {first, width, H + Hkv + kv_head, D},
                       .out = {out + sequence * positions * H * D, H * D, head, D},
                       .lse = lse + task * positions,
                       .positions = positions,
                       .D = D,
                       .first_query = op.first_query,
                       .scale = op.scale,
                       .mask = mask,
                       .sample = mask.active() ? mask.sample(sequence) : 0},
        scratch.get<float>(room));
  });
}

}  // namespace

void attention_forward(const AttentionForward& op) {
  with_type(op.qkv.dtype, [&](auto type) { forward<decltype(type)>(op); });
  // Heads are columns of the output, so its rows are complete only here.
  Operand out = op.out;
  if (op.first_query > 0 && out.q) {  // of one sequence
    const std::int64_t positions = op.qkv.dim(1), rows = positions - op.first_query;
    out.t = out.t.view({positions, out.t.numel() / positions}).rows(op.first_query, rows);
    out.q = out.q.rows(op.first_query, rows);
  }
  write_codes(out);
}

}  // namespace octavo::cpu
