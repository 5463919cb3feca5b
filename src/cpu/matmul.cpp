// matmul.cpp - the products of linear layers, by oneDNN, cut so that no bit depends on the number of threads.
//
// oneDNN left to itself shares a product over its threads in ways that change the order of a sum (seen in
// weight gradients, in f32 and in bf16). So the output is cut into blocks whose bounds depend on the shape
// alone, and each is computed with its whole sum by one thread, on which oneDNN runs sequentially. Blocks are
// as large as balance allows: each packs its operands anew.
//
// Where oneDNN has no bf16 product for the processor, a block's operands are widened to f32 a piece of the
// sum at a time, multiplied in f32, and the result is rounded once.
//
// FP8 codes are widened to bf16, which holds each of their values exactly, and multiplied as such with sums
// in f32; a block's sums are then scaled, given the bias and rounded once.
#include <algorithm>
#include <map>
#include <omp.h>

#include "cpu/bf16_products.h"
#include "cpu/fp8_codes.h"
#include "cpu/onednn.h"
#include "cpu/operators.h"
#include "cpu/vec.h"
#include "error.h"
#include "parallel.h"
#include "signal_stack.h"

namespace octavo::cpu {

namespace {

using onednn::Product;
using onednn::ProductShape;

/// The calling thread's product of this shape, made on first use.
Product& prepared(const ProductShape& shape) {
  // A training run needs a few dozen; generation, whose prompts differ in length, must not grow without end.
  constexpr std::size_t kMostKept = 512;
  static thread_local std::map<ProductShape, Product> products;
  const auto found = products.find(shape);
  if (found != products.end()) return found->second;
  if (products.size() >= kMostKept) products.clear();
  return products.try_emplace(shape, shape).first->second;
}

/// A factor as it is multiplied: a row-major matrix.
struct Factor {
  const void* data;
  std::int64_t rows, columns;
};

/// The factor of an operator: its values, or its codes widened into `scratch`. oneDNN sums in another order
/// where a factor comes transposed, so transposed codes are turned back: both forms give the same bits.
Factor factor_of(const Operand& operand, bool codes, Scratch& scratch) {
  if (!codes) return {operand.t.data, operand.t.dim(0), operand.t.dim(1)};
  const Tensor& q = operand.q ? operand.q : operand.q_t;
  const std::uint8_t* from = static_cast<const std::uint8_t*>(q.data);
  bf16* to = scratch.get<bf16>(static_cast<std::size_t>(q.numel()));
  if (operand.q) {
    parallel_blocks({q.numel(), 1 << 16}, [&](std::int64_t begin, std::int64_t end) {
      widen_codes(q.dtype, from + begin, end - begin, to + begin);
    });
    return {to, q.dim(0), q.dim(1)};
  }
  const std::int64_t rows = q.dim(1), columns = q.dim(0);
  parallel_blocks({columns, 16}, [&](std::int64_t begin, std::int64_t end) {
    static thread_local Scratch piece;
    const std::int64_t count = end - begin;
    bf16* wide = piece.get<bf16>(static_cast<std::size_t>(count * rows));
    widen_codes(q.dtype, from + begin * rows, count * rows, wide);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < count; ++c) to[r * columns + begin + c] = wide[c * rows + r];
  });
  return {to, rows, columns};
}

/// The whole product that an operator asks for.
ProductShape whole_product(const Matmul& op, const Factor& a, const Factor& b) {
  ProductShape s{.input = op.codes ? DType::bf16 : op.a.t.dtype,
                 .output = op.d.dtype,
                 .bias = static_cast<bool>(op.bias),
                 .accumulate = op.accumulate};
  switch (op.gemm) {
    case Gemm::fprop:
      s.m = a.rows, s.k = a.columns, s.n = b.rows;
      s.a_row = a.columns, s.a_column = 1, s.b_row = 1, s.b_column = b.columns;
      break;
    case Gemm::dgrad:
      s.m = a.rows, s.k = a.columns, s.n = b.columns;
      s.a_row = a.columns, s.a_column = 1, s.b_row = b.columns, s.b_column = 1;
      break;
    case Gemm::wgrad:
      s.m = a.columns, s.k = a.rows, s.n = b.columns;
      s.a_row = 1, s.a_column = a.columns, s.b_row = b.columns, s.b_column = 1;
      break;
  }
  s.c_row = s.n;
  return s;
}

/// [0, n) in equal blocks of about `target`, multiples of 16 (oneDNN's vectors).
Blocks even_blocks(std::int64_t n, std::int64_t target) {
  const std::int64_t parts = (n + target - 1) / target;
  return {n, ((n + parts - 1) / parts + 15) / 16 * 16};
}

struct Grid {
  Blocks rows, columns;
  std::int64_t count() const { return rows.count() * columns.count(); }
};

/// Measured on one core of a Zen 4 against oneDNN's own way (N = 2048 to 8192, C = 384 and 768): fprop and
/// dgrad in rows of 256 cost 0 to 3 %, of 128 up to 8 %, with the columns cut as well 8 %; wgrad in 192 x 384
/// is up to 8 % faster in f32 and equal in bf16, in 192 x 192 costs up to 5 % there. Blocks shrink only where
/// there would be too few to share out. Every block of rows packs b anew, which counts most where b is larger
/// than the caches (the vocabulary's products).
Grid grid_of(Gemm gemm, const ProductShape& s) {
  if (gemm == Gemm::wgrad) {
    Grid grid{even_blocks(s.m, 192), even_blocks(s.n, 384)};
    if (grid.count() < 4) grid.columns = even_blocks(s.n, 192);
    if (grid.count() < 4) grid.rows = even_blocks(s.m, 96);
    return grid;
  }
  const bool large = s.k * s.n >= std::int64_t{1} << 22;
  const Blocks rows = even_blocks(s.m, large ? 256 : std::clamp<std::int64_t>(s.m / 8, 128, 256));
  return {rows, even_blocks(s.n, rows.count() > 1 ? 3072 : std::max<std::int64_t>(64, s.n / 8))};
}

/// Bytes before element (row, column).
std::int64_t offset(std::int64_t row, std::int64_t row_stride, std::int64_t column,
                    std::int64_t column_stride, DType type) {
  return (row * row_stride + column * column_stride) * static_cast<std::int64_t>(size_of(type));
}

struct WidenRows {
  template <int W>
  static OCTAVO_INLINE void run(const bf16* from, std::int64_t stride, std::int64_t rows,
                                std::int64_t columns, float* to) {
    for (std::int64_t r = 0; r < rows; ++r)
      chunks(
          columns, [&](std::int64_t c, auto n) __attribute__((always_inline)) {
            store(to + r * columns + c, load<W>(from + r * stride + c, n), n);
          });
  }
};
/// What becomes of a block's sums in f32: to = round(sums * factor + bias), or += without a bias.
template <class T>
struct FinishRows {
  template <int W>
  static OCTAVO_INLINE void run(const float* sums, std::int64_t rows, std::int64_t columns, float factor,
                                const bf16* bias, bool accumulate, T* to, std::int64_t stride) {
    using F = Floats<W>;
    for (std::int64_t r = 0; r < rows; ++r)
      chunks(
          columns, [&](std::int64_t c, auto n) __attribute__((always_inline)) {
            F v = load<W>(sums + r * columns + c, n) * F::broadcast(factor);
            if (bias != nullptr) v = v + load<W>(bias + c, n);
            if (accumulate) v = load<W>(static_cast<const T*>(to) + r * stride + c, n) + v;
            store(to + r * stride + c, v, n);
          });
  }
};

void finish_rows(const ProductShape& block, const float* sums, float factor, const char* bias, char* c) {
  const bf16* added = block.bias ? reinterpret_cast<const bf16*>(bias) : nullptr;
  if (block.output == DType::bf16)
    dispatch<FinishRows<bf16>>(sums, block.m, block.n, factor, added, block.accumulate,
                               reinterpret_cast<bf16*>(c), block.c_row);
  else
    dispatch<FinishRows<float>>(sums, block.m, block.n, factor, added, block.accumulate,
                                reinterpret_cast<float*>(c), block.c_row);
}

/// A rows x columns part of a bf16 matrix, widened into `to` in the order that it has in memory; `row_stride`
/// and `column_stride` (one of them is 1) become those of the copy.
const float* widened(const void* data, std::int64_t rows, std::int64_t columns, std::int64_t& row_stride,
                     std::int64_t& column_stride, float* to) {
  const bf16* from = static_cast<const bf16*>(data);
  if (column_stride == 1) {
    dispatch<WidenRows>(from, row_stride, rows, columns, to);
    row_stride = columns;
  } else {
    dispatch<WidenRows>(from, column_stride, columns, rows, to);
    column_stride = rows;
  }
  return to;
}

/// sums = a b in f32, of a block of bf16 operands that are widened on the way.
void multiply_widened(const ProductShape& block, const char* a, const char* b, float* sums) {
  constexpr std::int64_t kPiece = 512;  // of the sum: its widened operands stay in the second-level cache
  static thread_local Scratch scratch[2];
  float* wide_a = scratch[0].get<float>(static_cast<std::size_t>(block.m * std::min(kPiece, block.k)));
  float* wide_b = scratch[1].get<float>(static_cast<std::size_t>(block.n * std::min(kPiece, block.k)));
  for (std::int64_t k = 0; k < block.k; k += kPiece) {
    ProductShape piece = block;
    piece.k = std::min(kPiece, block.k - k);
    piece.input = piece.output = DType::f32;
    piece.c_row = block.n;
    piece.bias = false, piece.accumulate = k > 0;
    const float* left = widened(a + offset(0, 0, k, block.a_column, DType::bf16), piece.m, piece.k,
                                piece.a_row, piece.a_column, wide_a);
    const float* right = widened(b + offset(k, block.b_row, 0, 0, DType::bf16), piece.k, piece.n, piece.b_row,
                                 piece.b_column, wide_b);
    prepared(piece).run(left, right, nullptr, sums);
  }
}

/// One block whose sums pass through memory in f32 before they are scaled, given the bias and rounded.
void multiply_in_two(const ProductShape& block, const char* a, const char* b, float factor, const char* bias,
                     char* c) {
  static thread_local Scratch scratch;
  float* sums = scratch.get<float>(static_cast<std::size_t>(block.m * block.n));
  if (has_bf16_products()) {
    ProductShape plain = block;
    plain.output = DType::f32, plain.c_row = block.n;
    plain.bias = plain.accumulate = false;
    prepared(plain).run(a, b, nullptr, sums);
  } else {
    multiply_widened(block, a, b, sums);
  }
  finish_rows(block, sums, factor, bias, c);
}

}  // namespace

