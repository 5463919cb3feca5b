// bias_gradient.cpp - column sums, plain and as the end of a fused one.
//
// Floor: one pass over dy. The partial sums of a block stay in the first-level cache.
#include <algorithm>

#include "cpu/column_sums.h"
#include "cpu/operators.h"
#include "cpu/vec.h"

namespace octavo::cpu {

namespace {

struct AddPartials {
  template <int W>
  static OCTAVO_INLINE void run(const float* partial, std::int64_t blocks, std::int64_t stride, float* out,
                                bool accumulate, std::int64_t begin, std::int64_t end) {
    chunks(end - begin, [&](std::int64_t i, auto count) OCTAVO_INLINE_LAMBDA {
      const std::int64_t c = begin + i;
      Floats<W> sum = load<W>(partial + c);
      for (std::int64_t b = 1; b < blocks; ++b) sum += load<W>(partial + b * stride + c);
      if (accumulate) sum = load<W>(out + c, count) + sum;
      store(out + c, sum, count);
    });
  }
};

template <class T>
struct SumRows {
  template <int W>
  static OCTAVO_INLINE void run(const T* dy, std::int64_t rows, std::int64_t columns, float* sums) {
    std::int64_t n = 0;
    // Four rows at a time, added in order: a quarter of the traffic to the sums.
    for (; n + 4 <= rows; n += 4) {
      const T* p = dy + n * columns;
      chunks(columns, [&](std::int64_t c, auto count) OCTAVO_INLINE_LAMBDA {
        Floats<W> sum = load<W>(sums + c);
        sum += load<W>(p + c, count);
        sum += load<W>(p + columns + c, count);
        sum += load<W>(p + 2 * columns + c, count);
        sum += load<W>(p + 3 * columns + c, count);
        store(sums + c, sum);
      });
    }
    for (; n < rows; ++n) {
      const T* p = dy + n * columns;
      chunks(columns, [&](std::int64_t c, auto count) OCTAVO_INLINE_LAMBDA {
        store(sums + c, load<W>(sums + c) + load<W>(p + c, count));
      });
    }
  }
};

}  // namespace

float* ColumnSums::start_block(std::int64_t begin) const {
  float* sums = partial_ + begin / blocks_.size * stride_;
  std::fill_n(sums, stride_, 0.0f);
  return sums;
}

void ColumnSums::finish(float* out, bool accumulate) const {
  parallel_blocks({columns_, 512}, [&](std::int64_t begin, std::int64_t end) {
    dispatch<AddPartials>(static_cast<const float*>(partial_), blocks_.count(), stride_, out, accumulate,
                          begin, end);
  });
}

void bias_gradient(const BiasGradient& op) {
  const std::int64_t rows = op.dy.dim(0), columns = op.dy.dim(1);
  static thread_local Scratch scratch;
  const ColumnSums sums(scratch, row_blocks(rows), columns);
  with_type(op.dy.dtype, [&](auto type) {
    using T = decltype(type);
    const T* dy = op.dy.as<T>();
    parallel_blocks(row_blocks(rows), [&](std::int64_t begin, std::int64_t end) {
      dispatch<SumRows<T>>(dy + begin * columns, end - begin, columns, sums.start_block(begin));
    });
  });
  sums.finish(op.db.as<float>(), op.accumulate);
}

}  // namespace octavo::cpu
