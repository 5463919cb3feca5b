// activation.cpp - GELU in its tanh form, forward and backward.
//
// 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)), so that one exponential and one division make GELU, accurate to a
// few units in the last place on both tails:
//   gelu(x)  = x s,                 s = 1 / (1 + exp(-z)),  z = 2u = x (a + b x^2)
//   gelu'(x) = s + x s (1 - s) (a + 3 b x^2)
// with a = 2 sqrt(2 / pi), b = 0.044715 a. Floor: forward reads x and writes y; backward reads x and dy and
// writes dx, once each.
#include "cpu/column_sums.h"
#include "cpu/fp8_codes.h"
#include "cpu/operators.h"
#include "cpu/vec.h"

namespace octavo::cpu {

namespace {

constexpr float kA = 1.5957691216057308f, kB = 0.071354816272600252f;

template <class T>
struct Gelu {
  template <int W>
  static OCTAVO_INLINE void run(const T* x, T* y, std::int64_t n) {
    using F = Floats<W>;
    chunks(n, [&](std::int64_t i, auto count) OCTAVO_INLINE_LAMBDA {
      const F v = load<W>(x + i, count);
      const F z = v * (F::broadcast(kB) * (v * v) + F::broadcast(kA));
      store(y + i, v / (F::broadcast(1.0f) + exp(-z)), count);
    });
  }
};

/// Rows of dx, and their column sums where `sums` is not null (it has room for whole chunks).
template <class T>
struct GeluBackward {
  template <int W>
  static OCTAVO_INLINE void run(const T* x, const T* dy, T* dx, float* sums, std::int64_t rows,
                                std::int64_t columns) {
    using F = Floats<W>;
    const F one = F::broadcast(1.0f);
    for (std::int64_t n = 0; n < rows; ++n) {
      chunks(columns, [&](std::int64_t c, auto count) OCTAVO_INLINE_LAMBDA {
        const std::int64_t i = n * columns + c;
        F v = load<W>(x + i, count);
        // Beyond these bounds the derivative is 1 to the last bit, or below 1e-34; within them nothing
        // overflows.
        v = min(F::broadcast(16.0f), max(F::broadcast(-10.0f), v));
        const F bv2 = F::broadcast(kB) * (v * v);
        const F e = exp(-(v * (bv2 + F::broadcast(kA))));
        const F s = one / (one + e);
        const F slope = F::broadcast(3.0f) * bv2 + F::broadcast(kA);
        const F derivative = s + (v * slope) * (s * (e * s));  // e s = 1 - s, without the cancellation
        const F d = round_to<T>(load<W>(dy + i, count) * derivative);
        store(dx + i, d, count);
        if (sums != nullptr) store(sums + c, load<W>(sums + c) + d);
      });
    }
  }
};

}  // namespace

void activation_forward(const ActivationForward& op) {
  with_type(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* x = op.x.as<T>();
    const std::int64_t rows = op.x.dim(0), columns = op.x.dim(1);
    OperandWriter<T> y(op.y, rows, columns);
    parallel_blocks(row_blocks(rows), [&](std::int64_t begin, std::int64_t end) {
      T* to = y.values(begin, end);
      dispatch<Gelu<T>>(x + begin * columns, to, (end - begin) * columns);
      y.done(begin, end, to);
    });
    y.finish();
  });
}

void activation_backward(const ActivationBackward& op) {
  const std::int64_t rows = op.x.dim(0), columns = op.x.dim(1);
  static thread_local Scratch scratch;
  const ColumnSums sums(scratch, row_blocks(rows), columns);
  const bool summed = static_cast<bool>(op.dbias);
  with_type(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    const T *x = op.x.as<T>(), *dy = op.dy.as<T>();
    OperandWriter<T> dx(op.dx, rows, columns);
    parallel_blocks(row_blocks(rows), [&](std::int64_t begin, std::int64_t end) {
      T* to = dx.values(begin, end);
      dispatch<GeluBackward<T>>(x + begin * columns, dy + begin * columns, to,
                                summed ? sums.start_block(begin) : nullptr, end - begin, columns);
      dx.done(begin, end, to);
    });
    dx.finish();
  });
  if (summed) sums.finish(op.dbias.as<float>(), op.accumulate);
}

}  // namespace octavo::cpu
