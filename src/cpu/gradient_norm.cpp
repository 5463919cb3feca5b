// gradient_norm.cpp - the global norm of the gradients, the clip factor, and whether the step is skipped.
//
// Squares are summed in double: a gradient whose square overflows f32 is large, not infinite. Sixteen sums
// per block, blocks added in index order. Floor: one pass over the gradients.
#include <cmath>

#include "cpu/operators.h"
#include "cpu/scratch.h"
#include "cpu/vec.h"
#include "parallel.h"

namespace octavo::cpu {

namespace {

struct SumSquares {
  template <int W>
  static OCTAVO_INLINE void run(const float* g, std::int64_t n, double* result) {
    using Half = typename Native<W>::Half;
    using D = typename Native<W>::D;
    constexpr int kParts = 16 / (W / 2);
    D sums[kParts] = {};
    const auto add = [&](const float* p) OCTAVO_INLINE_LAMBDA {
      for (int i = 0; i < kParts; ++i) {
        Half half;
        __builtin_memcpy(&half, p + i * (W / 2), sizeof half);
        const D d = __builtin_convertvector(half, D);
        sums[i] += d * d;
      }
    };
    std::int64_t i = 0;
    for (; i + 16 <= n; i += 16) add(g + i);
    if (i < n) {
      float padded[16] = {};
      __builtin_memcpy(padded, g + i, static_cast<std::size_t>(n - i) * sizeof(float));
      add(padded);
    }
    double lanes[16], sum = 0;
    __builtin_memcpy(lanes, sums, sizeof lanes);
    for (const double lane : lanes) sum += lane;
    *result = sum;
  }
};

}  // namespace

void gradient_norm(const GradientNorm& op) {
  const float* grad = op.grad.as<float>();
  const Blocks blocks{op.grad.numel(), 32768};
  static thread_local Scratch scratch;
  double* partial = scratch.get<double>(static_cast<std::size_t>(blocks.count()));
  parallel_blocks(blocks, [&](std::int64_t begin, std::int64_t end) {
    dispatch<SumSquares>(grad + begin, end - begin, partial + begin / blocks.size);
  });
  double sum = 0;
  for (std::int64_t b = 0; b < blocks.count(); ++b) sum += partial[b];
  StepState& state = *op.state;
  state.grad_norm = static_cast<float>(std::sqrt(sum));
  const float ratio = op.clip / state.grad_norm;
  state.clip_factor = op.clip > 0 && ratio < 1 ? ratio : 1.0f;
  state.skip = std::isfinite(state.grad_norm) && std::isfinite(state.loss_sum) ? 0 : 1;
}

}  // namespace octavo::cpu
