// cast.cpp - copies between f32 and bf16, and the FP8 codes of a matrix. Floor: one read and one write a
// form.
#include "cpu/fp8_codes.h"
#include "cpu/operators.h"
#include "cpu/vec.h"
#include "parallel.h"

namespace octavo::cpu {

namespace {

template <class X, class Y>
struct Convert {
  template <int W>
  static OCTAVO_INLINE void run(const X* x, Y* y, std::int64_t n) {
    chunks(n, [&](std::int64_t i, auto count)
                  OCTAVO_INLINE_LAMBDA { store(y + i, load<W>(x + i, count), count); });
  }
};

}  // namespace

void cast(const Cast& op) {
  with_type(op.x.dtype, [&](auto x_type) {
    using X = decltype(x_type);
    const X* x = op.x.as<X>();
    if (op.y.slot != nullptr) {
      const std::int64_t rows = op.x.dim(0), columns = op.x.dim(1);
      CodeWriter y(op.y, rows, columns);
      parallel_blocks(row_blocks(rows), [&](std::int64_t begin, std::int64_t end) {
        bf16* to = y.values(begin, end);
        dispatch<Convert<X, bf16>>(x + begin * columns, to, (end - begin) * columns);
        y.done(begin, end, to);
      });
      return y.finish();
    }
    with_type(op.y.t.dtype, [&](auto y_type) {
      using Y = decltype(y_type);
      Y* y = op.y.t.as<Y>();
      parallel_blocks({op.x.numel(), 32768}, [&](std::int64_t begin, std::int64_t end) {
        dispatch<Convert<X, Y>>(x + begin, y + begin, end - begin);
      });
    });
  });
}

}  // namespace octavo::cpu
