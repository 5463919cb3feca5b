// embedding.cpp - token and position embeddings, forward and backward.
//
// Floor: forward reads one row of wte and writes one of x per token (wpe stays in cache); backward reads dx
// twice and updates one row of dwte per token. Backward adds in sorted order: the rows of one token are added
// one after the other, in the order of the batch, by one thread.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "cpu/dropout.h"
#include "cpu/operators.h"
#include "cpu/scratch.h"
#include "parallel.h"

namespace octavo::cpu {

namespace {

void check_tokens(const char* op, const Tensor& tokens, std::int64_t rows) {
  const std::int32_t* id = tokens.as<std::int32_t>();
  for (std::int64_t n = 0; n < tokens.numel(); ++n)
    if (id[n] < 0 || id[n] >= rows)
      throw std::logic_error(std::string(op) + ".tokens: id " + std::to_string(id[n]) + " at " +
                             std::to_string(n) + ", the table has " + std::to_string(rows) + " rows");
}

template <class T>
struct Lookup {
  template <int W>
  static OCTAVO_INLINE void run(const std::int32_t* tokens, const T* wte, const T* wpe, T* x,
                                std::int64_t positions, std::int64_t columns, DropoutMask mask,
                                std::uint8_t* bytes, std::int64_t begin, std::int64_t end) {
    const bool drops = mask.active();
    for (std::int64_t n = begin; n < end; ++n) {
      const std::int64_t t = n % positions;
      const T *token = wte + tokens[n] * columns, *position = wpe + t * columns;
      if (drops) draw_mask<W>(mask, mask.sample(n / positions), t, 0, columns, bytes);
      chunks(columns, [&](std::int64_t c, auto count) OCTAVO_INLINE_LAMBDA {
        Floats<W> v = round_to<T>(load<W>(token + c, count) + load<W>(position + c, count));
        if (drops) v = drop(v, bytes + c, mask.threshold, mask.scale);
        store(x + n * columns + c, v, count);
      });
    }
  }
};

/// sum += dropout'(row n of dx).
template <class T>
struct AddRow {
  template <int W>
  static OCTAVO_INLINE void run(const T* dx, float* sum, std::int64_t n, std::int64_t positions,
                                std::int64_t columns, DropoutMask mask, std::uint8_t* bytes) {
    const bool drops = mask.active();
    if (drops) draw_mask<W>(mask, mask.sample(n / positions), n % positions, 0, columns, bytes);
    chunks(columns, [&](std::int64_t c, auto count) OCTAVO_INLINE_LAMBDA {
      Floats<W> v = load<W>(dx + n * columns + c, count);
      if (drops) v = round_to<T>(drop(v, bytes + c, mask.threshold, mask.scale));
      store(sum + c, load<W>(static_cast<const float*>(sum) + c, count) + v, count);
    });
  }
};

void fill_zero(float* p, std::int64_t n) {
  parallel_blocks({n, 65536},
                  [&](std::int64_t begin, std::int64_t end) { std::fill(p + begin, p + end, 0.0f); });
}

}  // namespace

void embedding_forward(const EmbeddingForward& op) {
  check_tokens("EmbeddingForward", op.tokens, op.wte.dim(0));
  const std::int64_t rows = op.tokens.numel(), positions = op.tokens.dim(1), columns = op.wte.dim(1);
  with_type(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int32_t* tokens = op.tokens.as<std::int32_t>();
    const T *wte = op.wte.as<T>(), *wpe = op.wpe.as<T>();
    T* x = op.x.as<T>();
    const DropoutMask mask(op.dropout);
    parallel_blocks(row_blocks(rows), [&](std::int64_t begin, std::int64_t end) {
      dispatch<Lookup<T>>(tokens, wte, wpe, x, positions, columns, mask, mask_row(mask, columns), begin, end);
    });
  });
}

void embedding_backward(const EmbeddingBackward& op) {
  check_tokens("EmbeddingBackward", op.tokens, op.dwte.dim(0));
  const std::int64_t rows = op.tokens.numel(), positions = op.tokens.dim(1), columns = op.dwte.dim(1);
  const std::int32_t* tokens = op.tokens.as<std::int32_t>();
  float *dwte = op.dwte.as<float>(), *dwpe = op.dwpe.as<float>();
  if (!op.accumulate_wte) fill_zero(dwte, op.dwte.numel());
  if (!op.accumulate_wpe) fill_zero(dwpe, op.dwpe.numel());

  // Rows sorted by token, then by row: each token's rows become one run.
  static thread_local Scratch scratch;
  std::uint64_t* order = scratch.get<std::uint64_t>(static_cast<std::size_t>(2 * rows + 1));
  std::uint64_t* runs = order + rows;  // where in `order` each run begins
  for (std::int64_t n = 0; n < rows; ++n)
    order[n] = (static_cast<std::uint64_t>(tokens[n]) << 32) | static_cast<std::uint64_t>(n);
  std::sort(order, order + rows);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < rows; ++i)
    if (i == 0 || order[i] >> 32 != order[i - 1] >> 32) runs[count++] = static_cast<std::uint64_t>(i);
  runs[count] = static_cast<std::uint64_t>(rows);

  with_type(op.dx.dtype, [&](auto type) {
    using T = decltype(type);
    const T* dx = op.dx.as<T>();
    const DropoutMask mask(op.dropout);
    // A token's share of the batch differs from token to token, hence dynamic; a run is one thread's alone.
    parallel_tasks(count, [&](std::int64_t run) {
      for (std::uint64_t i = runs[run]; i < runs[run + 1]; ++i)
        dispatch<AddRow<T>>(dx, dwte + static_cast<std::int64_t>(order[i] >> 32) * columns,
                            static_cast<std::int64_t>(order[i] & 0xffffffffu), positions, columns, mask,
                            mask_row(mask, columns));
    });
    parallel_blocks({positions, 16}, [&](std::int64_t begin, std::int64_t end) {
      std::uint8_t* bytes = mask_row(mask, columns);
      for (std::int64_t t = begin; t < end; ++t)
        for (std::int64_t n = t; n < rows; n += positions)
          dispatch<AddRow<T>>(dx, dwpe + t * columns, n, positions, columns, mask, bytes);
    });
  });
}

}  // namespace octavo::cpu
