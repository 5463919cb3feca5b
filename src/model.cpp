// model.cpp - what exists, where it lies and how much memory that is. The operators are called in
// model_forward.cpp and model_backward.cpp.
#include "model.h"

#include <algorithm>
#include <span>

#include "error.h"

namespace octavo {
namespace {

constexpr std::size_t kAlignment = 256;  // bytes, of every tensor in an arena
// Where counting stops: no machine has so much, and the sum over all categories stays within 64 bits.
constexpr std::size_t kUncountable = std::size_t{1} << 60;
constexpr std::int64_t kLogitElements = 1 << 27;  // the head works on chunks of rows of about this size

std::int64_t head_rows(const ModelPlan& plan) {
  const std::int64_t N = plan.B * plan.T;
  if (plan.head_rows > 0) return std::min(N, plan.head_rows);
  const std::int64_t most = std::max<std::int64_t>(1, kLogitElements / plan.shape.padded_vocab);
  const std::int64_t chunks = (N + most - 1) / most;
  const std::int64_t rows = (N + chunks - 1) / chunks;
  return std::min(N, (rows + 15) / 16 * 16);
}

}  // namespace

Recompute recompute_from(const std::string& name) {
  if (name == "none") return Recompute::none;
  if (name == "activation") return Recompute::activation;
  if (name == "block") return Recompute::block;
  refuse("train.recompute: found \"{}\"; allowed: none, activation, block", name);
}

Tensor Arena::take(DType dtype, std::initializer_list<std::int64_t> dims, const char* name) {
  // A counting arena still gives tensors that say "present", so that one layout function serves both passes.
  Tensor t(base_ == nullptr ? reinterpret_cast<void*>(kAlignment) : base_ + used_, dtype, dims, name);
  used_ = std::min(kUncountable, used_ + (t.bytes() + kAlignment - 1) / kAlignment * kAlignment);
  return t;
}

Allocations::~Allocations() {
  for (void* p : blocks_) backend_.release(p);
}

void* Allocations::allocate(std::size_t bytes) {
  blocks_.reserve(blocks_.size() + 1);  // first: where this fails, no memory is without an owner
  blocks_.push_back(backend_.allocate(bytes));
  return blocks_.back();
}

/// The layout of a model's memory, one function a category; run once to count and once to place.
struct ModelLayout {
  static Activations activations(const ModelPlan& plan, Arena& arena) {
    const ModelShape& s = plan.shape;
    const std::int64_t N = plan.B * plan.T, C = s.channels, F = s.hidden(), W = s.qkv_width();
    const DType act = plan.act, f32 = DType::f32;
    // Without training nothing is kept for backward, so every block may use the same tensors; generation,
    // though, reads the keys and values of earlier positions: qkv stays per block there.
    const bool keep_block = plan.training && plan.recompute != Recompute::block;
    const bool keep_cheap = plan.training && plan.recompute == Recompute::none;

    Activations a;
    LayerActivations shared;
    auto norm1 = [&](LayerActivations& l) { l.norm1.t = arena.take(act, {N, C}, "norm1"); };
    auto norm2 = [&](LayerActivations& l) { l.norm2.t = arena.take(act, {N, C}, "norm2"); };
    auto hidden = [&](LayerActivations& l) { l.hidden.t = arena.take(act, {N, F}, "hidden"); };
    auto qkv = [&](LayerActivations& l) { l.qkv = arena.take(act, {N, W}, "qkv"); };
    auto residual1 = [&](LayerActivations& l) { l.residual1 = arena.take(act, {N, C}, "residual1"); };
    auto body = [&](LayerActivations& l) {
      l.attention.t = arena.take(act, {N, C}, "attention");
      l.lse = arena.take(f32, {plan.B, s.heads, plan.T}, "lse");
      l.residual2 = arena.take(act, {N, C}, "residual2");
      l.fc = arena.take(act, {N, F}, "fc");
      l.mean1 = arena.take(f32, {N}, "mean1");
      l.rstd1 = arena.take(f32, {N}, "rstd1");
      l.mean2 = arena.take(f32, {N}, "mean2");
      l.rstd2 = arena.take(f32, {N}, "rstd2");
    };
    if (!keep_cheap) norm1(shared), norm2(shared), hidden(shared);
    if (!keep_block) body(shared);
    if (plan.training && !keep_block) qkv(shared);
    if (!plan.training) residual1(shared);
    for (std::int64_t i = 0; i < s.layers; ++i) {
      LayerActivations l = shared;
      if (keep_cheap) norm1(l), norm2(l), hidden(l);
      if (keep_block) body(l);
      if (!plan.training || keep_block) qkv(l);
      if (plan.training) residual1(l);
      a.layers.push_back(l);
    }
    a.branch = arena.take(act, {N, C}, "branch");
    // Without training the last residual stream may lie where the others do.
    a.residual = plan.training ? arena.take(act, {N, C}, "residual") : shared.residual1;
    a.mean = arena.take(f32, {N}, "mean");
    a.rstd = arena.take(f32, {N}, "rstd");
    a.final.t = arena.take(act, {N, C}, "final");
    return a;
  }

