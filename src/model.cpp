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

/// A product of y[rows,out] = x[rows,in] w[out,in]^T.
OpDesc product(std::int64_t out, std::int64_t in, Gemm gemm, std::int64_t rows, DType dtype) {
  OpDesc d{.op = "matmul", .dtype = dtype};
  switch (gemm) {
    case Gemm::fprop:
      d.m = rows, d.n = out, d.k = in;
      break;
    case Gemm::dgrad:
      d.m = rows, d.n = in, d.k = out;
      break;
    case Gemm::wgrad:
      d.m = out, d.n = in, d.k = rows;
      break;
  }
  return d;
}

}  // namespace

OpDesc product_of(const ModelShape& s, Linear linear, Gemm gemm, std::int64_t rows, DType dtype) {
  switch (linear) {
    case Linear::qkv:
      return product(s.qkv_width(), s.channels, gemm, rows, dtype);
    case Linear::proj:
      return product(s.channels, s.channels, gemm, rows, dtype);
    case Linear::fc:
      return product(s.hidden(), s.channels, gemm, rows, dtype);
    case Linear::out:
      return product(s.channels, s.hidden(), gemm, rows, dtype);
  }
  return {};
}

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

namespace {

/// A matrix in these forms.
Operand take(Arena& arena, const ModelPlan& plan, Forms forms, DType format, std::int64_t rows,
             std::int64_t columns, const char* name) {
  Operand o;
  if (forms.t) o.t = arena.take(plan.act, {rows, columns}, name);
  if (forms.q) o.q = arena.take(format, {rows, columns}, name);
  if (forms.q_t) o.q_t = arena.take(format, {columns, rows}, name);
  return o;
}

/// The forms that any layer wants of a tensor that all share.
Forms shared_forms(const ModelPlan& plan, Linear linear, Fp8Role role) {
  Forms forms{.t = !plan.fp8.on()};
  for (std::size_t l = 0; l < plan.fp8.layers.size(); ++l)
    forms = forms | plan.fp8.forms(l, linear, role, plan.training);
  return forms;
}

int parameter_of(const LayerParameters& p, Linear linear) {
  switch (linear) {
    case Linear::qkv:
      return p.qkv_weight;
    case Linear::proj:
      return p.proj_weight;
    case Linear::fc:
      return p.fc_weight;
    case Linear::out:
      return p.out_weight;
  }
  return -1;
}

WorkingLayout working_layout(const ModelPlan& plan, const ParameterTable& table) {
  WorkingLayout out;
  const std::size_t count = table.parameters.size();
  std::vector<Forms> forms(count);
  for (std::size_t l = 0; l < table.layers.size(); ++l)
    for (Linear linear : kLinears)
      forms[static_cast<std::size_t>(parameter_of(table.layers[l], linear))] =
          plan.fp8.forms(l, linear, Fp8Role::weight, plan.training);
  for (std::size_t i = 0; i < count; ++i) {
    const Parameter& p = table.parameters[i];
    const std::int64_t end = i + 1 < count ? table.parameters[i + 1].offset : table.arena_size;
    out.offsets.push_back(forms[i].t ? out.size : -1);
    const ArenaSegment segment{.begin = p.offset,
                               .end = end,
                               .decays = p.decays,
                               .values = forms[i].t,
                               .shift = p.offset - out.size};
    if (forms[i].t) out.size += end - p.offset;
    const bool coded = forms[i].codes();
    ArenaSegment* last = out.segments.empty() ? nullptr : &out.segments.back();
    if (last != nullptr && !coded && (out.coded.empty() || out.coded.back() != static_cast<int>(i) - 1) &&
        last->decays == segment.decays && last->values == segment.values && last->shift == segment.shift)
      last->end = end;
    else
      out.segments.push_back(segment);
    if (coded) out.coded.push_back(static_cast<int>(i));
  }
  return out;
}

}  // namespace

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
    // What linear layers read: the forms that one layer wants, or, of shared memory, all of them.
    const auto forms = [&](Linear linear, std::int64_t layer) {
      return layer < 0
                 ? shared_forms(plan, linear, Fp8Role::input)
                 : plan.fp8.forms(static_cast<std::size_t>(layer), linear, Fp8Role::input, plan.training);
    };
    const auto input = [&](Forms f, std::int64_t columns, const char* name) {
      return take(arena, plan, f, DType::e4m3, N, columns, name);
    };
    auto norms_and_hidden = [&](LayerActivations& l, std::int64_t layer) {
      l.norm1 = input(forms(Linear::qkv, layer), C, "norm1");
      l.norm2 = input(forms(Linear::fc, layer), C, "norm2");
      l.hidden = input(forms(Linear::out, layer), F, "hidden");
    };
    auto qkv = [&](LayerActivations& l) { l.qkv = arena.take(act, {N, W}, "qkv"); };
    auto residual1 = [&](LayerActivations& l) { l.residual1 = arena.take(act, {N, C}, "residual1"); };
    auto body = [&](LayerActivations& l, std::int64_t layer) {
      // Attention's backward pass reads the values as well.
      l.attention = input(forms(Linear::proj, layer) | Forms{.t = true}, C, "attention");
      l.lse = arena.take(f32, {plan.B, s.heads, plan.T}, "lse");
      l.residual2 = arena.take(act, {N, C}, "residual2");
      l.fc = arena.take(act, {N, F}, "fc");
      l.mean1 = arena.take(f32, {N}, "mean1");
      l.rstd1 = arena.take(f32, {N}, "rstd1");
      l.mean2 = arena.take(f32, {N}, "mean2");
      l.rstd2 = arena.take(f32, {N}, "rstd2");
    };
    if (!keep_cheap) norms_and_hidden(shared, -1);
    if (!keep_block) body(shared, -1);
    if (plan.training && !keep_block) qkv(shared);
    if (!plan.training) residual1(shared);
    for (std::int64_t i = 0; i < s.layers; ++i) {
      LayerActivations l = shared;
      if (keep_cheap) norms_and_hidden(l, i);
      if (keep_block) body(l, i);
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
    const auto forms = [&](Linear linear) { return shared_forms(plan, linear, Fp8Role::gradient); };
    const auto gradient = [&](Forms f, std::int64_t columns, const char* name) {
      return take(arena, plan, f, plan.fp8.recipe.gradient_format(), N, columns, name);
    };
    // Without dropout the values of a branch's gradient are those of the stream's.
    Forms branch = forms(Linear::proj) | forms(Linear::out);
    branch.t = branch.t && plan.dropout > 0;
    g.branch = gradient(branch, C, "d_branch");
    g.norm = arena.take(plan.act, {N, C}, "d_norm");
    g.attention = arena.take(plan.act, {N, C}, "d_attention");
    g.qkv = gradient(forms(Linear::qkv) | Forms{.t = true}, plan.shape.qkv_width(), "d_qkv");
    g.hidden = gradient(forms(Linear::fc) | Forms{.t = true}, plan.shape.hidden(), "d_hidden");
    return g;
  }

  /// Codes of the weights that are read as FP8; absent for the others.
  static std::vector<Operand> codes(const ModelPlan& plan, const ParameterTable& table, Arena& arena) {
    std::vector<Operand> out(table.parameters.size());
    for (std::size_t l = 0; l < table.layers.size(); ++l)
      for (Linear linear : kLinears) {
        const int i = parameter_of(table.layers[l], linear);
        Forms forms = plan.fp8.forms(l, linear, Fp8Role::weight, plan.training);
        forms.t = false;  // lies in the working arena
        out[static_cast<std::size_t>(i)] =
            take(arena, plan, forms, DType::e4m3, table[i].rows, table[i].cols, table[i].name.c_str());
      }
    return out;
  }

  static Fp8Arrays scales(const ModelPlan& plan, Arena& arena) {
    Fp8Arrays a;
    const std::int64_t S = static_cast<std::int64_t>(fp8_slots(plan.fp8, plan.training).size());
    if (S == 0) return a;
    for (Tensor* t : {&a.scale, &a.scale_inv, &a.scaled_max, &a.last})
      *t = arena.take(DType::f32, {S}, "fp8 scale");
    for (Tensor* t : {&a.amax, &a.own_amax, &a.frozen}) *t = arena.take(DType::i32, {S}, "fp8 amax");
    for (Tensor* t : {&a.saturated, &a.underflowed}) *t = arena.take(DType::i64, {S}, "fp8 counts");
    if (plan.training && plan.fp8.recipe.scaling == Fp8Scaling::delayed)
      a.history = arena.take(DType::f32, {S, plan.fp8.recipe.history}, "fp8 history");
    return a;
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
  if (plan.act == DType::bf16)
    rows.push_back({"working weights (bf16)",
                    static_cast<std::size_t>(working_layout(plan, table).size) * sizeof(bf16)});
  Arena codes, scales;
  ModelLayout::codes(plan, table, codes);
  ModelLayout::scales(plan, scales);
  if (plan.fp8.on()) {
    rows.push_back({"weight codes (fp8)", codes.size()});
    rows.push_back({"scales and amax histories (fp8)", scales.size()});
  }
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
  weights_ = working_layout(plan, table_);
  if (plan.act == DType::bf16)
    working_ = Tensor(allocations_.allocate(static_cast<std::size_t>(weights_.size) * sizeof(bf16)),
                      DType::bf16, {weights_.size}, "working");
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
  codes_ = place([&](Arena& arena) { return ModelLayout::codes(plan_, table_, arena); });
  fp8_ = Fp8Slots(backend_, plan_.fp8, plan_.training,
                  place([&](Arena& arena) { return ModelLayout::scales(plan_, arena); }));
  attach_slots();
}

