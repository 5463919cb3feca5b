// model.h - the GPT, written once: it knows neither its precision nor its device.
//
// forward() in model_forward.cpp is one list of operator calls, backward() in model_backward.cpp is its
// mirror. What exists in which type, where it lies and what is recomputed is decided here, once, by the plan.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend.h"
#include "parameters.h"
#include "precision/fp8_slots.h"

namespace octavo {

/// What backward redoes instead of keeping: nothing; the outputs of norms and of the activation (cheap); or a
/// whole block from the residual stream that enters it.
enum class Recompute : std::uint8_t { none, activation, block };
Recompute recompute_from(const std::string& name);

/// Everything that fixes the model's memory and its sequence of operators.
struct ModelPlan {
  ModelShape shape;
  DType act = DType::bf16;    // type of activations and of the working weights
  std::int64_t B = 1, T = 1;  // micro-batch and sequence length
  Recompute recompute = Recompute::none;
  bool training = true;  // false: no gradients and no moments (eval, generate)
  double dropout = 0;
  std::uint64_t dropout_seed = 0;
  std::int64_t head_rows = 0;  // rows whose logits exist at a time; 0: as many as make about 128 Mi logits
  Fp8Plan fp8;                 // what runs on FP8 codes; act is bf16 then
};

/// One line of the memory table: bytes of a category, known before anything is allocated.
struct MemoryCategory {
  std::string name;
  std::size_t bytes;
};

/// Hands out consecutive pieces of one allocation, or only counts them.
class Arena {
 public:
  explicit Arena(void* base = nullptr) : base_(static_cast<char*>(base)) {}
  Tensor take(DType dtype, std::initializer_list<std::int64_t> dims, const char* name);
  std::size_t size() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

/// Memory of a backend that is given back together, also where a later allocation fails.
class Allocations {
 public:
  explicit Allocations(Backend& backend) : backend_(backend) {}
  ~Allocations();
  Allocations(const Allocations&) = delete;
  Allocations& operator=(const Allocations&) = delete;
  void* allocate(std::size_t bytes);

 private:
  Backend& backend_;
  std::vector<void*> blocks_;
};

/// How the weights lie in their working forms: what the products read.
struct WorkingLayout {
  std::int64_t size = 0;               // elements of the working arena
  std::vector<std::int64_t> offsets;   // of each parameter in it; -1: its values are not read
  std::vector<ArenaSegment> segments;  // of the optimizer: cover the arena in order
  std::vector<int> coded;              // parameters that are read as FP8, each a segment of its own
};

/// A micro-batch in backend memory.
struct Batch {
  Tensor tokens;   // [B,T] i32
  Tensor targets;  // [B,T] i32, -1: not counted
  Tensor samples;  // [B] i64, global index of each sequence
};

/// What forward leaves for backward in one block. Tensors that are recomputed are shared by all blocks.
struct LayerActivations {
  Tensor residual1;     // [N,C] the stream entering the block
  Tensor mean1, rstd1;  // [N]
  Operand norm1;        // [N,C]
  Tensor qkv;           // [N,(H+2Hkv)D]
  Operand attention;    // [N,C]
  Tensor lse;           // [B,H,T]
  Tensor residual2;     // [N,C] the stream between attention and MLP
  Tensor mean2, rstd2;  // [N]
  Operand norm2;        // [N,C]
  Tensor fc;            // [N,F] before the activation
  Operand hidden;       // [N,F] after it
};
struct Activations {
  std::vector<LayerActivations> layers;
  Tensor branch;      // [N,C] output of a block's half, before it joins the stream
  Tensor residual;    // [N,C] the stream after the last block
  Tensor mean, rstd;  // [N]
  Operand final;      // [N,C] what the head reads
  Tensor logits;      // [head_rows,Vp] logits, then their gradient
  Tensor losses;      // [N] f32
};
/// Gradients of activations: overwritten block by block.
struct ActivationGradients {
  Tensor residual;   // [N,C] gradient of the stream
  Operand branch;    // [N,C] gradient of a branch; its values only where dropout makes them differ
  Tensor norm;       // [N,C]
  Tensor attention;  // [N,C]
  Operand qkv;       // [N,(H+2Hkv)D]
  Operand hidden;    // [N,F]
};

class Model {
 public:
  /// Allocates everything the plan needs. Throws RequestError where it does not fit.
  Model(Backend& backend, const ModelPlan& plan);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// Logits' producer: runs the network over `batch`; with train, draws dropout masks and keeps what backward
  /// needs.
  enum class Pass : std::uint8_t {
    train,
    recompute,
    evaluate
  };  // recompute: as train, but nothing is counted
  void forward(const Batch& batch, Pass pass);
  /// Head, loss and the whole backward pass after forward(batch, train). Losses of the batch are added to
  /// state->loss_sum. Parameter gradients are += where `accumulate`, else =.
  void backward(const Batch& batch, bool accumulate);
  /// Head and loss after forward(batch, evaluate): losses of the N positions, on the host.
  void losses(const Batch& batch, std::vector<float>& out);

