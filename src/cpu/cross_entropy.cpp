// cross_entropy.cpp - the loss of every row of logits, its gradient in their place, and the sum of losses.
//
// A row (at most a few hundred KiB) is taken from memory once and passed over from cache: largest logit, then
// sum of exponentials, then gradient. Floor: one read of the logits, and one write where the gradient is
// wanted.
#include <limits>
#include <stdexcept>
#include <string>

#include "cpu/operators.h"
#include "cpu/scratch.h"
#include "cpu/vec.h"
#include "parallel.h"

namespace octavo::cpu {

namespace {

/// Rows that a thread takes at a time: each is thousands of exponentials.
constexpr std::int64_t kRows = 16;
/// Exponentials summed in f32 before they join the double sum of the row.
constexpr std::int64_t kSpan = 512;

template <class T>
struct Fields {
  T* logits;
  const std::int32_t* targets;
  float* losses;
  std::int64_t vocab, padded;
  bool gradient;
  float grad_scale;
  float* exps;  // room for one row in whole chunks; only where the gradient is wanted
};

template <class T>
struct Rows {
  template <int W>
  static OCTAVO_INLINE void run(Fields<T> f, std::int64_t begin, std::int64_t end) {
    using F = Floats<W>;
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    const std::int64_t V = f.vocab;
    for (std::int64_t n = begin; n < end; ++n) {
      T* row = f.logits + n * f.padded;
      const T* logits = row;
      const std::int32_t target = f.targets[n];
      if (target < 0) {
        f.losses[n] = 0;
        if (f.gradient) __builtin_memset(row, 0, static_cast<std::size_t>(f.padded) * sizeof(T));
        continue;
      }
      F largest = F::broadcast(kLowest);
      chunks(V, [&](std::int64_t c, auto count)
                    OCTAVO_INLINE_LAMBDA { largest = max(load_or<W>(kLowest, logits + c, count), largest); });
      const float top = max_of(largest);  // a NaN may be passed over here, but not by the sum below
      double total = 0;
      for (std::int64_t first = 0; first < V; first += kSpan) {
        F sum = F::zero();
        chunks(std::min(kSpan, V - first), [&](std::int64_t i, auto count) OCTAVO_INLINE_LAMBDA {
          const F e = exp(load_or<W>(kLowest, logits + first + i, count) - F::broadcast(top));
          sum += e;
          if (f.gradient) store(f.exps + first + i, e);
        });
        total += static_cast<double>(sum_of(sum));
      }
      f.losses[n] = static_cast<float>(
          log_of(total) + (static_cast<double>(top) - static_cast<double>(to_float(logits[target]))));
      if (!f.gradient) continue;
      const double scale = static_cast<double>(f.grad_scale);
      const F factor = F::broadcast(static_cast<float>(scale / total));
      chunks(V, [&](std::int64_t c, auto count) OCTAVO_INLINE_LAMBDA {
        store(row + c, load<W>(static_cast<const float*>(f.exps) + c) * factor, count);
      });
      const double p = static_cast<double>(f.exps[target]) / total;
      const float at_target = static_cast<float>((p - 1) * scale);
      if constexpr (std::is_same_v<T, bf16>)
        row[target] = to_bf16(at_target);
      else
        row[target] = at_target;
      __builtin_memset(row + V, 0, static_cast<std::size_t>(f.padded - V) * sizeof(T));
    }
  }
};

void check_targets(const CrossEntropy& op) {
  const std::int32_t* target = op.targets.as<std::int32_t>();
  for (std::int64_t n = 0; n < op.targets.numel(); ++n)
    if (target[n] < -1 || target[n] >= op.vocab)
      throw std::logic_error("CrossEntropy.targets: id " + std::to_string(target[n]) + " at " +
                             std::to_string(n) + ", allowed: -1 to " + std::to_string(op.vocab - 1));
}

}  // namespace

void cross_entropy(const CrossEntropy& op) {
  check_targets(op);
  const std::int64_t rows = op.logits.dim(0);
  with_type(op.logits.dtype, [&](auto type) {
    using T = decltype(type);
    const bool gradient = op.mode == LossMode::loss_and_gradient;
    const Fields<T> fields{.logits = op.logits.as<T>(),
                           .targets = op.targets.as<std::int32_t>(),
                           .losses = op.losses.as<float>(),
                           .vocab = op.vocab,
                           .padded = op.logits.dim(1),
                           .gradient = gradient,
                           .grad_scale = gradient ? op.state->grad_scale : 0.0f,
                           .exps = nullptr};
    parallel_blocks({rows, kRows}, [&](std::int64_t begin, std::int64_t end) {
      static thread_local Scratch scratch;
      Fields<T> f = fields;
      if (gradient) f.exps = scratch.get<float>(static_cast<std::size_t>((op.vocab + 15) / 16 * 16));
      dispatch<Rows<T>>(f, begin, end);
    });
  });
}

void loss_sum(const LossSum& op) {
  const float* losses = op.losses.as<float>();
  double sum = op.state->loss_sum;
  for (std::int64_t n = 0; n < op.losses.numel(); ++n) sum += static_cast<double>(losses[n]);
  op.state->loss_sum = sum;
}

}  // namespace octavo::cpu
