// validate.cpp - the check of every operator's arguments, shared by all backends, so that each refuses the
// same things in the same words: "Operator.field: found ..., allowed: ...".
//
// A wrong argument is an error of the program, not of its user: std::logic_error. Only what the host can see
// is checked; what lies in device memory (token ids, targets, StepState) is not read here.
#include <cmath>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "backend.h"
#include "rng.h"

namespace octavo {

namespace {

std::string shape_text(std::initializer_list<std::int64_t> dims) {
  std::string text = "[";
  for (const std::int64_t d : dims) text.append(text.size() > 1 ? "," : "").append(std::to_string(d));
  return text + "]";
}

std::string text_of(const Tensor& t) {
  if (!t) return "absent";
  std::string text = std::string(name_of(t.dtype)) + " [";
  for (int i = 0; i < t.rank; ++i) text.append(i > 0 ? "," : "").append(std::to_string(t.dim(i)));
  return text + "]";
}

bool is_act(DType t) {
  return t == DType::f32 || t == DType::bf16;
}

/// The checks of one operator's fields.
class Check {
 public:
  explicit Check(const char* op) : op_(op) {}

  [[noreturn]] void wrong(const char* field, const std::string& found, const std::string& allowed) const {
    throw std::logic_error(std::string(op_) + "." + field + ": found " + found + ", allowed: " + allowed);
  }

  void require(bool condition, const char* field, const std::string& found,
               const std::string& allowed) const {
    if (!condition) wrong(field, found, allowed);
  }

  /// A present tensor of this type and shape.
  void tensor(const char* field, const Tensor& t, DType type,
              std::initializer_list<std::int64_t> dims) const {
    bool same = t && t.dtype == type && t.rank == static_cast<int>(dims.size());
    int i = 0;
    for (const std::int64_t d : dims) same = same && t.dim(i++) == d;
    require(same, field, text_of(t), std::string(name_of(type)) + " " + shape_text(dims));
  }
  void optional(const char* field, const Tensor& t, DType type,
                std::initializer_list<std::int64_t> dims) const {
    if (t) tensor(field, t, type, dims);
  }
  void absent(const char* field, const Tensor& t, const char* why) const {
    require(!t, field, text_of(t), std::string("absent, ") + why);
  }
  void same(const char* field, const Tensor& t, const Tensor& like) const {
    bool equal = t && t.dtype == like.dtype && t.rank == like.rank;
    for (int i = 0; equal && i < t.rank; ++i) equal = t.dim(i) == like.dim(i);
    require(equal, field, text_of(t), text_of(like));
  }

  /// A present tensor of this rank, no dimension of which is zero.
  void rank(const char* field, const Tensor& t, int rank) const {
    bool good = t && t.rank == rank;
    for (int i = 0; good && i < rank; ++i) good = t.dim(i) > 0;
    require(good, field, text_of(t), "rank " + std::to_string(rank) + ", every dimension at least 1");
  }
  /// As rank(), of f32 or bf16: the tensor that fixes the type and the sizes of the others.
  void act(const char* field, const Tensor& t, int rank) const {
    this->rank(field, t, rank);
    require(is_act(t.dtype), field, text_of(t), "f32 or bf16");
  }
  void type(const char* field, const Tensor& t, DType type) const {
    require(t.dtype == type, field, text_of(t), name_of(type));
  }

  /// The forms that a producer writes of an operand of [rows,columns]: values of the type and shape of `like`
  /// (any rank), codes of a bf16 tensor. At least one form, except where it is `optional`.
  void forms(const char* field, const Operand& x, const Tensor& like, std::int64_t rows, std::int64_t columns,
             bool optional = false) const {
    if (!optional) require(static_cast<bool>(x), field, "absent", "values or FP8 codes");
    if (x.t) same(field, x.t, like);
    if (x.q || x.q_t)
      require(like.dtype == DType::bf16, field, "FP8 codes of f32 values", "codes of bf16 values");
    codes(field, x, rows, columns);
  }
  void codes(const char* field, const Operand& x, std::int64_t rows, std::int64_t columns) const {
    if (!x.q && !x.q_t) return require(x.slot == nullptr, field, "a slot without codes", "codes, or no slot");
    require(x.slot != nullptr, field, "FP8 codes without a slot", "a slot with their scale");
    const Fp8Slot& slot = *x.slot;
    require(is_fp8(slot.format), field, name_of(slot.format), "a slot of e4m3 or e5m2");
    require(slot.scale && slot.scale_inv && slot.amax && slot.own_amax && slot.saturated && slot.underflowed,
            field, "a slot that is not placed", "memory for all its numbers");
    this->optional(field, x.q, slot.format, {rows, columns});
    this->optional(field, x.q_t, slot.format, {columns, rows});
  }

