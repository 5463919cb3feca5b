// norm.cpp - layer norm, with the residual addition and the dropout of the branch that enter it.
//
// A row is read from memory once and stays in the first-level cache for its further passes. Floor: forward
// reads x and branch and writes r and y; backward reads dy and r, updates dresidual and writes dbranch, once
// each; statistics and gains do not count.
#include <cmath>

#include "cpu/column_sums.h"
#include "cpu/dropout.h"
#include "cpu/fp8_codes.h"
#include "cpu/operators.h"

namespace octavo::cpu {

namespace {

template <class T>
struct ForwardFields {
  const T *x, *branch;
  T* residual;
  const float *gain, *bias;
  T* y;  // of the block's first row on; the other pointers are the tensors'
  float *mean, *rstd;
  float eps;
  std::int64_t positions, columns;
  DropoutMask mask;
  std::uint8_t* bytes;  // the thread's room for one row of the mask
};

template <class T>
struct ForwardRows {
  template <int W>
  static OCTAVO_INLINE void run(ForwardFields<T> f, std::int64_t begin, std::int64_t end) {
    using F = Floats<W>;
    const std::int64_t C = f.columns;
    const float per_column = 1.0f / static_cast<float>(C);
    for (std::int64_t n = begin; n < end; ++n) {
      const T* x = f.x + n * C;
      const T* r = f.branch != nullptr ? f.residual + n * C : x;
      F sum = F::zero();
      if (f.branch != nullptr) {
        const T* branch = f.branch + n * C;
        T* residual = f.residual + n * C;
        const bool drops = f.mask.active();
        if (drops) draw_mask<W>(f.mask, f.mask.sample(n / f.positions), n % f.positions, 0, C, f.bytes);
        chunks(C, [&](std::int64_t c, auto count) OCTAVO_INLINE_LAMBDA {
          F b = load<W>(branch + c, count);
          if (drops) b = round_to<T>(drop(b, f.bytes + c, f.mask.threshold, f.mask.scale));
          const F v = round_to<T>(load<W>(x + c, count) + b);
          store(residual + c, v, count);
          sum += v;
        });
      } else {
        chunks(C, [&](std::int64_t c, auto count) OCTAVO_INLINE_LAMBDA { sum += load<W>(x + c, count); });
      }
      if (f.y == nullptr) continue;
      const float mean = sum_of(sum) * per_column;
      F squares = F::zero();
      chunks(C, [&](std::int64_t c, auto count) OCTAVO_INLINE_LAMBDA {
        const F d = first_lanes(load<W>(r + c, count) - F::broadcast(mean), count);
        squares += d * d;
      });
      const float rstd = 1.0f / std::sqrt(sum_of(squares) * per_column + f.eps);
      T* y = f.y + (n - begin) * C;
      chunks(C, [&](std::int64_t c, auto count) OCTAVO_INLINE_LAMBDA {
        const F xhat = (load<W>(r + c, count) - F::broadcast(mean)) * F::broadcast(rstd);
        store(y + c, xhat * load<W>(f.gain + c, count) + load<W>(f.bias + c, count), count);
      });
      f.mean[n] = mean;
      f.rstd[n] = rstd;
    }
  }
};

template <class T>
struct BackwardFields {
  const T *dy, *residual;
  const float *gain, *mean, *rstd;
  T* dresidual;
  bool accumulate;
  T* dbranch;  // of the block's first row on
  std::int64_t positions, columns;
  DropoutMask mask;
  std::uint8_t* bytes;
  float *dgain, *dbias,
      *dbranch_bias;  // partial sums of the block, in whole chunks; dbranch_bias may be null
};

template <class T>
struct BackwardRows {
  template <int W>
  static OCTAVO_INLINE void run(BackwardFields<T> f, std::int64_t begin, std::int64_t end) {
    using F = Floats<W>;
    const std::int64_t C = f.columns;
    const float per_column = 1.0f / static_cast<float>(C);
    const bool drops = f.mask.active();
    for (std::int64_t n = begin; n < end; ++n) {
      const T *dy = f.dy + n * C, *r = f.residual + n * C;
      T* dresidual = f.dresidual + n * C;
      T* dbranch = f.dbranch != nullptr ? f.dbranch + (n - begin) * C : nullptr;
      const F mean = F::broadcast(f.mean[n]), rstd = F::broadcast(f.rstd[n]);
      F sum_g = F::zero(), sum_g_xhat = F::zero();
      chunks(C, [&](std::int64_t c, auto count) OCTAVO_INLINE_LAMBDA {
        const F g = load<W>(dy + c, count) * load<W>(f.gain + c, count);
        sum_g += g;
        sum_g_xhat += g * ((load<W>(r + c, count) - mean) * rstd);
      });
      const F mean_g = F::broadcast(sum_of(sum_g) * per_column);
      const F mean_g_xhat = F::broadcast(sum_of(sum_g_xhat) * per_column);
      if (drops) draw_mask<W>(f.mask, f.mask.sample(n / f.positions), n % f.positions, 0, C, f.bytes);
      chunks(C, [&](std::int64_t c, auto count) OCTAVO_INLINE_LAMBDA {
        const F d = load<W>(dy + c, count), xhat = (load<W>(r + c, count) - mean) * rstd;
        F dr = rstd * (d * load<W>(f.gain + c, count) - mean_g - xhat * mean_g_xhat);
        if (f.accumulate) dr = load<W>(static_cast<const T*>(dresidual) + c, count) + dr;
        dr = round_to<T>(dr);
        store(dresidual + c, dr, count);
        store(f.dgain + c, load<W>(f.dgain + c) + d * xhat);
        store(f.dbias + c, load<W>(f.dbias + c) + d);
        if (drops) dr = round_to<T>(drop(dr, f.bytes + c, f.mask.threshold, f.mask.scale));
        if (dbranch != nullptr) store(dbranch + c, dr, count);
        if (f.dbranch_bias != nullptr) store(f.dbranch_bias + c, load<W>(f.dbranch_bias + c) + dr);
      });
    }
  }
};

}  // namespace

void norm_forward(const NormForward& op) {
  with_type(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto values = [](const Tensor& t) { return t ? t.as<T>() : nullptr; };
    const auto floats = [](const Tensor& t) { return t ? t.as<float>() : nullptr; };
    const ForwardFields<T> fields{.x = op.x.as<T>(),
                                  .branch = values(op.branch),
                                  .residual = values(op.residual),
                                  .gain = floats(op.gain),
                                  .bias = floats(op.bias),
                                  .y = nullptr,
                                  .mean = floats(op.mean),
                                  .rstd = floats(op.rstd),
                                  .eps = op.eps,
                                  .positions = op.T,
                                  .columns = op.x.dim(1),
                                  .mask = op.branch ? DropoutMask(op.dropout) : DropoutMask(),
                                  .bytes = nullptr};
    OperandWriter<T> y(op.y, op.x.dim(0), op.x.dim(1));
    parallel_blocks(row_blocks(op.x.dim(0)), [&](std::int64_t begin, std::int64_t end) {
      ForwardFields<T> f = fields;
      f.bytes = mask_row(f.mask, f.columns);
      f.y = y.values(begin, end);
      dispatch<ForwardRows<T>>(f, begin, end);
      y.done(begin, end, f.y);
    });
    y.finish();
  });
}

