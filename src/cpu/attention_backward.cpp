// attention_backward.cpp - causal attention, backward: one task a (sequence, key/value head), probabilities
// recomputed from the log-sum-exp tile by tile (Dao, "FlashAttention-2", 2023, algorithm 2).
//
// Within a task the order is fixed: query heads of the group, then groups of key tiles, then query tiles,
// then key tiles of the group. All three gradients are summed in f32 in that order, rounded and written once,
// so no bit depends on the threads.
//
// Operations: 5 D T (T + 1) multiply-adds a query head (five products). Memory: qkv, out and dout are read
// and dqkv written once; a task's packed operands and sums (44 T D bytes in f32, 26 T D in bf16) lie in the
// second and third-level caches, of which one query tile and one group of key tiles are in use at a time.
#include "cpu/attention_tiles.h"
#include "cpu/fp8_codes.h"
#include "cpu/operators.h"
#include "cpu/scratch.h"
#include "parallel.h"

namespace octavo::cpu {

namespace {

/// One key/value head of one sequence, with the `group` neighbouring query heads that read it.
template <class T>
struct GroupBackward {
  Head<const T> q, k, v, out, dout;  // q, out and dout of the first head of the group
  Head<T> dq, dk, dv;
  const float* lse;
  std::int64_t group, positions, D;
  float scale;
  const Dropout* dropout;
  std::int64_t first_head, sequence;
};

/// Scratch of one task, in floats. Arrays over positions are padded to whole tiles.
template <bool Pairs>
struct BackwardBuffers {
  float *rows, *key_columns, *value_columns, *keys, *q_rows, *dout_rows, *q, *dout;  // packed operands
  float *dq, *dk, *dv, *lse, *delta;
  float *scores, *dweights;                        // kRows rows of S and dP
  float *weights, *score_grads, *score_grad_rows;  // one tile: P and dS stacked, dS by rows
  float* mask_bytes;
  std::size_t used;

