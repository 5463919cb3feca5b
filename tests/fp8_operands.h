// fp8_operands.h - FP8 slots and operands in a backend's memory, and every operator that writes codes behind
// one signature, so that a test can ask the same of each.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "backend.h"
#include "backends.h"
#include "fp8_reference.h"
#include "masks.h"
#include "precision/fp8_plan.h"
#include "precision/fp8_recipe.h"

namespace octavo::testing {

/// A slot whose numbers lie between guards. What the producer is to write holds nonsense before.
struct DeviceSlot {
  struct Start {
    float scale = 1;
    float amax = 0;
    std::int64_t saturated = 0, underflowed = 0;
  };

  DeviceArray<float> scale, scale_inv;
  DeviceArray<std::int32_t> amax, own_amax;
  DeviceArray<std::int64_t> saturated, underflowed;
  Fp8Slot slot;

  DeviceSlot(Backend& b, DType format, Fp8Scaling scaling, const Start& start)
      : scale(b, std::vector<float>{start.scale}, {1}, "scale"),
        scale_inv(b, {1}, "scale_inv"),
        amax(b, std::vector<std::int32_t>{std::bit_cast<std::int32_t>(start.amax)}, {1}, "amax"),
        own_amax(b, std::vector<std::int32_t>{0x7fffffff}, {1}, "own_amax"),
        saturated(b, std::vector<std::int64_t>{start.saturated}, {1}, "saturated"),
        underflowed(b, std::vector<std::int64_t>{start.underflowed}, {1}, "underflowed"),
        slot{.format = format,
             .scaling = scaling,
             .scale = scale.tensor.as<float>(),
             .scale_inv = scale_inv.tensor.as<float>(),
             .amax = amax.tensor.as<std::int32_t>(),
             .own_amax = own_amax.tensor.as<std::int32_t>(),
             .saturated = saturated.tensor.as<std::int64_t>(),
             .underflowed = underflowed.tensor.as<std::int64_t>()} {}

  std::uint32_t amax_bits() const { return static_cast<std::uint32_t>(amax.read()[0]); }
  std::string bits() const {
    return bits_of(scale.read()) + bits_of(scale_inv.read()) + bits_of(amax.read()) +
           bits_of(saturated.read()) + bits_of(underflowed.read());
  }
};

/// Codes with guards; unwritten ones are 0xff.
struct DeviceCodes : DeviceArray<std::uint8_t> {
  DeviceCodes(Backend& b, DType format, std::initializer_list<std::int64_t> dims, const char* name)
      : DeviceArray(b, dims, name) {
    tensor.dtype = format;
  }
  DeviceCodes(Backend& b, DType format, const std::vector<std::uint8_t>& codes,
              std::initializer_list<std::int64_t> dims, const char* name)
      : DeviceArray(b, codes, dims, name) {
    tensor.dtype = format;
  }
};

/// Memory for all forms of an operand, of which `operand` has those asked for.
struct DeviceOperand {
  DeviceArray<bf16> t;
  DeviceCodes q, q_t;
  DeviceSlot slot;
  Operand operand;

