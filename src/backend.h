// backend.h - the whole contract between the model and a device: about twenty operators.
//
// The model is a list of `backend.run(Op{...})`. Each operator is a struct of named fields whose comments are
// its contract: shapes, units, and for every output `=` (overwritten) or `+=` (accumulated). run() checks the
// fields with the shared validate(), so that both backends refuse the same things with the same words, and
// then does the work.
//
// Letters: B sequences, T positions, N = B*T rows, C channels, H query heads, Hkv key/value heads, D head
// size,
//          F = 4C hidden width of the MLP, V vocabulary, Vp padded vocabulary, O outputs and I inputs of a
//          linear layer.
// Types:   "act" is the type of activations: f32 in fp32 runs, bf16 otherwise. Statistics, gains and biases
// of norms,
//          and parameter gradients are f32 always. Weights and biases of linear layers, wte and wpe have type
//          act.
// A fused operator computes from values rounded to their stored type, so that it gives the bits of its plain
// parts. Reductions run over fixed blocks in index order: results do not depend on the number of threads.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "precision/fp8_recipe.h"
#include "tensor.h"

namespace octavo {

/// Scalars of one optimizer step. They live in backend memory, so that a captured step reads and writes them
/// there.
struct StepState {
  // written by the host before the step
  std::int64_t step = 0;  // 1-based optimizer step
  float lr = 0;           // learning rate of this step
  float grad_scale = 0;   // 1 / count of real targets in the global step
  // written by operators
  double loss_sum = 0;       // sum of the losses of all real targets so far in this step
  float grad_norm = 0;       // global L2 norm of the gradients
  float clip_factor = 0;     // min(1, clip / grad_norm)
  std::int32_t skip = 0;     // 1: loss or gradient was not finite, AdamW leaves everything unchanged
  std::int64_t updates = 0;  // AdamW updates done so far (counts only steps that were not skipped)
};

/// Where a dropout mask is drawn: separates the keys.
enum class DropPlace : std::uint32_t { embedding = 0, attention = 1, attention_out = 2, mlp_out = 3 };

/// A dropout mask, never stored: element (sample, row, column) is kept iff byte `column % 16` of
/// philox(key(seed, layer, place, head), column / 16, row, sample, step) >= threshold, where threshold =
/// round(256 p); kept values are multiplied by 256 / (256 - threshold). `row` is the position t (for
/// attention the query position, the column being the key position); `sample` is the low 32 bits of the
/// sequence's global index.
struct Dropout {
  float p = 0;  // 0: no dropout, the other fields are not read
  std::uint64_t seed = 0;
  std::uint32_t layer = 0;
  DropPlace place = DropPlace::embedding;
  Tensor samples;                    // [B] i64, global index of each sequence
  const StepState* state = nullptr;  // its `step` is read
};

/// x = dropout(wte[token] + wpe[t]); the sum is rounded to act before dropout.
struct EmbeddingForward {
  Tensor tokens;  // [B,T] i32, every id < V
  Tensor wte;     // [Vp,C] act
  Tensor wpe;     // [>=T,C] act
  Tensor x;       // [N,C] act  =
  Dropout dropout;
};
/// dwte[token] += dropout'(dx);  dwpe[t] (+)= sum over sequences of dropout'(dx). Rows of dwpe beyond T get
/// +0.
struct EmbeddingBackward {
  Tensor tokens;  // [B,T] i32
  Tensor dx;      // [N,C] act
  Tensor dwte;    // [Vp,C] f32; added to where `accumulate_wte` (the head wrote it), else =
  Tensor dwpe;    // [>=T,C] f32; += where `accumulate_wpe`, else =
  bool accumulate_wte = true;
  bool accumulate_wpe = false;
  Dropout dropout;
};

/// r = x + dropout(branch) (rounded to act);  mean, rstd of each row of r;  y = (r - mean) * rstd * gain +
/// bias. Without a branch r = x. Statistics in f32 from the rounded r. A forward pass that only needs r
/// passes y absent, with gain, bias, mean, rstd absent as well.
struct NormForward {
  Tensor x;           // [N,C] act
  Tensor branch;      // [N,C] act, optional
  Dropout dropout;    // of the branch
  Tensor residual;    // [N,C] act  = r; may be x itself; absent where there is no branch
  Tensor gain, bias;  // [C] f32
  Operand y;          // [N,C] act  =
  Tensor mean, rstd;  // [N] f32    =
  float eps = 1e-5f;
  std::int64_t T = 0;  // positions per sequence (for dropout)
};
/// dr (+)= rstd * (g - mean(g) - xhat * mean(g * xhat)),  g = dy * gain, xhat = (r - mean) * rstd  (Ba,
/// Kiros, Hinton 2016); then dbranch = dropout'(dr) and its column sums: the gradient, and the bias gradient,
/// of the branch that was added to the residual stream just before this norm.
struct NormBackward {
  Tensor dy;          // [N,C] act
  Tensor residual;    // [N,C] act, r of the forward pass
  Tensor gain;        // [C] f32
  Tensor mean, rstd;  // [N] f32
  Tensor dresidual;   // [N,C] act; += where `accumulate_dresidual`, else =
  bool accumulate_dresidual = true;
  Tensor dgain, dbias;  // [C] f32; += where `accumulate`, else =
  Operand dbranch;  // [N,C] act  = ; its values are absent where they equal dresidual's or nobody reads them
  Dropout dropout;  // of the branch
  Tensor dbranch_bias;  // [C] f32; column sums of dropout'(dr); optional; (+)= as dgain
  bool accumulate = false;
  std::int64_t T = 0;
};

/// The three products of a linear layer y = x w^T + bias with w stored [O,I], row-major throughout.
enum class Gemm : std::uint8_t {
  fprop,  // d[N,O] =  a[N,I] b[O,I]^T + bias[O]     a = x,  b = w
  dgrad,  // d[N,I] =  a[N,O] b[O,I]                 a = dy, b = w
  wgrad,  // d[O,I] (+)= a[N,O]^T b[N,I]             a = dy, b = x;   d is f32
};
/// With `codes` the factors are the FP8 codes and the sum is multiplied by both inverse scales before the
/// bias: a.q and b.q, or, where the device wants the inner dimension contiguous, b.q_t in dgrad and a.q_t,
/// b.q_t in wgrad. Codes are never both E5M2. Products and sums are in f32.
struct Matmul {
  Gemm gemm = Gemm::fprop;
  Operand a, b;        // act
  bool codes = false;  // read the codes instead of the values
  Tensor bias;         // [O] act, fprop only, optional; added in f32 before rounding
  Tensor d;            // act (wgrad: f32)  = ; wgrad += where `accumulate`
  bool accumulate = false;
};

/// db[o] (+)= sum over rows of dy[n][o].
struct BiasGradient {
  Tensor dy;  // [N,O] act
  Tensor db;  // [O] f32
  bool accumulate = false;
};

/// Causal softmax attention, out = dropout(softmax(scale * q k^T)) v, lse = log sum exp of the scaled scores.
/// qkv is packed (B, T, H + 2 Hkv, D): query heads, then key heads, then value heads. No T x T matrix is
/// stored.
struct AttentionForward {
  Tensor qkv;  // [B,T,(H+2Hkv),D] act
  std::int64_t heads = 0, kv_heads = 0;
  float scale = 0;
  Operand out;  // [B,T,H*D] act  =
  Tensor lse;   // [B,H,T] f32    =
  Dropout dropout;
  std::int64_t first_query =
      0;  // generation: rows t < first_query of out and lse are neither computed nor written
};
/// Source: Dao, "FlashAttention-2", 2023, algorithm 2. Deterministic: one order of accumulation.
struct AttentionBackward {
  Tensor qkv;        // as in forward
  Tensor out, dout;  // [B,T,H*D] act
  Tensor lse;        // [B,H,T] f32
  std::int64_t heads = 0, kv_heads = 0;
  float scale = 0;
  Operand dqkv;             // [B,T,(H+2Hkv),D] act  =
  Tensor dqkv_bias;         // [(H+2Hkv)*D] f32, column sums of dqkv (as rounded); optional
  bool accumulate = false;  // dqkv_bias: += or =
  Dropout dropout;
};

/// y = gelu(x), tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))  (Hendrycks, Gimpel 2016).
struct ActivationForward {
  Tensor x;   // [N,F] act
  Operand y;  // [N,F] act  =
};
/// dx = dy * gelu'(x);  dbias (+)= column sums of dx (as rounded).
struct ActivationBackward {
  Tensor x;      // [N,F] act
  Tensor dy;     // [N,F] act
  Operand dx;    // [N,F] act  = ; may be dy itself
  Tensor dbias;  // [F] f32, optional
  bool accumulate = false;
};

enum class LossMode : std::uint8_t { loss_only, loss_and_gradient };
/// losses[n] = logsumexp(logits[n][0..V)) - logits[n][target];  dlogits = (softmax - onehot) *
/// state->grad_scale, in place. target -1: loss 0 and a zero gradient row. Columns [V, Vp) are padding: not
/// part of the softmax, gradient 0.
struct CrossEntropy {
  LossMode mode = LossMode::loss_only;
  Tensor logits;           // [N,Vp] act; with loss_and_gradient overwritten by dlogits
  Tensor targets;          // [N] i32
  std::int64_t vocab = 0;  // V
  Tensor losses;           // [N] f32  =
  const StepState* state = nullptr;
};
/// state->loss_sum += sum of losses, in double, in index order.
struct LossSum {
  Tensor losses;  // [N] f32
  StepState* state = nullptr;
};

/// grad_norm = sqrt(sum g^2), from fixed blocks summed in index order; clip_factor = min(1, clip / grad_norm)
/// (1 where clip is 0); skip = 1 where grad_norm or loss_sum is not finite.
struct GradientNorm {
  Tensor grad;        // [P] f32
  float clip = 1.0f;  // 0: no clipping
  StepState* state = nullptr;
};

/// One run of parameters with the same treatment.
struct ArenaSegment {
  std::int64_t begin = 0, end = 0;
  bool decays = false;
  bool values = true;              // its values are read in the working type
  std::int64_t shift = 0;          // element i of the arena is element i - shift of AdamW::working
  const Operand* codes = nullptr;  // where it is one matrix that is read as FP8: the codes to write
};
/// AdamW (Loshchilov, Hutter 2019) over one flat arena, unless state->skip:
///   updates += 1;  g = grad * clip_factor;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
///   p -= lr * ( (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps) + decay * p ),  t = updates;
///   working = round(p);  codes = quantise(round(p)).
struct AdamW {
  Tensor param, grad, m, v;                // [P] f32
  Tensor working;                          // bf16, the weights as the products read them; absent in fp32 runs
  std::span<const ArenaSegment> segments;  // cover [0, P) in order
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
  StepState* state = nullptr;
};

/// y = x in y's forms: values rounded to nearest even, codes of the values as rounded to bf16.
struct Cast {
  Tensor x;   // [n] or, where y has codes, [rows,columns]; f32 or bf16
  Operand y;  // the same shape
};

/// Once a step: takes the folded amaxes into the histories and moves the scales, by precision/fp8_recipe.h;
/// under `current` or where state->skip, histories and scales stay. Then amax = 0.
struct Fp8Update {
  Tensor amax;        // [S] i32, bits of the amaxes folded (and reduced over ranks)  = 0
  Tensor history;     // [S,L] f32; absent under current
  Tensor scale;       // [S] f32
  Tensor scaled_max;  // [S] f32, fp8_scaled_max() of each slot
  Tensor last;        // [S] f32  = the amax that was taken in, for the log
  Tensor frozen;      // [S] i32  = 1 where the scale stayed because of inf or NaN
  Fp8Scaling scaling = Fp8Scaling::delayed;
  Fp8AmaxAlgorithm algorithm = Fp8AmaxAlgorithm::max;
  const StepState* state = nullptr;
};

// Every operator, once. `X(Type)`.
// clang-format off
#define OCTAVO_OPERATORS(X) \
  X(EmbeddingForward) \
  X(EmbeddingBackward) \
  X(NormForward) \
  X(NormBackward) \
  X(Matmul) \
  X(BiasGradient) \
  X(AttentionForward) \
  X(AttentionBackward) \
  X(ActivationForward) \
  X(ActivationBackward) \
  X(CrossEntropy) \
  X(LossSum) \
  X(GradientNorm) \
  X(AdamW) \
  X(Cast) \
  X(Fp8Update)
// clang-format on

#define OCTAVO_DECLARE(Op) \
  void validate(const Op& op);  // throws std::logic_error naming operator, field and shapes
OCTAVO_OPERATORS(OCTAVO_DECLARE)
#undef OCTAVO_DECLARE

/// What is asked of a backend, before anything is allocated: enough to answer "yes" or why not.
struct OpDesc {
  std::string op;  // "matmul", "attention", ...
  DType dtype = DType::f32;
  std::int64_t m = 0, n = 0, k = 0;  // matmul
  std::int64_t head_size = 0;        // attention
  bool dropout = false;
  bool tf32 = false;
};
/// Yes, or the reason as text; `path` says in words what will run. Both stand verbatim in the table of paths.
struct Support {
  bool yes = true;
  std::string path;
  std::string reason;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;         // "cpu", "cuda"
  virtual std::string description() const = 0;  // processor or GPU, arithmetic, threads
  virtual std::string arithmetic() const = 0;  // what bits depend on: instruction sets, versions of libraries
  virtual int threads() const = 0;             // host threads that do the work
  virtual Support supports(const OpDesc& desc) const = 0;