namespace {

Tensor slice(const Tensor& arena, const Parameter& p, std::int64_t offset) {
  const Tensor part = arena.rows(offset, p.size());
  Tensor t = p.rank == 1 ? part : part.view({p.rows, p.cols});
  t.name = p.name.c_str();
  return t;
}
Tensor slice(const Tensor& arena, const Parameter& p) {
  return slice(arena, p, p.offset);
}

}  // namespace

Operand Model::operand(const Operand& memory, std::size_t layer, Linear linear, Fp8Role role) const {
  const Forms forms = plan_.fp8.forms(layer, linear, role, plan_.training);
  Operand o = memory;
  if (!forms.q) o.q = {};
  if (!forms.q_t) o.q_t = {};
  o.slot = forms.codes() ? fp8_.find(layer, linear, role) : nullptr;
  return o;
}

void Model::attach_slots() {
  for (std::size_t l = 0; l < acts_.layers.size(); ++l) {
    LayerActivations& a = acts_.layers[l];
    a.norm1 = operand(a.norm1, l, Linear::qkv, Fp8Role::input);
    a.attention = operand(a.attention, l, Linear::proj, Fp8Role::input);
    a.norm2 = operand(a.norm2, l, Linear::fc, Fp8Role::input);
    a.hidden = operand(a.hidden, l, Linear::out, Fp8Role::input);
    for (Linear linear : kLinears) {
      Operand& w = codes_[static_cast<std::size_t>(parameter_of(table_.layers[l], linear))];
      w = operand(w, l, linear, Fp8Role::weight);
    }
  }
  for (ArenaSegment& s : weights_.segments)
    for (int i : weights_.coded)
      if (table_[i].offset == s.begin) s.codes = &codes_[static_cast<std::size_t>(i)];
}