  void state(const StepState* s) const { require(s != nullptr, "state", "none", "a StepState"); }

  void positive(const char* field, std::int64_t value) const {
    require(value > 0, field, std::to_string(value), "at least 1");
  }
  void within(const char* field, double value, double low, double below) const {
    require(value >= low && value < below, field, std::to_string(value),
            std::to_string(low) + " up to and without " + std::to_string(below));
  }
  void finite(const char* field, double value) const {
    require(std::isfinite(value) && value >= 0, field, std::to_string(value), "finite, at least 0");
  }

  void dropout(const Dropout& d, std::int64_t sequences) const {
    // written so that NaN fails
    require(d.p >= 0 && d.p < 1 && dropout_threshold(d.p) < 256, "dropout.p", std::to_string(d.p),
            "0 to 0.998, in steps of 1/256");
    if (!(d.p > 0)) return;
    tensor("dropout.samples", d.samples, DType::i64, {sequences});
    require(d.state != nullptr, "dropout.state", "none", "a StepState");
    require(d.layer < 1u << 20, "dropout.layer", std::to_string(d.layer), "below 1048576");
  }
  /// The same for [N,C] tensors of sequences of T positions.
  void dropout(const Dropout& d, std::int64_t rows, std::int64_t positions) const {
    if (d.p > 0)
      require(positions > 0 && rows % positions == 0, "T", std::to_string(positions),
              "a divisor of N = " + std::to_string(rows));
    dropout(d, d.p > 0 ? rows / positions : 0);
  }