  BackwardBuffers(float* buffer, std::int64_t positions, std::int64_t D, bool drops) {
    const std::int64_t padded = round_up(positions, kTile), channels = round_up(words<Pairs>(D), 16);
    const std::int64_t columns = round_up(D, 16);
    Parts parts(buffer);
    rows = parts.take(kTile * channels);
    key_columns = parts.take(padded * channels);
    value_columns = parts.take(padded * channels);
    keys = parts.take(words<Pairs>(padded) * columns);
    q = parts.take(words<Pairs>(padded) * columns);
    dout = parts.take(words<Pairs>(padded) * columns);
    q_rows = Pairs ? parts.take(padded * channels) : q;  // in f32 both forms are the same
    dout_rows = Pairs ? parts.take(padded * channels) : dout;
    dq = parts.take(padded * columns);
    dk = parts.take(padded * columns);
    dv = parts.take(padded * columns);
    lse = parts.take(padded);
    delta = parts.take(padded);
    scores = parts.take(kRows * kTile);
    dweights = parts.take(kRows * kTile);
    weights = parts.take(words<Pairs>(kTile * kTile));
    score_grads = parts.take(words<Pairs>(kTile * kTile));
    score_grad_rows = Pairs ? parts.take(words<Pairs>(kTile * kTile)) : score_grads;
    mask_bytes = parts.take(drops ? kTile * kMaskGroup / 4 : 0);
    used = parts.used();
  }
};

template <class T, bool Pairs>
struct BackwardKernel {
  template <int W>
  static OCTAVO_INLINE void run(GroupBackward<T> g, float* buffer) {
    const BackwardBuffers<Pairs> b(buffer, g.positions, g.D, g.dropout->p > 0);
    const std::int64_t tiles = (g.positions + kTile - 1) / kTile, padded = tiles * kTile;
    const std::int64_t columns = round_up(g.D, 16), channels = round_up(words<Pairs>(g.D), 16);
    for (std::int64_t j = 0; j < tiles; ++j) {
      const std::int64_t begin = j * kTile, end = std::min(g.positions, begin + kTile);
      pack_rows<W, Pairs>(g.k, begin, end, begin + kTile, g.D, b.rows);
      pack_columns<W, Pairs>(b.rows, g.D, b.key_columns + begin * channels);
      pack_rows<W, Pairs>(g.v, begin, end, begin + kTile, g.D, b.rows);
      pack_columns<W, Pairs>(b.rows, g.D, b.value_columns + begin * channels);
    }
    pack_stacked<W, Pairs>(g.k, g.positions, padded, g.D, b.keys);
    const std::size_t sums = static_cast<std::size_t>(padded * columns) * sizeof(float);
    std::memset(b.dk, 0, sums);
    std::memset(b.dv, 0, sums);

    for (std::int64_t member = 0; member < g.group; ++member) {
      const Head<const T> q = g.q.next(member * g.D), dout = g.dout.next(member * g.D);
      pack_stacked<W, Pairs>(q, g.positions, padded, g.D, b.q);
      pack_stacked<W, Pairs>(dout, g.positions, padded, g.D, b.dout);
      if constexpr (Pairs) {
        pack_rows<W, true>(q, 0, g.positions, padded, g.D, b.q_rows);
        pack_rows<W, true>(dout, 0, g.positions, padded, g.D, b.dout_rows);
      }
      row_terms<W>(g, b, dout, g.out.next(member * g.D), g.lse + member * g.positions, padded);
      std::memset(b.dq, 0, sums);
      const DropoutMask mask(*g.dropout, static_cast<std::uint32_t>(g.first_head + member));
      for (std::int64_t first = 0; first < tiles; first += kMaskTiles)
        for (std::int64_t i = first; i < tiles; ++i) {
          if (mask.active())
            for (std::int64_t r = 0; r < kTile; ++r)
              draw_mask<W>(mask, mask.sample(g.sequence), i * kTile + r, first * kTile, 1, mask_row_of(b, r));
          for (std::int64_t j = first; j < std::min(first + kMaskTiles, i); ++j)
            add_tile<W, false>(g, b, mask, i, j);
          if (i < first + kMaskTiles) add_tile<W, true>(g, b, mask, i, i);
        }
      write<W>(g.dq.next(member * g.D), b.dq, g.positions, g.D, g.scale);
    }
    write<W>(g.dk, b.dk, g.positions, g.D, g.scale);
    write<W>(g.dv, b.dv, g.positions, g.D, 1.0f);
  }

 private:
  static OCTAVO_INLINE std::uint8_t* mask_row_of(const BackwardBuffers<Pairs>& b, std::int64_t row) {
    return reinterpret_cast<std::uint8_t*>(b.mask_bytes) + row * kMaskGroup;
  }

  /// lse in base 2, and delta = sum over channels of dout out, which is the sum over keys of P dP.
  template <int W>
  static OCTAVO_INLINE void row_terms(const GroupBackward<T>& g, const BackwardBuffers<Pairs>& b,
                                      Head<const T> dout, Head<const T> out, const float* lse,
                                      std::int64_t padded) {
    for (std::int64_t t = 0; t < g.positions; ++t) {
      const T *d = dout.row(t), *o = out.row(t);
      Floats<W> sum = Floats<W>::zero();
      chunks(
          g.D, [&](std::int64_t c, auto n)
                   __attribute__((always_inline)) { sum += load<W>(d + c, n) * load<W>(o + c, n); });
      b.delta[t] = sum_of(sum);
      b.lse[t] = lse[t] * kLog2E;
    }
    for (std::int64_t t = g.positions; t < padded; ++t) b.delta[t] = b.lse[t] = 0;
  }