  static void head(const ModelPlan& plan, Arena& arena, Activations& a) {
    a.logits = arena.take(plan.act, {head_rows(plan), plan.shape.padded_vocab}, "logits");
    a.losses = arena.take(DType::f32, {plan.B * plan.T}, "losses");
  }

  static ActivationGradients gradients(const ModelPlan& plan, Arena& arena) {
    ActivationGradients g;
    if (!plan.training) return g;
    const std::int64_t N = plan.B * plan.T, C = plan.shape.channels;
    g.residual = arena.take(plan.act, {N, C}, "d_residual");
    if (plan.dropout > 0) g.branch.t = arena.take(plan.act, {N, C}, "d_branch");
    g.norm = arena.take(plan.act, {N, C}, "d_norm");
    g.attention = arena.take(plan.act, {N, C}, "d_attention");
    g.qkv.t = arena.take(plan.act, {N, plan.shape.qkv_width()}, "d_qkv");
    g.hidden.t = arena.take(plan.act, {N, plan.shape.hidden()}, "d_hidden");
    return g;
  }

  static Batch batch(const ModelPlan& plan, Arena& arena) {
    Batch b;
    b.tokens = arena.take(DType::i32, {plan.B, plan.T}, "tokens");
    b.targets = arena.take(DType::i32, {plan.B, plan.T}, "targets");
    b.samples = arena.take(DType::i64, {plan.B}, "samples");
    return b;
  }
};

std::vector<MemoryCategory> plan_memory(const ModelPlan& plan) {
  const ParameterTable table = make_parameter_table(plan.shape);
  const std::size_t P = static_cast<std::size_t>(table.arena_size);
  std::vector<MemoryCategory> rows{{"master weights (f32)", P * sizeof(float)}};
  if (plan.act == DType::bf16) rows.push_back({"working weights (bf16)", P * sizeof(bf16)});
  if (plan.training) {
    rows.push_back({"gradients (f32)", P * sizeof(float)});
    rows.push_back({"AdamW moments (f32)", 2 * P * sizeof(float)});
  }
  Arena acts, head, grads, batch_arena;
  Activations a = ModelLayout::activations(plan, acts);
  ModelLayout::head(plan, head, a);
  ModelLayout::gradients(plan, grads);
  ModelLayout::batch(plan, batch_arena);
  rows.push_back({"activations", acts.size()});
  rows.push_back({"logits and losses", head.size()});
  if (plan.training) rows.push_back({"gradients of activations", grads.size()});
  rows.push_back({"batch", batch_arena.size()});
  return rows;
}

std::size_t total_bytes(const std::vector<MemoryCategory>& categories) {
  std::size_t sum = 0;
  for (const MemoryCategory& c : categories) sum += c.bytes;
  return sum;
}

void check_memory(const Backend& backend, const ModelPlan& plan) {
  const std::size_t need = total_bytes(plan_memory(plan)), free = backend.available_bytes();
  if (need > free)
    refuse(
        "memory on {}: the model needs {:.2f} GiB, {:.2f} GiB are free; a smaller train.micro_batch or "
        "train.recompute = \"block\" needs less",
        backend.name(), static_cast<double>(need) / 0x1p30, static_cast<double>(free) / 0x1p30);
}

Model::Model(Backend& backend, const ModelPlan& plan)
    : backend_(backend), plan_(plan), table_(make_parameter_table(plan.shape)), allocations_(backend) {
  if (plan.B < 1 || plan.T < 1 || plan.T > plan.shape.context)
    refuse("train: micro_batch {} and sequence {}; allowed: at least 1, and a sequence up to the context, {}",
           plan.B, plan.T, plan.shape.context);
  check_memory(backend, plan);
  const std::int64_t P = table_.arena_size;
  auto flat = [&](DType dtype, const char* name) {
    return Tensor(allocations_.allocate(static_cast<std::size_t>(P) * size_of(dtype)), dtype, {P}, name);
  };
  auto place = [&](auto layout) {
    Arena count;
    layout(count);
    Arena real(count.size() > 0 ? allocations_.allocate(count.size()) : nullptr);
    return layout(real);
  };
  state_ = static_cast<StepState*>(allocations_.allocate(sizeof(StepState)));
  const StepState fresh;
  backend_.copy_to_device(state_, &fresh, sizeof fresh);
  masters_ = flat(DType::f32, "masters");
  if (plan.act == DType::bf16) working_ = flat(DType::bf16, "working");
  if (plan.training) {
    gradients_ = flat(DType::f32, "gradients");
    m_ = flat(DType::f32, "moment1");
    v_ = flat(DType::f32, "moment2");
  }
  acts_ = place([&](Arena& arena) { return ModelLayout::activations(plan_, arena); });
  place([&](Arena& arena) {
    ModelLayout::head(plan_, arena, acts_);
    return 0;
  });
  grads_ = place([&](Arena& arena) { return ModelLayout::gradients(plan_, arena); });
  batch_ = place([&](Arena& arena) { return ModelLayout::batch(plan_, arena); });
}

void Model::refresh_working() {
  if (working_) backend_.run(Cast{.x = masters_, .y = {.t = working_}});
}

namespace {

Tensor slice(const Tensor& arena, const Parameter& p) {
  const Tensor part = arena.rows(p.offset, p.size());
  Tensor t = p.rank == 1 ? part : part.view({p.rows, p.cols});
  t.name = p.name.c_str();
  return t;
}

}  // namespace

Operand Model::weight(int parameter) const {
  return {.t = slice(working_ ? working_ : masters_, table_[parameter])};
}
Tensor Model::vector(int parameter) const {
  return slice(working_ ? working_ : masters_, table_[parameter]);
}
Tensor Model::norm_vector(int parameter) const {
  return slice(masters_, table_[parameter]);
}
Tensor Model::gradient(int parameter) const {
  return slice(gradients_, table_[parameter]);
}

Dropout Model::dropout(std::size_t layer, DropPlace place, const Batch& batch, Pass pass) const {
  Dropout d;
  if (pass == Pass::evaluate || plan_.dropout == 0) return d;
  d.p = static_cast<float>(plan_.dropout);
  d.seed = plan_.dropout_seed;
  d.layer = static_cast<std::uint32_t>(layer);
  d.place = place;
  d.samples = batch.samples;
  d.state = state_;
  return d;
}

std::vector<PathRow> plan_paths(const Backend& backend, const ModelPlan& plan) {
  const ModelShape& s = plan.shape;
  const std::int64_t N = plan.B * plan.T, C = s.channels, F = s.hidden(), W = s.qkv_width();
  std::vector<PathRow> rows;
  struct Product {
    const char* name;
    std::int64_t out, in, rows;
  };
  for (const Product& p : {Product{"qkv", W, C, N}, Product{"proj", C, C, N}, Product{"fc", F, C, N},
                           Product{"out", C, F, N}, Product{"head", s.padded_vocab, C, head_rows(plan)}}) {
    struct Role {
      const char* name;
      std::int64_t m, n, k;
    };
    const Role roles[] = {
        {"fprop", p.rows, p.out, p.in}, {"dgrad", p.rows, p.in, p.out}, {"wgrad", p.out, p.in, p.rows}};
    for (const Role& r : std::span(roles, plan.training ? 3 : 1)) {
      const Support yes = backend.supports({.op = "matmul", .dtype = plan.act, .m = r.m, .n = r.n, .k = r.k});
      rows.push_back(
          {std::string(p.name) + " " + r.name, fmt::format("{}x{}x{}", r.m, r.n, r.k), yes.path, yes.reason});
    }
  }
  const Support attention = backend.supports(
      {.op = "attention", .dtype = plan.act, .head_size = s.head_size(), .dropout = plan.dropout > 0});
  rows.push_back({"attention", fmt::format("B{} H{} T{} D{}", plan.B, s.heads, plan.T, s.head_size()),
                  attention.path, attention.reason});
  return rows;
}

}  // namespace octavo