 private:
  const char* op_;
};

/// Sizes of an attention operator, from its packed qkv.
struct AttentionSizes {
  std::int64_t B, T, width, D;
};

template <class Op>
AttentionSizes check_attention(const Check& check, const Op& op) {
  check.positive("heads", op.heads);
  check.positive("kv_heads", op.kv_heads);
  check.require(op.heads % op.kv_heads == 0, "kv_heads", std::to_string(op.kv_heads),
                "a divisor of heads = " + std::to_string(op.heads));
  check.require(op.heads < 1 << 16, "heads", std::to_string(op.heads), "below 65536");
  const std::int64_t packed = op.heads + 2 * op.kv_heads;
  check.act("qkv", op.qkv, op.qkv.rank == 4 ? 4 : 3);
  if (op.qkv.rank == 4)
    check.require(op.qkv.dim(2) == packed, "qkv", text_of(op.qkv),
                  "heads + 2 kv_heads = " + std::to_string(packed) + " packed heads");
  else
    check.require(op.qkv.dim(2) % packed == 0, "qkv", text_of(op.qkv),
                  "a width divisible by heads + 2 kv_heads = " + std::to_string(packed));
  check.require(std::isfinite(op.scale) && op.scale > 0, "scale", std::to_string(op.scale),
                "finite, above 0");
  const std::int64_t B = op.qkv.dim(0), T = op.qkv.dim(1), width = op.qkv.numel() / (B * T);
  check.tensor("lse", op.lse, DType::f32, {B, op.heads, T});
  check.dropout(op.dropout, B);
  return {B, T, width, width / packed};
}

}  // namespace

void validate(const EmbeddingForward& op) {
  const Check check("EmbeddingForward");
  check.rank("tokens", op.tokens, 2);
  check.type("tokens", op.tokens, DType::i32);
  check.act("wte", op.wte, 2);
  const std::int64_t B = op.tokens.dim(0), T = op.tokens.dim(1), C = op.wte.dim(1);
  check.rank("wpe", op.wpe, 2);
  check.require(op.wpe.dtype == op.wte.dtype && op.wpe.dim(0) >= T && op.wpe.dim(1) == C, "wpe",
                text_of(op.wpe),
                std::string(name_of(op.wte.dtype)) + " " + shape_text({T, C}) + " or more rows");
  check.tensor("x", op.x, op.wte.dtype, {B * T, C});
  check.dropout(op.dropout, B);
}

void validate(const EmbeddingBackward& op) {
  const Check check("EmbeddingBackward");
  check.rank("tokens", op.tokens, 2);
  check.type("tokens", op.tokens, DType::i32);
  check.rank("dwte", op.dwte, 2);
  check.type("dwte", op.dwte, DType::f32);
  const std::int64_t B = op.tokens.dim(0), T = op.tokens.dim(1), C = op.dwte.dim(1);
  check.rank("dwpe", op.dwpe, 2);
  check.require(op.dwpe.dtype == DType::f32 && op.dwpe.dim(0) >= T && op.dwpe.dim(1) == C, "dwpe",
                text_of(op.dwpe), "f32 " + shape_text({T, C}) + " or more rows");
  check.act("dx", op.dx, 2);
  check.tensor("dx", op.dx, op.dx.dtype, {B * T, C});
  check.dropout(op.dropout, B);
}

void validate(const NormForward& op) {
  const Check check("NormForward");
  check.act("x", op.x, 2);
  const std::int64_t N = op.x.dim(0), C = op.x.dim(1);
  if (op.branch) {
    check.same("branch", op.branch, op.x);
    check.same("residual", op.residual, op.x);
    check.dropout(op.dropout, N, op.T);
  } else {
    check.absent("residual", op.residual, "because there is no branch");
    check.require(op.dropout.p == 0, "dropout.p", std::to_string(op.dropout.p),
                  "0, because there is no branch");
  }
  check.forms("y", op.y, op.x, N, C, /*optional=*/true);
  if (op.y) {
    check.tensor("gain", op.gain, DType::f32, {C});
    check.tensor("bias", op.bias, DType::f32, {C});
    check.tensor("mean", op.mean, DType::f32, {N});
    check.tensor("rstd", op.rstd, DType::f32, {N});
    check.finite("eps", static_cast<double>(op.eps));
  } else {
    check.require(static_cast<bool>(op.branch), "y", "absent", "present, because there is no branch");
    const char* why = "because y is absent";
    check.absent("gain", op.gain, why);
    check.absent("bias", op.bias, why);
    check.absent("mean", op.mean, why);
    check.absent("rstd", op.rstd, why);
  }
}

void validate(const NormBackward& op) {
  const Check check("NormBackward");
  check.act("dy", op.dy, 2);
  const std::int64_t N = op.dy.dim(0), C = op.dy.dim(1);
  check.same("residual", op.residual, op.dy);
  check.tensor("gain", op.gain, DType::f32, {C});
  check.tensor("mean", op.mean, DType::f32, {N});
  check.tensor("rstd", op.rstd, DType::f32, {N});
  check.same("dresidual", op.dresidual, op.dy);
  check.tensor("dgain", op.dgain, DType::f32, {C});
  check.tensor("dbias", op.dbias, DType::f32, {C});
  check.forms("dbranch", op.dbranch, op.dy, N, C, /*optional=*/true);
  if (op.dbranch)
    check.dropout(op.dropout, N, op.T);
  else
    check.require(op.dropout.p == 0, "dropout.p", std::to_string(op.dropout.p),
                  "0, because dbranch is absent");
  check.optional("dbranch_bias", op.dbranch_bias, DType::f32, {C});
}

void validate(const Matmul& op) {
  const Check check("Matmul");
  if (!op.codes) {
    check.act("a", op.a.t, 2);
    check.rank("b", op.b.t, 2);
    check.type("b", op.b.t, op.a.t.dtype);
  }
  const auto sizes = [&](const char* field, const Operand& x, bool reads_transposed) {
    if (!op.codes) return std::pair(x.t.dim(0), x.t.dim(1));
    check.require(x.q || (reads_transposed && x.q_t), field, "no FP8 codes",
                  reads_transposed ? "codes, plain or transposed" : "codes");
    check.rank(field, x.q ? x.q : x.q_t, 2);
    const std::int64_t rows = x.q ? x.q.dim(0) : x.q_t.dim(1), columns = x.q ? x.q.dim(1) : x.q_t.dim(0);
    check.codes(field, x, rows, columns);
    return std::pair(rows, columns);
  };
  const auto [a0, a1] = sizes("a", op.a, op.gemm == Gemm::wgrad);
  const auto [b0, b1] = sizes("b", op.b, op.gemm != Gemm::fprop);
  if (op.codes)
    check.require(op.a.slot->format == DType::e4m3 || op.b.slot->format == DType::e4m3, "b",
                  "two e5m2 factors", "at most one");
  const DType act = op.codes ? DType::bf16 : op.a.t.dtype;
  switch (op.gemm) {
    case Gemm::fprop:
      check.require(b1 == a1, "b", shape_text({b0, b1}), std::to_string(a1) + " columns (I), as a has");
      check.tensor("d", op.d, act, {a0, b0});
      check.optional("bias", op.bias, act, {b0});
      break;
    case Gemm::dgrad:
      check.require(b0 == a1, "b", shape_text({b0, b1}), std::to_string(a1) + " rows (O), as a has columns");
      check.tensor("d", op.d, act, {a0, b1});
      break;
    case Gemm::wgrad:
      check.require(b0 == a0, "b", shape_text({b0, b1}), std::to_string(a0) + " rows (N), as a has");
      check.tensor("d", op.d, DType::f32, {a1, b1});
      break;
    default:
      check.wrong("gemm", std::to_string(static_cast<int>(op.gemm)), "fprop, dgrad, wgrad");
  }
  if (op.gemm != Gemm::fprop) check.absent("bias", op.bias, "outside fprop");
  if (op.gemm != Gemm::wgrad) check.require(!op.accumulate, "accumulate", "true", "false outside wgrad");
}

void validate(const BiasGradient& op) {
  const Check check("BiasGradient");
  check.act("dy", op.dy, 2);
  check.tensor("db", op.db, DType::f32, {op.dy.dim(1)});
}

void validate(const AttentionForward& op) {
  const Check check("AttentionForward");
  const AttentionSizes s = check_attention(check, op);
  check.tensor("out", op.out.t, op.qkv.dtype, {s.B, s.T, op.heads * s.D});
  check.forms("out", op.out, op.out.t, s.B * s.T, op.heads * s.D);
  check.require(op.first_query >= 0 && op.first_query < s.T, "first_query", std::to_string(op.first_query),
                "0 to T - 1 = " + std::to_string(s.T - 1));
  check.require(op.first_query == 0 || op.out.slot == nullptr || (s.B == 1 && !op.out.q_t), "first_query",
                std::to_string(op.first_query),
                "0 where codes are those of several sequences, or transposed");
}

void validate(const AttentionBackward& op) {
  const Check check("AttentionBackward");
  const AttentionSizes s = check_attention(check, op);
  check.tensor("out", op.out, op.qkv.dtype, {s.B, s.T, op.heads * s.D});
  check.tensor("dout", op.dout, op.qkv.dtype, {s.B, s.T, op.heads * s.D});
  check.same("dqkv", op.dqkv.t, op.qkv);
  check.forms("dqkv", op.dqkv, op.qkv, s.B * s.T, s.width);
  check.optional("dqkv_bias", op.dqkv_bias, DType::f32, {s.width});
}

void validate(const ActivationForward& op) {
  const Check check("ActivationForward");
  check.act("x", op.x, 2);
  check.forms("y", op.y, op.x, op.x.dim(0), op.x.dim(1));
}

void validate(const ActivationBackward& op) {
  const Check check("ActivationBackward");
  check.act("x", op.x, 2);
  check.same("dy", op.dy, op.x);
  check.forms("dx", op.dx, op.x, op.x.dim(0), op.x.dim(1));
  check.optional("dbias", op.dbias, DType::f32, {op.x.dim(1)});
}

void validate(const CrossEntropy& op) {
  const Check check("CrossEntropy");
  check.act("logits", op.logits, 2);
  const std::int64_t N = op.logits.dim(0), padded = op.logits.dim(1);
  check.tensor("targets", op.targets, DType::i32, {N});
  check.require(op.vocab >= 1 && op.vocab <= padded, "vocab", std::to_string(op.vocab),
                "1 to Vp = " + std::to_string(padded));
  check.tensor("losses", op.losses, DType::f32, {N});
  if (op.mode == LossMode::loss_and_gradient) check.state(op.state);
}

void validate(const LossSum& op) {
  const Check check("LossSum");
  check.rank("losses", op.losses, 1);
  check.type("losses", op.losses, DType::f32);
  check.state(op.state);
}

void validate(const GradientNorm& op) {
  const Check check("GradientNorm");
  check.rank("grad", op.grad, 1);
  check.type("grad", op.grad, DType::f32);
  check.finite("clip", static_cast<double>(op.clip));
  check.state(op.state);
}

void validate(const AdamW& op) {
  const Check check("AdamW");
  check.rank("param", op.param, 1);
  check.type("param", op.param, DType::f32);
  const std::int64_t P = op.param.dim(0);
  check.tensor("grad", op.grad, DType::f32, {P});
  check.tensor("m", op.m, DType::f32, {P});
  check.tensor("v", op.v, DType::f32, {P});
  if (op.working) {
    check.rank("working", op.working, 1);
    check.type("working", op.working, DType::bf16);
  }
  std::int64_t end = 0;
  for (const ArenaSegment& s : op.segments) {
    check.require(s.begin == end && s.end > s.begin, "segments", shape_text({s.begin, s.end}),
                  "a segment that begins at " + std::to_string(end) + " and is not empty");
    end = s.end;
    if (op.working && s.values)
      check.require(s.begin >= s.shift && s.end - s.shift <= op.working.dim(0), "segments",
                    "working values at " + shape_text({s.begin - s.shift, s.end - s.shift}),
                    "within the " + std::to_string(op.working.dim(0)) + " of working");
    if (s.codes == nullptr) continue;
    const Tensor& q = s.codes->q ? s.codes->q : s.codes->q_t;
    check.require(q && q.rank == 2 && q.numel() <= s.end - s.begin, "segments", "codes " + text_of(q),
                  "a matrix within its segment of " + std::to_string(s.end - s.begin));
    const bool plain = static_cast<bool>(s.codes->q);
    check.codes("segments", *s.codes, q.dim(plain ? 0 : 1), q.dim(plain ? 1 : 0));
    check.absent("segments", s.codes->t, "because the values go to working");
    check.require(op.working || !s.values, "segments", "values of a matrix with codes, but no working",
                  "working, or a segment without values");
  }
  check.require(end == P, "segments", "an end at " + std::to_string(end),
                "an end at P = " + std::to_string(P));
  check.within("beta1", static_cast<double>(op.beta1), 0, 1);
  check.within("beta2", static_cast<double>(op.beta2), 0, 1);
  check.finite("eps", static_cast<double>(op.eps));
  check.finite("weight_decay", static_cast<double>(op.weight_decay));
  check.state(op.state);
}

void validate(const Cast& op) {
  const Check check("Cast");
  check.require(op.x && op.x.numel() > 0 && is_act(op.x.dtype), "x", text_of(op.x), "f32 or bf16, not empty");
  if (op.y.slot != nullptr || op.y.q || op.y.q_t) {
    check.rank("x", op.x, 2);
    Tensor rounded = op.x;
    rounded.dtype = DType::bf16;
    return check.forms("y", op.y, rounded, op.x.dim(0), op.x.dim(1));
  }
  Tensor like = op.x;  // y has x's shape, in either type
  if (op.y.t.dtype == DType::f32 || op.y.t.dtype == DType::bf16) like.dtype = op.y.t.dtype;
  check.same("y", op.y.t, like);
}

void validate(const Fp8Update& op) {
  const Check check("Fp8Update");
  check.rank("amax", op.amax, 1);
  check.type("amax", op.amax, DType::i32);
  const std::int64_t slots = op.amax.dim(0);
  check.tensor("scale", op.scale, DType::f32, {slots});
  check.tensor("scaled_max", op.scaled_max, DType::f32, {slots});
  check.tensor("last", op.last, DType::f32, {slots});
  check.tensor("frozen", op.frozen, DType::i32, {slots});
  if (op.scaling == Fp8Scaling::delayed) {
    check.rank("history", op.history, 2);
    check.tensor("history", op.history, DType::f32, {slots, op.history.dim(1)});
  } else {
    check.absent("history", op.history, "under current scaling");
  }
  check.state(op.state);
}

}  // namespace octavo