void matmul(const Matmul& op) {
  static thread_local Scratch scratch[2];
  const Factor left = factor_of(op.a, op.codes, scratch[0]), right = factor_of(op.b, op.codes, scratch[1]);
  const float factor = op.codes ? *op.a.slot->scale_inv * *op.b.slot->scale_inv : 1.0f;
  const ProductShape whole = whole_product(op, left, right);
  const Grid grid = grid_of(op.gemm, whole);
  const bool in_two = op.codes || (whole.input == DType::bf16 && !has_bf16_products());
  const auto multiply = [&](std::int64_t index) {
    // Rows first: neighbouring blocks read the same part of b.
    const std::int64_t row = index % grid.rows.count(), column = index / grid.rows.count();
    const std::int64_t m = grid.rows.begin(row), n = grid.columns.begin(column);
    ProductShape block = whole;
    block.m = grid.rows.end(row) - m;
    block.n = grid.columns.end(column) - n;
    const char* a = static_cast<const char*>(left.data) + offset(m, whole.a_row, 0, 0, whole.input);
    const char* b = static_cast<const char*>(right.data) + offset(0, 0, n, whole.b_column, whole.input);
    const char* bias =
        whole.bias ? static_cast<const char*>(op.bias.data) + offset(0, 0, n, 1, whole.input) : nullptr;
    char* c = static_cast<char*>(op.d.data) + offset(m, whole.c_row, n, 1, whole.output);
    if (in_two)
      multiply_in_two(block, a, b, factor, bias, c);
    else
      prepared(block).run(a, b, bias, c);
  };

  FirstError error;
#pragma omp parallel
  {
    ensure_signal_stack();
    omp_set_num_threads(1);  // of this thread's nested regions: oneDNN is not to share a block
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t index = 0; index < grid.count(); ++index) error.guard([&] { multiply(index); });
  }
  try {
    error.rethrow();
  } catch (const dnnl::error& e) {
    fail("oneDNN, product of {} x {} by {} x {} in {}: {} (status {})", whole.m, whole.k, whole.k, whole.n,
         name_of(whole.input), e.message, static_cast<int>(e.status));
  }
}

bool has_bf16_products() {
  static const bool has = onednn::instruction_set_has(dnnl::cpu_isa::avx512_core_bf16);
  return has;
}

const char* onednn_instruction_set() {
  using dnnl::cpu_isa;
  using onednn::instruction_set_has;
  if (instruction_set_has(cpu_isa::avx512_core_amx)) return "AMX";
  if (instruction_set_has(cpu_isa::avx512_core_bf16)) return "AVX-512 with BF16";
  if (instruction_set_has(cpu_isa::avx512_core)) return "AVX-512";
  if (instruction_set_has(cpu_isa::avx2)) return "AVX2";
  if (instruction_set_has(cpu_isa::avx)) return "AVX";
  return "SSE4.1";
}

}  // namespace octavo::cpu