void norm_backward(const NormBackward& op) {
  const std::int64_t rows = op.dy.dim(0), columns = op.dy.dim(1);
  const Blocks blocks = row_blocks(rows);
  static thread_local Scratch scratch[3];
  const ColumnSums dgain(scratch[0], blocks, columns), dbias(scratch[1], blocks, columns);
  const ColumnSums dbranch_bias(scratch[2], blocks, columns);
  with_type(op.dy.dtype, [&](auto type) {
    using T = decltype(type);
    const BackwardFields<T> fields{.dy = op.dy.as<T>(),
                                   .residual = op.residual.as<T>(),
                                   .gain = op.gain.as<float>(),
                                   .mean = op.mean.as<float>(),
                                   .rstd = op.rstd.as<float>(),
                                   .dresidual = op.dresidual.as<T>(),
                                   .accumulate = op.accumulate_dresidual,
                                   .dbranch = nullptr,
                                   .positions = op.T,
                                   .columns = columns,
                                   .mask = DropoutMask(op.dropout),
                                   .bytes = nullptr,
                                   .dgain = nullptr,
                                   .dbias = nullptr,
                                   .dbranch_bias = nullptr};
    OperandWriter<T> dbranch(op.dbranch, rows, columns);
    parallel_blocks(blocks, [&](std::int64_t begin, std::int64_t end) {
      BackwardFields<T> f = fields;
      f.bytes = mask_row(f.mask, columns);
      f.dbranch = dbranch.values(begin, end);
      f.dgain = dgain.start_block(begin);
      f.dbias = dbias.start_block(begin);
      if (op.dbranch_bias) f.dbranch_bias = dbranch_bias.start_block(begin);
      dispatch<BackwardRows<T>>(f, begin, end);
      dbranch.done(begin, end, f.dbranch);
    });
    dbranch.finish();
  });
  dgain.finish(op.dgain.as<float>(), op.accumulate);
  dbias.finish(op.dbias.as<float>(), op.accumulate);
  if (op.dbranch_bias) dbranch_bias.finish(op.dbranch_bias.as<float>(), op.accumulate);
}

}  // namespace octavo::cpu