void Model::refresh_working(bool record) {
  if (!working_) return;
  for (const ArenaSegment& s : weights_.segments) {
    if (!s.values) continue;
    const std::int64_t n = s.end - s.begin;
    backend_.run(Cast{.x = masters_.rows(s.begin, n), .y = {.t = working_.rows(s.begin - s.shift, n)}});
  }
  for (int i : weights_.coded) {
    Operand codes = codes_[static_cast<std::size_t>(i)];
    codes.record = record;
    backend_.run(Cast{.x = slice(masters_, table_[i]), .y = codes});
  }
}

Operand Model::weight(int parameter) const {
  Operand w = codes_[static_cast<std::size_t>(parameter)];
  const Parameter& p = table_[parameter];
  const std::int64_t offset = weights_.offsets[static_cast<std::size_t>(parameter)];
  if (!working_)
    w.t = slice(masters_, p);
  else if (offset >= 0)
    w.t = slice(working_, p, offset);
  return w;
}
Tensor Model::vector(int parameter) const {
  return weight(parameter).t;
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

namespace {

/// Layers of a list in words: " in layers 0, 11"; nothing where they are all.
std::string layers_text(const std::vector<std::size_t>& some, std::size_t all) {
  return some.size() == all
             ? ""
             : fmt::format(" in layer{} {}", some.size() == 1 ? "" : "s", fmt::join(some, ", "));
}

/// The rows of one product of a linear layer: one for the layers where it reads FP8 codes, one for the
/// others.
void add_linear_paths(const Backend& backend, const ModelPlan& plan, Linear linear, Gemm gemm,
                      const PathRow& row, const OpDesc& in_act, std::vector<PathRow>& rows) {
  OpDesc in_fp8 = in_act;
  in_fp8.dtype = DType::e4m3;
  const Support fp8 = backend.supports(in_fp8), act = backend.supports(in_act);
  const std::size_t L = plan.fp8.layers.size();
  std::vector<std::size_t> coded, skipped, unable;
  for (std::size_t l = 0; l < L; ++l) {
    const LinearPaths p = plan.fp8.paths(l, linear);
    const bool codes = gemm == Gemm::fprop ? p.fprop : gemm == Gemm::dgrad ? p.dgrad : p.wgrad;
    (codes ? coded : plan.fp8.skips(l) ? skipped : unable).push_back(l);
  }
  const auto add = [&](const std::vector<std::size_t>& layers, const std::string& path,
                       const std::string& reason) {
    if (!layers.empty()) rows.push_back({row.what + layers_text(layers, L), row.shape, path, reason});
  };
  add(coded, fp8.path, "");
  add(unable, act.path, fp8.reason);
  add(skipped, act.path, "precision.fp8.skip_first_layers, skip_last_layers");
  if (L == 0) rows.push_back({row.what, row.shape, act.path, act.reason});
}

}  // namespace

std::vector<PathRow> plan_paths(const Backend& backend, const ModelPlan& plan) {
  const ModelShape& s = plan.shape;
  const std::int64_t N = plan.B * plan.T;
  std::vector<PathRow> rows;
  struct Role {
    Gemm gemm;
    const char* name;
  };
  const Role roles[] = {{Gemm::fprop, "fprop"}, {Gemm::dgrad, "dgrad"}, {Gemm::wgrad, "wgrad"}};
  const auto used = std::span(roles, plan.training ? 3 : 1);
  const auto shape_text = [](const OpDesc& d) { return fmt::format("{}x{}x{}", d.m, d.n, d.k); };
  for (Linear linear : kLinears)
    for (const Role& role : used) {
      const OpDesc desc = product_of(s, linear, role.gemm, N, plan.act);
      const PathRow row{.what = fmt::format("{} {}", name_of(linear), role.name), .shape = shape_text(desc)};
      add_linear_paths(backend, plan, linear, role.gemm, row, desc, rows);
    }
  for (const Role& role : used) {
    const OpDesc desc = product(s.padded_vocab, s.channels, role.gemm, head_rows(plan), plan.act);
    const Support head = backend.supports(desc);
    rows.push_back({fmt::format("head {}", role.name), shape_text(desc), head.path, head.reason});
  }
  const Support attention = backend.supports(
      {.op = "attention", .dtype = plan.act, .head_size = s.head_size(), .dropout = plan.dropout > 0});
  rows.push_back({"attention", fmt::format("B{} H{} T{} D{}", plan.B, s.heads, plan.T, s.head_size()),
                  attention.path, attention.reason});
  return rows;
}

}  // namespace octavo