  DeviceOperand(Backend& b, std::int64_t rows, std::int64_t columns, DType format, Fp8Scaling scaling,
                const Forms& forms, const DeviceSlot::Start& start = {}, bool record = true)
      : t(b, {rows, columns}, "t"),
        q(b, format, {rows, columns}, "q"),
        q_t(b, format, {columns, rows}, "q_t"),
        slot(b, format, scaling, start) {
    if (forms.t) operand.t = t.tensor;
    if (forms.q) operand.q = q.tensor;
    if (forms.q_t) operand.q_t = q_t.tensor;
    if (forms.codes()) operand.slot = &slot.slot;
    operand.record = record;
  }
  std::string bits() const {
    return bits_of(t.read()) + bits_of(q.read()) + bits_of(q_t.read()) + slot.bits();
  }
};

/// One operator, with inputs that never change, as a writer of an operand of [rows,columns]. run() returns
/// the bits of all its other outputs.
struct Producer {
  const char* name;
  std::int64_t rows, columns;
  bool needs_values;  // attention, whose rows are complete only at its end
  std::string (*run)(Backend& b, const Operand& y);
};

namespace producers {

inline constexpr std::int64_t kB = 3, kT = 37, kN = kB * kT, kC = 53;  // tails both ways, several blocks
inline constexpr std::int64_t kHeads = 4, kKvHeads = 2, kHeadSize = 13;
inline constexpr std::int64_t kOut = kHeads * kHeadSize, kPacked = (kHeads + 2 * kKvHeads) * kHeadSize;

template <typename T>
std::string cast(Backend& b, const Operand& y) {
  DeviceArray<T> x(b, random_values<T>(kN * kC, 1, 3), {kN, kC}, "x");
  b.run(Cast{.x = x.tensor, .y = y});
  return bits_of(x.read());
}

/// kind 0: a norm alone; 1: after a branch with dropout; 2: after a branch, the residual in place.
template <int Kind>
std::string norm_forward(Backend& b, const Operand& y) {
  const DeviceMask mask(b, mask_of(0.2, kB, DropPlace::mlp_out));
  DeviceArray<bf16> x(b, random_values<bf16>(kN * kC, 2, 3), {kN, kC}, "x"),
      branch(b, random_values<bf16>(kN * kC, 3), {kN, kC}, "branch"), residual(b, {kN, kC}, "residual");
  DeviceArray<float> gain(b, random_values<float>(kC, 4), {kC}, "gain"),
      bias(b, random_values<float>(kC, 5), {kC}, "bias"), mean(b, {kN}, "mean"), rstd(b, {kN}, "rstd");
  NormForward op{.x = x.tensor,
                 .gain = gain.tensor,
                 .bias = bias.tensor,
                 .y = y,
                 .mean = mean.tensor,
                 .rstd = rstd.tensor,
                 .T = kT};
  if (Kind > 0) op.branch = branch.tensor, op.residual = Kind == 2 ? x.tensor : residual.tensor;
  if (Kind == 1) op.dropout = mask.dropout;
  b.run(op);
  return bits_of(x.read()) + bits_of(residual.read()) + bits_of(mean.read()) + bits_of(rstd.read());
}

template <bool Drops>
std::string norm_backward(Backend& b, const Operand& dbranch) {
  const DeviceMask mask(b, mask_of(Drops ? 0.2 : 0.0, kB, DropPlace::mlp_out));
  DeviceArray<bf16> dy(b, random_values<bf16>(kN * kC, 6), {kN, kC}, "dy"),
      residual(b, random_values<bf16>(kN * kC, 7, 2), {kN, kC}, "residual"),
      dresidual(b, random_values<bf16>(kN * kC, 8), {kN, kC}, "dresidual");
  DeviceArray<float> gain(b, random_values<float>(kC, 9), {kC}, "gain"),
      mean(b, random_values<float>(kN, 10, 0.1), {kN}, "mean"),
      rstd(b, random_values<float>(kN, 11), {kN}, "rstd");
  DeviceArray<float> dgain(b, random_values<float>(kC, 12), {kC}, "dgain"),
      dbias(b, random_values<float>(kC, 13), {kC}, "dbias"), sums(b, {kC}, "dbranch_bias");
  b.run(NormBackward{.dy = dy.tensor,
                     .residual = residual.tensor,
                     .gain = gain.tensor,
                     .mean = mean.tensor,
                     .rstd = rstd.tensor,
                     .dresidual = dresidual.tensor,
                     .dgain = dgain.tensor,
                     .dbias = dbias.tensor,
                     .dbranch = dbranch,
                     .dropout = mask.dropout,
                     .dbranch_bias = sums.tensor,
                     .T = kT});
  return bits_of(dresidual.read()) + bits_of(dgain.read()) + bits_of(dbias.read()) + bits_of(sums.read());
}

/// An operand's values in another shape of the same size.
inline Operand viewed(Operand y, std::initializer_list<std::int64_t> dims) {
  y.t = y.t.view(dims);
  return y;
}

template <bool Drops>
std::string attention_forward(Backend& b, const Operand& out) {
  const DeviceMask mask(b, mask_of(Drops ? 0.3 : 0.0, kB, DropPlace::attention));
  DeviceArray<bf16> qkv(b, random_values<bf16>(kN * kPacked, 14, 2), {kB, kT, kPacked}, "qkv");
  DeviceArray<float> lse(b, {kB, kHeads, kT}, "lse");
  b.run(AttentionForward{.qkv = qkv.tensor,
                         .heads = kHeads,
                         .kv_heads = kKvHeads,
                         .scale = 0.25f,
                         .out = viewed(out, {kB, kT, kOut}),
                         .lse = lse.tensor,
                         .dropout = mask.dropout});
  return bits_of(lse.read());
}

template <bool Drops>
std::string attention_backward(Backend& b, const Operand& dqkv) {
  const DeviceMask mask(b, mask_of(Drops ? 0.3 : 0.0, kB, DropPlace::attention));
  DeviceArray<bf16> qkv(b, random_values<bf16>(kN * kPacked, 15, 2), {kB, kT, kPacked}, "qkv"),
      out(b, random_values<bf16>(kN * kOut, 16), {kB, kT, kOut}, "out"),
      dout(b, random_values<bf16>(kN * kOut, 17), {kB, kT, kOut}, "dout");
  DeviceArray<float> lse(b, std::vector<float>(kB * kHeads * kT, 3.0f), {kB, kHeads, kT}, "lse"),
      sums(b, {kPacked}, "dqkv_bias");
  b.run(AttentionBackward{.qkv = qkv.tensor,
                          .out = out.tensor,
                          .dout = dout.tensor,
                          .lse = lse.tensor,
                          .heads = kHeads,
                          .kv_heads = kKvHeads,
                          .scale = 0.25f,
                          .dqkv = viewed(dqkv, {kB, kT, kPacked}),
                          .dqkv_bias = sums.tensor,
                          .dropout = mask.dropout});
  return bits_of(sums.read());
}

inline std::string activation_forward(Backend& b, const Operand& y) {
  DeviceArray<bf16> x(b, random_values<bf16>(kN * kC, 18, 6), {kN, kC}, "x");
  b.run(ActivationForward{.x = x.tensor, .y = y});
  return bits_of(x.read());
}

/// `InPlace`: the values, where they are written, go over dy.
template <bool InPlace>
std::string activation_backward(Backend& b, const Operand& dx) {
  const std::vector<bf16> gradient = random_values<bf16>(kN * kC, 20);
  DeviceArray<bf16> x(b, random_values<bf16>(kN * kC, 19, 6), {kN, kC}, "x"), dy(b, gradient, {kN, kC}, "dy");
  DeviceArray<float> sums(b, {kC}, "dbias");
  Tensor from = dy.tensor;
  if (InPlace && dx.t) {
    b.copy_to_device(dx.t.data, gradient.data(), dx.t.bytes());
    from = dx.t;
  }
  b.run(ActivationBackward{.x = x.tensor, .dy = from, .dx = dx, .dbias = sums.tensor});
  return bits_of(sums.read());
}

/// A matrix between two segments that have neither working values nor codes.
inline std::string adamw(Backend& b, const Operand& w) {
  constexpr std::int64_t kBefore = 40, kEnd = kBefore + kN * kC, kSize = kEnd + 24;
  std::vector<float> squares = random_values<float>(kSize, 24, 0.1);
  for (float& x : squares) x *= x;
  DeviceArray<float> param(b, random_values<float>(kSize, 21), {kSize}, "param"),
      grad(b, random_values<float>(kSize, 22, 0.1), {kSize}, "grad"),
      m(b, random_values<float>(kSize, 23, 0.1), {kSize}, "m"), v(b, squares, {kSize}, "v");
  const DeviceState state(b, StepState{.lr = 1e-2f, .clip_factor = 0.75f, .updates = 6});
  Operand codes = w;
  codes.t = {};
  const std::vector<ArenaSegment> segments = {{.begin = 0, .end = kBefore, .values = false},
                                              {.begin = kBefore,
                                               .end = kEnd,
                                               .decays = true,
                                               .values = static_cast<bool>(w.t),
                                               .shift = kBefore,
                                               .codes = w.slot != nullptr ? &codes : nullptr},
                                              {.begin = kEnd, .end = kSize, .values = false}};
  b.run(AdamW{.param = param.tensor,
              .grad = grad.tensor,
              .m = m.tensor,
              .v = v.tensor,
              .working = w.t ? w.t.view({kN * kC}) : Tensor{},
              .segments = segments,
              .state = state.state});
  CHECK(state.read().updates == 7);
  return bits_of(param.read()) + bits_of(grad.read()) + bits_of(m.read()) + bits_of(v.read());
}

}  // namespace producers

/// Every way in which an operand with codes comes to be.
inline const std::vector<Producer>& all_producers() {
  using namespace producers;
  static const std::vector<Producer> all = {
      {"cast of f32", kN, kC, false, cast<float>},
      {"cast of bf16", kN, kC, false, cast<bf16>},
      {"norm", kN, kC, false, norm_forward<0>},
      {"norm behind a branch with dropout", kN, kC, false, norm_forward<1>},
      {"norm behind a branch, in place", kN, kC, false, norm_forward<2>},
      {"norm backward", kN, kC, false, norm_backward<false>},
      {"norm backward with dropout", kN, kC, false, norm_backward<true>},
      {"attention", kN, kOut, true, attention_forward<false>},
      {"attention with dropout", kN, kOut, true, attention_forward<true>},
      {"attention backward", kN, kPacked, true, attention_backward<false>},
      {"attention backward with dropout", kN, kPacked, true, attention_backward<true>},
      {"activation", kN, kC, false, activation_forward},
      {"activation backward", kN, kC, false, activation_backward<false>},
      {"activation backward in place", kN, kC, false, activation_backward<true>},
      {"AdamW", kN, kC, false, adamw}};
  return all;
}

}  // namespace octavo::testing
