#include "run_plan.h"

#include <algorithm>
#include <cmath>

#include "error.h"
#include "precision/fp8_support.h"
#include "rng.h"
#include "shape_bounds.h"

namespace octavo {
namespace {

constexpr std::int64_t kDefaultTokensPerStep = 524288;
constexpr double kMemoryShare = 0.8;  // of what is free, for micro_batch "auto"
// On a CPU larger micro-batches only push activations out of the caches; from about here on the products are
// at speed.
constexpr std::int64_t kCpuMicroBatchTokens = 8192;

/// Sequences a step, from tokens_per_step or its default. Names the nearest multiples where T does not divide
/// it.
std::int64_t sequences_in(std::int64_t tokens_per_step, std::int64_t T) {
  if (tokens_per_step % T == 0 && tokens_per_step >= T) return tokens_per_step / T;
  const std::int64_t below = tokens_per_step / T * T;
  const std::string nearest = below > 0 ? fmt::format("{} or {}", below, below + T) : fmt::format("{}", T);
  refuse(
      "train.tokens_per_step: found {}, which is no multiple of the sequence, {}; allowed: multiples, such "
      "as {}",
      tokens_per_step, T, nearest);
}

std::string divisors_near(std::int64_t n, std::int64_t wanted) {
  std::int64_t below = std::min(wanted, n), above = std::max<std::int64_t>(wanted, 1);
  while (below > 1 && n % below != 0) --below;
  while (above < n && n % above != 0) ++above;
  return below == above || above > n ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
}

/// `windows` of an epoch: nothing where the data is absent.
void decide_steps(const Config& c, std::optional<std::int64_t> windows, RunPlan& plan) {
  const std::int64_t tokens = plan.tokens_per_step();
  if (c.train.steps) {
    plan.steps = *c.train.steps;
  } else if (c.train.tokens) {
    plan.steps = (*c.train.tokens + tokens - 1) / tokens;
  } else if (!windows) {
    plan.notes.push_back(
        "without the data the number of steps is not known (train.steps and train.tokens are not given)");
  } else {
    const double samples = c.train.epochs.value_or(1.0) * static_cast<double>(*windows);
    plan.steps =
        static_cast<std::int64_t>(std::floor(samples / static_cast<double>(plan.sequences_per_step) + 1e-9));
    if (plan.steps < 1)
      refuse(
          "train.epochs: {} of {} windows are fewer than one step of {} sequences; allowed: more epochs, a "
          "smaller "
          "train.tokens_per_step, or train.steps",
          c.train.epochs.value_or(1.0), *windows, plan.sequences_per_step);
  }
  if (plan.steps > kMaxSteps)
    refuse("train: its tokens or epochs are {} steps of {} tokens; allowed: up to {} steps", plan.steps,
           tokens, kMaxSteps);
}

void split_step(Config& c, const Backend& backend, const std::optional<Config>& former, RunPlan& plan) {
  const std::int64_t T = plan.model.T;
  std::int64_t& micro = c.train.micro_batch;
  if (c.train.accumulate && micro > 0) {
    plan.sequences_per_step = *c.train.accumulate * micro;
    if (plan.sequences_per_step > kMaxTokensPerStep / T)
      refuse(
          "train.micro_batch: found {}; with {} micro-batches a step and {} tokens a sequence allowed: steps "
          "of "
          "up to {} tokens",
          micro, *c.train.accumulate, T, kMaxTokensPerStep);
  } else {
    plan.sequences_per_step = sequences_in(c.train.tokens_per_step.value_or(kDefaultTokensPerStep), T);
    if (c.train.accumulate) {
      // "auto" with a given accumulate: the default step, split as asked.
      if (plan.sequences_per_step % *c.train.accumulate != 0)
        refuse(
            "train.accumulate: found {}, which does not divide the {} sequences of a step; allowed: "
            "divisors, such "
            "as {}, or a train.micro_batch",
            *c.train.accumulate, plan.sequences_per_step,
            divisors_near(plan.sequences_per_step, *c.train.accumulate));
      micro = plan.sequences_per_step / *c.train.accumulate;
    } else if (micro == 0) {
      const bool same_step =
          former && former->train.tokens_per_step == plan.tokens_per_step() && former->train.sequence == T;
      micro = same_step ? former->train.micro_batch
                        : choose_micro_batch(plan.model, plan.sequences_per_step, backend);
      plan.notes.push_back(
          fmt::format("micro_batch auto: {} of {} sequences a step", micro, plan.sequences_per_step));
    } else if (plan.sequences_per_step % micro != 0) {
      refuse(
          "train.micro_batch: found {}, which does not divide the {} sequences ({} tokens) of a step; "
          "allowed: "
          "divisors, such as {}",
          micro, plan.sequences_per_step, plan.tokens_per_step(),
          divisors_near(plan.sequences_per_step, micro));
    }
  }
  if (!c.train.accumulate) c.train.tokens_per_step = plan.tokens_per_step();
  plan.model.B = micro;
  plan.accumulate = plan.sequences_per_step / micro;
}

}  // namespace

std::unique_ptr<Backend> make_backend(const Config& config) {
  const std::optional<Capability> pretended = config.device == "auto" ? pretended_capability() : std::nullopt;
  if (pretended && *pretended < kLeastCapability)
    refuse_unsupported(
        fmt::format("a GPU of compute capability {}", text_of(*pretended)),
        "device: found a GPU of compute capability {}; allowed: {} or later, or \"device\": \"cpu\"",
        text_of(*pretended), text_of(kLeastCapability));
  if (config.device == "cuda")
    refuse_unsupported(
        "no CUDA training in this program",
        "device: found \"cuda\"; this program has no CUDA training yet; allowed: \"cpu\", \"auto\"");
  return make_cpu_backend(static_cast<int>(config.threads), pretended);
}

PrecisionChoice choose_precision(const PrecisionConfig& config, const Backend& backend) {
  PrecisionChoice choice{.mode = config.mode,
                         .act = config.mode == "bf16" || config.mode == "fp8" ? DType::bf16 : DType::f32,
                         .reason = {}};
  Support support;
  if (config.mode == "tf32") {
    support = backend.supports({.op = "matmul", .dtype = DType::f32, .tf32 = true});
    if (!support.yes) choice.mode = "fp32";
  } else if (config.mode == "fp8") {
    support = backend.supports({.op = "matmul", .dtype = DType::e4m3});
    if (!support.yes) choice.mode = "bf16";
  }
  if (support.yes) return choice;
  choice.reason = fmt::format("precision.mode {}: {}", config.mode, support.reason);
  if (config.fallback == "error")
    refuse_unsupported(
        support.reason,
        "precision.mode: found \"{}\": {}; allowed here: \"precision\": {{\"mode\": \"{}\"}}, or "
        "\"fallback\": "
        "\"allow\" to run that instead",
        config.mode, support.reason, choice.mode);
  return choice;
}

Fp8Plan plan_fp8(const Fp8Config& config, const ModelShape& shape, std::int64_t rows,
                 const Backend& backend) {
  Fp8Plan plan;
  plan.recipe = {
      .scaling = config.recipe == "current" ? Fp8Scaling::current : Fp8Scaling::delayed,
      .hybrid = config.format == "hybrid",
      .history = config.amax_history_len,
      .algorithm = config.amax_compute_algo == "max" ? Fp8AmaxAlgorithm::max : Fp8AmaxAlgorithm::most_recent,
      .margin = config.margin};
  plan.calibrate = config.calibrate;
  plan.skip_first = config.skip_first_layers, plan.skip_last = config.skip_last_layers;
  if (plan.skip_first + plan.skip_last >= shape.layers)
    refuse(
        "precision.fp8.skip_first_layers + skip_last_layers: found {} + {} of {} layers; allowed: fewer, or "
        "precision.mode \"bf16\"",
        plan.skip_first, plan.skip_last, shape.layers);
  plan.layers.resize(static_cast<std::size_t>(shape.layers));
  for (std::size_t l = 0; l < plan.layers.size(); ++l) {
    if (plan.skips(l)) continue;
    for (Linear linear : kLinears) {
      const auto runs = [&](Gemm gemm) {
        return backend.supports(product_of(shape, linear, gemm, rows, DType::e4m3)).yes;
      };
      plan.layers[l][static_cast<std::size_t>(linear)] = {
          .fprop = runs(Gemm::fprop), .dgrad = runs(Gemm::dgrad), .wgrad = runs(Gemm::wgrad)};
    }
  }
  return plan;
}

namespace {

/// With precision.fallback "error" every product of the layers that are not skipped must run in FP8.
void check_fp8_products(const Config& config, const RunPlan& plan, const Backend& backend) {
  const ModelPlan& m = plan.model;
  bool any = false;
  std::string first;  // the first product that does not run, and why
  for (Linear linear : kLinears)
    for (const auto& [gemm, name] : {std::pair(Gemm::fprop, "fprop"), std::pair(Gemm::dgrad, "dgrad"),
                                     std::pair(Gemm::wgrad, "wgrad")}) {
      const OpDesc desc = product_of(m.shape, linear, gemm, m.B * m.T, DType::e4m3);
      const Support support = backend.supports(desc);
      any = any || support.yes;
      if (!support.yes && first.empty())
        first = fmt::format("{} {} of {}x{}x{}: {}", name_of(linear), name, desc.m, desc.n, desc.k,
                            support.reason);
    }
  if (first.empty()) return;
  const char* instead = any ? "which runs such products in bf16" : "which runs in bf16";
  if (config.precision.fallback == "error")
    refuse_unsupported(
        first,
        "precision.mode: found \"fp8\": {}; allowed here: model.channels, and train.micro_batch x "
        "train.sequence, of "
        "multiples of 16, or \"precision\": {{\"fallback\": \"allow\"}}, {}",
        first, instead);
}

}  // namespace

std::int64_t choose_vocab(const Config& config, const Dataset& dataset) {
  const std::int64_t vocab = config.model.vocab > 0 ? config.model.vocab : dataset.vocab;
  if (vocab < dataset.vocab)
    refuse("model.vocab: found {}, the data has {} tokens; allowed: at least that, or \"auto\"", vocab,
           dataset.vocab);
  return vocab;
}

namespace {

/// A shape written beside init_from must be that model's. What stands at its default was not written, or
/// agrees with not having been.
void check_shape_beside_init_from(const ModelConfig& written, const ModelShape& initial) {
  const Config defaults = parse_config(R"({"data": {"train": "none"}})", "defaults");
  const auto same = [](const char* key, auto value, auto by_default, auto has) {
    if (value != by_default && value != has)
      refuse("{}: found {}, the model of model.init_from has {}; allowed: the same, or the key left out", key,
             value, has);
  };
  same("model.layers", written.layers, defaults.model.layers, initial.layers);
  same("model.channels", written.channels, defaults.model.channels, initial.channels);
  same("model.heads", written.heads, defaults.model.heads, initial.heads);
  same("model.context", written.context, defaults.model.context, initial.context);
  same("model.tied", written.tied, defaults.model.tied, initial.tied);
  same("model.norm_eps", written.norm_eps, defaults.model.norm_eps, initial.norm_eps);
}

}  // namespace

ModelShape choose_shape(const Config& config, std::int64_t vocab, const std::optional<ModelShape>& initial) {
  if (initial) {
    check_shape_beside_init_from(config.model, *initial);
    if (vocab > initial->vocab)
      refuse(
          "data: its vocabulary has {} tokens, the model of model.init_from {}; allowed: data of the model's "
          "own "
          "tokenizer",
          vocab, initial->vocab);
    return *initial;
  }
  ModelShape s;
  s.layers = config.model.layers;
  s.channels = config.model.channels;
  s.heads = s.kv_heads = config.model.heads;
  s.context = config.model.context;
  s.vocab = vocab;
  s.padded_vocab = pad_vocab(vocab);
  s.tied = config.model.tied;
  s.norm_eps = config.model.norm_eps;
  return s;
}

std::int64_t choose_micro_batch(const ModelPlan& model, std::int64_t sequences_per_step,
                                const Backend& backend) {
  const double allowed = kMemoryShare * static_cast<double>(backend.available_bytes());
  ModelPlan trial = model;
  for (std::int64_t micro = sequences_per_step; micro >= 1; --micro) {
    if (sequences_per_step % micro != 0) continue;
    if (micro > 1 && backend.name() == "cpu" && micro * model.T > kCpuMicroBatchTokens) continue;
    trial.B = micro;
    if (static_cast<double>(total_bytes(plan_memory(trial))) <= allowed || micro == 1) return micro;
  }
  return 1;
}

RunPlan make_run_plan(const Config& config, const Dataset& dataset, const Backend& backend,
                      const std::optional<ModelShape>& initial, const std::optional<Config>& former) {
  RunPlan plan;
  Config& c = plan.config = config;
  const PrecisionChoice precision = choose_precision(c.precision, backend);
  if (!precision.reason.empty())
    plan.notes.push_back(
        fmt::format("{}; runs in {} (precision.fallback allow)", precision.reason, precision.mode));

  plan.model.shape = choose_shape(c, choose_vocab(c, dataset), initial);
  plan.mode = precision.mode;
  plan.model.act = precision.act;
  plan.model.recompute = recompute_from(c.train.recompute);
  plan.model.dropout = c.model.dropout;
  plan.model.dropout_seed = static_cast<std::uint64_t>(c.train.seed);
  plan.model.T = c.train.sequence.value_or(plan.model.shape.context);
  if (plan.model.T > plan.model.shape.context)
    refuse("train.sequence: found {}; allowed: up to the context, {}", plan.model.T,
           plan.model.shape.context);
  if (const std::uint32_t threshold = dropout_threshold(static_cast<float>(c.model.dropout));
      256 * c.model.dropout != threshold)
    plan.notes.push_back(fmt::format("model.dropout {}: in steps of 1/256, {:.4f} are dropped",
                                     c.model.dropout, threshold / 256.0));
  make_parameter_table(plan.model.shape);  // refuses impossible shapes before memory is counted

  // How a step is split depends on memory, and which products run in FP8 on how the step is split.
  if (plan.mode == "fp8") plan.model.fp8 = plan_fp8(c.precision.fp8, plan.model.shape, 0, backend);
  split_step(c, backend, former, plan);
  if (plan.mode == "fp8") {
    check_fp8_products(c, plan, backend);
    plan.model.fp8 = plan_fp8(c.precision.fp8, plan.model.shape, plan.model.B * plan.model.T, backend);
    if (fp8_slots(plan.model.fp8, /*training=*/true).empty()) {
      plan.notes.push_back("precision.mode fp8: no product of this model can run in FP8 here; runs in bf16");
      plan.model.fp8 = {};
      plan.mode = "bf16";
    }
  }
  std::optional<std::int64_t> windows;
  if (dataset.absent.empty()) windows = WindowOrder(dataset.train.size(), plan.model.T, 0).windows();
  decide_steps(c, windows, plan);
  if (plan.steps > 0) plan.schedule = make_schedule(c.optimizer, plan.steps);

  // What was "auto" is written out in the config as run.
  const ModelShape& s = plan.model.shape;
  c.device = backend.name();
  c.model.layers = s.layers, c.model.channels = s.channels, c.model.heads = s.heads,
  c.model.context = s.context;
  c.model.vocab = s.vocab, c.model.tied = s.tied, c.model.norm_eps = s.norm_eps;
  c.threads = backend.threads();
  c.data.seed = c.data.seed.value_or(c.train.seed);
  c.train.sequence = plan.model.T;
  c.train.steps = plan.steps;
  c.train.tokens.reset(), c.train.epochs.reset();  // at most one of the three is allowed
  c.optimizer.min_lr = plan.schedule.min_lr;
  c.optimizer.warmup_steps = plan.schedule.warmup_steps;
  c.optimizer.decay_steps = plan.schedule.decay_steps;
  for (const ConfigDifference& d : compare_configs(config, c)) plan.chosen.push_back(d.path);
  plan.paths = plan_paths(backend, plan.model);
  if (!precision.reason.empty())
    for (PathRow& row : plan.paths)
      row.reason = row.reason.empty() ? precision.reason : precision.reason + "; " + row.reason;
  return plan;
}

}  // namespace octavo