  /// What query tile i and key tile j give to dQ of i and dK, dV of j.
  template <int W, bool Diagonal>
  static OCTAVO_INLINE void add_tile(const GroupBackward<T>& g, const BackwardBuffers<Pairs>& b,
                                     const DropoutMask& mask, std::int64_t i, std::int64_t j) {
    const std::int64_t depth = words<Pairs>(g.D), channels = round_up(depth, 16), columns = round_up(g.D, 16);
    const std::int64_t mask_column = j % kMaskTiles * kTile;
    for (std::int64_t r = 0; r < kTile; r += kRows) {
      const std::int64_t row = i * kTile + r, vectors = key_vectors(Diagonal, r + kRows - 1);
      product<W, Pairs>(depth, {b.q_rows + row * channels, channels, 1}, b.key_columns + j * kTile * channels,
                        kTile, b.scores, kTile, vectors * 16, false);
      product<W, Pairs>(depth, {b.dout_rows + row * channels, channels, 1},
                        b.value_columns + j * kTile * channels, kTile, b.dweights, kTile, vectors * 16,
                        false);
      for (std::int64_t k = 0; k < kRows; k += 2)
        for (std::int64_t v = 0; v < vectors; ++v)
          two_rows<W, Diagonal>(g, b, mask, row, r, k, v, mask_column);
    }
    // Of a block of keys on the diagonal only its own and later queries know.
    for (std::int64_t k = 0; k < kTile; k += kRows) {
      const std::int64_t own = words<Pairs>(k), later = Diagonal ? words<Pairs>(k + kRows) : 0;
      const std::int64_t query = words<Pairs>(i * kTile), key = (j * kTile + k) * columns;
      const auto add_queries = [&](const float* left, const float* right, float* sums)
          __attribute__((always_inline)) {
        if (Diagonal)
          product_triangle<W, Pairs, Triangle::from_row>({left + own * kTile + k, 1, kTile},
                                                         right + (query + own) * columns, columns, sums + key,
                                                         columns, columns);
        product<W, Pairs>(words<Pairs>(kTile) - later, {left + later * kTile + k, 1, kTile},
                          right + (query + later) * columns, columns, sums + key, columns, columns, true);
      };
      add_queries(b.weights, b.dout, b.dv);
      add_queries(b.score_grads, b.q, b.dk);
    }
    for (std::int64_t r = 0; r < kTile; r += kRows) {
      const float* left = b.score_grad_rows + r * words<Pairs>(kTile);
      const float* right = b.keys + words<Pairs>(j * kTile) * columns;
      float* sums = b.dq + (i * kTile + r) * columns;
      const std::int64_t seen = words<Pairs>(Diagonal ? r : kTile);  // by all queries of the block
      product<W, Pairs>(seen, {left, words<Pairs>(kTile), 1}, right, columns, sums, columns, columns, true);
      if (Diagonal)
        product_triangle<W, Pairs, Triangle::up_to_row>(
            {left + seen, words<Pairs>(kTile), 1}, right + seen * columns, columns, sums, columns, columns);
    }
  }

  /// P = exp(S - lse) and dS = P (dP - delta) of sixteen keys and two neighbouring queries, stored in the
  /// forms that the products read. dropout multiplies dP, and P where dV reads it.
  template <int W, bool Diagonal>
  static OCTAVO_INLINE void two_rows(const GroupBackward<T>& g, const BackwardBuffers<Pairs>& b,
                                     const DropoutMask& mask, std::int64_t row, std::int64_t r,
                                     std::int64_t k, std::int64_t v, std::int64_t mask_column) {
    using F = Floats<W>;
    const F scale = F::broadcast(g.scale * kLog2E);
    F weights[2], grads[2];
    for (std::int64_t n = 0; n < 2; ++n) {
      const std::int64_t at = (k + n) * kTile + 16 * v;
      F p =
          exp2(load<W>(static_cast<const float*>(b.scores + at)) * scale - F::broadcast(b.lse[row + k + n]));
      if (Diagonal) p = Visible(r + k + n + 1 - 16 * v).or_zero(p);
      F dp = load<W>(static_cast<const float*>(b.dweights + at));
      weights[n] = p;
      if (mask.active()) {
        const std::uint8_t* bytes = mask_row_of(b, r + k + n) + mask_column + 16 * v;
        dp = drop(dp, bytes, mask.threshold, mask.scale);
        weights[n] = drop(p, bytes, mask.threshold, mask.scale);
      }
      grads[n] = p * (dp - F::broadcast(b.delta[row + k + n]));
      if (Diagonal) grads[n] = Visible(r + k + n + 1 - 16 * v).or_zero(grads[n]);
    }
    store_two_rows<W, Pairs>(b.weights, r + k, 16 * v, weights);
    store_two_rows<W, Pairs>(b.score_grads, r + k, 16 * v, grads);
    if constexpr (Pairs)
      for (std::int64_t n = 0; n < 2; ++n)
        store_row_words<W, true>(b.score_grad_rows + words<true>((r + k + n) * kTile + 16 * v), grads[n]);
  }