  /// Generation, B = 1: appends tokens at positions [first, first + count) whose predecessors are already
  /// there, and returns the V logits that follow the last one. `tokens` are host ids. first + count <= T.
  void extend(const std::int32_t* tokens, std::int64_t first, std::int64_t count, std::vector<float>& logits);

  /// Working forms of all weights from the masters (after loading or initialising; AdamW keeps them up to
  /// date). `record`: their amaxes count for the next update of the scales, as those of a fresh cast do.
  void refresh_working(bool record);

  const ModelPlan& plan() const { return plan_; }
  const ParameterTable& table() const { return table_; }
  Backend& backend() { return backend_; }
  StepState* state() { return state_; }
  // Flat arenas in backend memory, [table().arena_size] f32; gradients and moments only where the plan
  // trains.
  Tensor masters() const { return masters_; }
  Tensor gradients() const { return gradients_; }
  Tensor moment1() const { return m_; }
  Tensor moment2() const { return v_; }
  /// Room for one micro-batch in backend memory.
  const Batch& batch() const { return batch_; }
  /// Working weights, bf16; absent in fp32 runs.
  Tensor working() const { return working_; }
  /// What the optimizer treats alike, with the working forms to write.
  const std::vector<ArenaSegment>& segments() const { return weights_.segments; }
  Fp8Slots& fp8() { return fp8_; }

 private:
  friend struct ModelLayout;
  struct Range {
    std::int64_t first, count;
  };  // rows of [N, ...] that an operator call works on
  void forward_rows(const Batch& batch, Pass pass, Range rows);
  void block_to_stream2(std::size_t l, const Batch& batch, Pass pass, Range rows);  // attention half
  void mlp_hidden(std::size_t l, Pass pass, Range rows);                            // up to the activation
  void recompute_block(std::size_t l, const Batch& batch);
  void head_and_loss(const Batch& batch, LossMode mode, bool accumulate);
  void backward_block(std::size_t l, const Batch& batch, bool accumulate);
  Dropout dropout(std::size_t layer, DropPlace place, const Batch& batch, Pass pass) const;
  Operand weight(int parameter) const;  // working forms of a matrix
  void place_weights();
  void attach_slots();
  /// The forms of a linear layer's operand that are read, of what lies in `memory`.
  Operand operand(const Operand& memory, std::size_t layer, Linear linear, Fp8Role role) const;
  Tensor vector(int parameter) const;  // working form of a bias of a linear layer
  Tensor norm_vector(int parameter) const;
  Tensor gradient(int parameter) const;

  Backend& backend_;
  ModelPlan plan_;
  ParameterTable table_;
  Allocations allocations_;
  StepState* state_ = nullptr;
  Tensor masters_, gradients_, m_, v_, working_;
  WorkingLayout weights_;
  std::vector<Operand> codes_;  // of each parameter; absent where it is not read as FP8
  Fp8Slots fp8_;
  Activations acts_;
  ActivationGradients grads_;
  Batch batch_;
};

/// The memory a model of this plan takes, by category, without allocating anything.
std::vector<MemoryCategory> plan_memory(const ModelPlan& plan);
/// Throws RequestError where that is more than the backend has free; the message names what would need less.
void check_memory(const Backend& backend, const ModelPlan& plan);
std::size_t total_bytes(const std::vector<MemoryCategory>& categories);

/// A product of a linear layer over `rows` tokens, as Backend::supports() is asked for it.
OpDesc product_of(const ModelShape& shape, Linear linear, Gemm gemm, std::int64_t rows, DType dtype);

/// What runs for each product and operator, and why.
struct PathRow {
  std::string what, shape, path, reason;
};
std::vector<PathRow> plan_paths(const Backend& backend, const ModelPlan& plan);

}  // namespace octavo