  // Memory of the device. allocate() returns zeroed, 64-byte aligned memory or throws RunError with sizes.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* p) noexcept = 0;
  virtual void copy_to_device(void* device, const void* host, std::size_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* device, std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill_zero(void* p, std::size_t bytes) = 0;
  virtual void synchronize() = 0;
  virtual bool host_readable() const = 0;           // the host may read the device's memory in place
  virtual std::size_t available_bytes() const = 0;  // memory that a new run could take
  virtual std::size_t workspace_bytes() const = 0;  // scratch held by the operators themselves

#define OCTAVO_RUN(Op)     \
  void run(const Op& op) { \
    validate(op);          \
    do_run(op);            \
  }
  OCTAVO_OPERATORS(OCTAVO_RUN)
#undef OCTAVO_RUN

 private:
#define OCTAVO_DO_RUN(Op) virtual void do_run(const Op& op) = 0;
  OCTAVO_OPERATORS(OCTAVO_DO_RUN)
#undef OCTAVO_DO_RUN
};

/// A tensor's f32 values as the host reads them: the memory itself where the host can, else a copy.
class HostCopy {
 public:
  HostCopy(Backend& backend, const Tensor& tensor) : data_(tensor.as<float>()) {
    if (backend.host_readable()) return;
    copy_.resize(static_cast<std::size_t>(tensor.numel()));
    backend.copy_to_host(copy_.data(), tensor.data, tensor.bytes());
    data_ = copy_.data();
  }
  const float* data() const { return data_; }

 private:
  std::vector<float> copy_;
  const float* data_;
};

/// Compute capability of an NVIDIA GPU: 9.0 is major 9, minor 0.
struct Capability {
  int major = 0, minor = 0;
  auto operator<=>(const Capability&) const = default;
};

/// The CPU backend. threads 0: the cores this process may use. With `pretended` it answers supports() for FP8
/// as a GPU of that capability would, so that every fallback can be tested without one.
std::unique_ptr<Backend> make_cpu_backend(int threads, std::optional<Capability> pretended = std::nullopt);

}  // namespace octavo