  /// Rounded once, written once.
  template <int W>
  static OCTAVO_INLINE void write(Head<T> to, const float* sums, std::int64_t positions, std::int64_t D,
                                  float factor) {
    const std::int64_t columns = round_up(D, 16);
    for (std::int64_t t = 0; t < positions; ++t)
      chunks(
          D, [&](std::int64_t c, auto n) __attribute__((always_inline)) {
            store(to.row(t) + c, load<W>(sums + t * columns + c) * Floats<W>::broadcast(factor), n);
          });
  }
};

template <class T>
void backward(const AttentionBackward& op) {
  const std::int64_t B = op.qkv.dim(0), positions = op.qkv.dim(1), H = op.heads, Hkv = op.kv_heads;
  const std::int64_t width = op.qkv.numel() / (B * positions), D = width / (H + 2 * Hkv), group = H / Hkv;
  const bool drops = op.dropout.p > 0;
  const T *qkv = op.qkv.as<T>(), *out = op.out.as<T>(), *dout = op.dout.as<T>();
  T* dqkv = op.dqkv.t.as<T>();
  const float* lse = op.lse.as<float>();
  const std::size_t room = std::max(BackwardBuffers<false>(nullptr, positions, D, drops).used,
                                    BackwardBuffers<true>(nullptr, positions, D, drops).used);
  parallel_tasks(B * Hkv, [&](std::int64_t task) {
    static thread_local Scratch scratch;
    const std::int64_t sequence = task / Hkv, kv_head = task % Hkv, head = kv_head * group;
    const T *packed = qkv + sequence * positions * width, *o = out + sequence * positions * H * D;
    T* grads = dqkv + sequence * positions * width;
    dispatch_attention<BackwardKernel, T>(
        GroupBackward<T>{.q = {packed, width, head, D},
                         .k = {packed, width, H + kv_head, D},
                         .v = {packed, width, H + Hkv + kv_head, D},
                         .out = {o, H * D, head, D},
                         .dout = {dout + sequence * positions * H * D, H * D, head, D},
                         .dq = {grads, width, head, D},
                         .dk = {grads, width, H + kv_head, D},
                         .dv = {grads, width, H + Hkv + kv_head, D},
                         .lse = lse + (sequence * H + head) * positions,
                         .group = group,
                         .positions = positions,
                         .D = D,
                         .scale = op.scale,
                         .dropout = &op.dropout,
                         .first_head = head,
                         .sequence = sequence},
        scratch.get<float>(room));
  });
}

}  // namespace

void attention_backward(const AttentionBackward& op) {
  with_type(op.qkv.dtype, [&](auto type) { backward<decltype(type)>(op); });
  write_codes(op.dqkv);
  if (!op.dqkv_bias) return;
  // Blocks of rows that are summed in order cross the borders of sequences, so they are no task's own.
  Tensor dqkv = op.dqkv.t;
  const std::int64_t rows = dqkv.dim(0) * dqkv.dim(1);
  bias_gradient(
      {.dy = dqkv.view({rows, dqkv.numel() / rows}), .db = op.dqkv_bias, .accumulate = op.accumulate});
}

}  // namespace octavo::cpu
