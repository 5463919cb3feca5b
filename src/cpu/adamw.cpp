// adamw.cpp - one step of AdamW over the flat arena, and the working forms of the weights with it.
//
// Floor: per parameter 16 bytes read (weight, gradient, both moments) and 12 written, 14 with a bf16 working
// copy, 13 with FP8 codes.
#include <algorithm>

#include "cpu/fp8_codes.h"
#include "cpu/operators.h"
#include "cpu/vec.h"
#include "parallel.h"

namespace octavo::cpu {

namespace {

struct Fields {
  float *param, *m, *v;
  const float* grad;
  bf16* working;  // of the first element that is updated; may be null
  float clip_factor, beta1, beta2, one_minus_beta1, one_minus_beta2;
  float correction1, correction2;  // 1 / (1 - beta^t)
  float eps, lr, decay;
};

struct Update {
  template <int W>
  static OCTAVO_INLINE void run(Fields f, std::int64_t begin, std::int64_t end) {
    using F = Floats<W>;
    const auto all = [](float x) OCTAVO_INLINE_LAMBDA { return F::broadcast(x); };
    chunks(end - begin, [&](std::int64_t offset, auto count) OCTAVO_INLINE_LAMBDA {
      const std::int64_t i = begin + offset;
      const F g = load<W>(f.grad + i, count) * all(f.clip_factor);
      const F m = all(f.beta1) * load<W>(f.m + i, count) + all(f.one_minus_beta1) * g;
      const F v = all(f.beta2) * load<W>(f.v + i, count) + all(f.one_minus_beta2) * (g * g);
      F p = load<W>(f.param + i, count);
      const F step = (m * all(f.correction1)) / (sqrt(v * all(f.correction2)) + all(f.eps));
      p = p - all(f.lr) * (step + all(f.decay) * p);
      store(f.m + i, m, count);
      store(f.v + i, v, count);
      store(f.param + i, p, count);
      if (f.working != nullptr) store(f.working + offset, p, count);
    });
  }
};

/// beta^t by squaring: the same bits everywhere, which the library's pow() does not promise.
double power(double beta, std::int64_t t) {
  double result = 1;
  for (; t > 0; t >>= 1, beta *= beta)
    if (t & 1) result *= beta;
  return result;
}

}  // namespace

void adamw(const AdamW& op) {
  StepState& state = *op.state;
  if (state.skip != 0) return;
  state.updates += 1;
  const double beta1 = static_cast<double>(op.beta1), beta2 = static_cast<double>(op.beta2);
  const Fields fields{.param = op.param.as<float>(),
                      .m = op.m.as<float>(),
                      .v = op.v.as<float>(),
                      .grad = op.grad.as<float>(),
                      .working = nullptr,
                      .clip_factor = state.clip_factor,
                      .beta1 = op.beta1,
                      .beta2 = op.beta2,
                      .one_minus_beta1 = static_cast<float>(1 - beta1),
                      .one_minus_beta2 = static_cast<float>(1 - beta2),
                      .correction1 = static_cast<float>(1 / (1 - power(beta1, state.updates))),
                      .correction2 = static_cast<float>(1 / (1 - power(beta2, state.updates))),
                      .eps = op.eps,
                      .lr = state.lr,
                      .decay = 0};
  bf16* working = op.working ? op.working.as<bf16>() : nullptr;
  const auto update = [&](const ArenaSegment& s, std::int64_t begin, std::int64_t end, bf16* to) {
    Fields f = fields;
    f.decay = s.decays ? op.weight_decay : 0.0f;
    f.working = to;
    dispatch<Update>(f, begin, end);
  };
  // Matrices that are read as codes go by rows, everything else by blocks of the arena.
  parallel_blocks({op.param.numel(), 16384}, [&](std::int64_t begin, std::int64_t end) {
    const auto first = std::partition_point(op.segments.begin(), op.segments.end(),
                                            [&](const ArenaSegment& s) { return s.end <= begin; });
    for (auto s = first; s != op.segments.end() && s->begin < end; ++s) {
      if (s->codes != nullptr) continue;
      const std::int64_t from = std::max(begin, s->begin);
      update(*s, from, std::min(end, s->end),
             working != nullptr && s->values ? working + from - s->shift : nullptr);
    }
  });
  for (const ArenaSegment& s : op.segments) {
    if (s.codes == nullptr) continue;
    const Tensor& shape = s.codes->q ? s.codes->q : s.codes->q_t;
    const std::int64_t rows = s.codes->q ? shape.dim(0) : shape.dim(1), columns = shape.numel() / rows;
    Operand forms = *s.codes;
    if (s.values) forms.t = Tensor(working + s.begin - s.shift, DType::bf16, {rows, columns}, "working");
    CodeWriter codes(forms, rows, columns);
    parallel_blocks(row_blocks(rows), [&](std::int64_t begin, std::int64_t end) {
      bf16* to = codes.values(begin, end);
      update(s, s.begin + begin * columns, s.begin + end * columns, to);
      codes.done(begin, end, to);
    });
    codes.finish();
  }
}

}  // namespace octavo::cpu
