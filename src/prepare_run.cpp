// prepare_run.cpp - everything that can be wrong with a run is found here, before it writes anything.
#include <algorithm>
#include <chrono>

#include "error.h"
#include "evaluate.h"
#include "files.h"
#include "run.h"
#include "run_folder.h"
#include "trainer.h"

namespace octavo {
namespace {

constexpr std::int64_t kTimedTokens = 4096;  // of the step that is timed for an estimate

/// A checkpoint goes on with the shape it has; a config that now says another one is refused.
void check_same_shape(const ModelShape& saved, const ModelShape& now, const std::string& origin) {
  const auto same = [&](const char* key, auto was, auto is) {
    if (was != is)
      refuse(
          "{}: found {}, the run being resumed ({}) has {}; allowed: the same, or a fresh run in another "
          "output.dir",
          key, is, origin, was);
  };
  same("model.layers", saved.layers, now.layers);
  same("model.channels", saved.channels, now.channels);
  same("model.heads", saved.heads, now.heads);
  same("model.context", saved.context, now.context);
  same("model.vocab", saved.vocab, now.vocab);
  same("model.tied", saved.tied, now.tied);
  same("model.norm_eps", saved.norm_eps, now.norm_eps);
}

/// Weights, and the moments of a checkpoint: damaged files are found before a folder is made or emptied.
void read_start(PreparedRun& run) {
  if (!run.checkpoint && !run.initial) return;
  const ParameterTable table = make_parameter_table(run.plan.model.shape);
  const std::size_t P = static_cast<std::size_t>(table.arena_size);
  run.weights.resize(P);
  read_weights(run.checkpoint ? run.checkpoint->folder : run.initial->folder, table, run.weights.data());
  if (!run.checkpoint) return;
  run.moment1.resize(P);
  run.moment2.resize(P);
  read_moments(*run.checkpoint, table, run.moment1.data(), run.moment2.data());
}

}  // namespace

CheckpointState checkpoint_state(const PreparedRun& run) {
  CheckpointState s;
  const Config& c = run.plan.config;
  s.seed = c.train.seed;
  s.data_seed = *c.data.seed;
  s.sequence = run.plan.model.T;
  s.data_fingerprint = run.data.fingerprint;
  s.tokenizer_hash = run.data.tokenizer_hash;
  s.mode = run.plan.mode;
  s.arithmetic = run.backend->arithmetic();
  return s;
}

PreparedRun prepare_run(RunRequest request) {
  PreparedRun run;
  run.request = std::move(request);
  const Config& config = run.request.config;
  const std::filesystem::path folder = config.output.dir;
  RunFolder::check(folder, run.request.use);

  std::optional<ModelFolder> model;
  std::optional<Config> former;  // of the run that is resumed
  if (run.request.use == FolderUse::resume) {
    std::vector<std::string> incomplete;
    run.checkpoint = newest_checkpoint(folder / kCheckpoints, &incomplete);
    // A killed writer leaves no such folder: this one is damaged, and what it held would be lost unnoticed.
    if (!run.checkpoint && !incomplete.empty())
      refuse("cannot resume in {}: {}; allowed: a complete checkpoint, or --overwrite to start afresh",
             folder.string(), incomplete.back());
    for (std::string& line : incomplete) run.resume_notes.push_back(std::move(line));
    if (run.checkpoint) {
      model = open_model(run.checkpoint->folder.string());
      if (path_exists(folder / kResolvedFile)) former = read_resolved_config(folder);
    }
  }
  if (!run.checkpoint && config.model.init_from) model = run.initial = open_model(*config.model.init_from);

  ModelTokens tokens{.vocab = config.model.vocab, .tokenizer = nullptr, .origin = {}};
  if (model)
    tokens = {.vocab = model->shape.vocab,
              .tokenizer = find_tokenizer(model->folder.string()),
              .origin = model->folder.string()};
  run.data = open_dataset(config.data, tokens);
  run.backend = make_backend(config);
  std::optional<ModelShape> initial;
  if (model && config.model.init_from) initial = model->shape;
  run.plan = make_run_plan(config, run.data, *run.backend, initial, former);
  if (!run.data.val.empty()) EvaluationWindows(run.data.val, run.plan.model.T, config.train.eval_tokens);
  if (run.checkpoint) {
    check_same_shape(model->shape, run.plan.model.shape, run.checkpoint->folder.string());
    check_resumable(run.checkpoint->state, checkpoint_state(run), run.checkpoint->folder.string());
  }
  if (former)
    for (const ConfigDifference& d : compare_configs(*former, run.plan.config))
      run.resume_notes.push_back(fmt::format("{}: was {}, now {}", d.path, d.left, d.right));
  check_memory(*run.backend, run.plan.model);
  read_start(run);
  return run;
}

double estimate_seconds(PreparedRun& run) {
  using Clock = std::chrono::steady_clock;
  RunPlan small = run.plan;
  small.model.B = small.sequences_per_step =
      std::clamp<std::int64_t>(kTimedTokens / run.plan.model.T, 1, run.plan.model.B);
  small.accumulate = 1;
  Trainer trainer(*run.backend, small, run.data);
  trainer.initialise();
  const auto seconds = [](auto&& work) {
    const Clock::time_point start = Clock::now();
    work();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  // The first step plans the products; a step of one sequence also holds one AdamW, which a real step does
  // once.
  trainer.train_step();
  double step = seconds([&] { trainer.train_step(); });
  step = std::min(step, seconds([&] { trainer.train_step(); }));
  const std::int64_t T = run.plan.model.T;
  const double batch_seconds = run.data.val.empty() ? 0 : seconds([&] {
    octavo::evaluate(trainer.model(), run.data.val, small.model.B * T);
  });

  const std::int64_t done = run.checkpoint ? run.checkpoint->state.step : 0;
  const double steps = static_cast<double>(std::max<std::int64_t>(0, run.plan.steps - done));
  double total =
      steps * static_cast<double>(run.plan.sequences_per_step) * step / static_cast<double>(small.model.B);
  if (!run.data.val.empty()) {
    const TrainConfig& t = run.plan.config.train;
    const double windows = static_cast<double>(EvaluationWindows(run.data.val, T, t.eval_tokens).windows());
    total += windows / static_cast<double>(small.model.B) * batch_seconds *
             (1 + (t.eval_every > 0 ? std::floor(steps / static_cast<double>(t.eval_every)) : 0));
  }
  return total;
}

std::string plan_text(const PreparedRun& run, double estimated_seconds) {
  const RunPlan& plan = run.plan;
  const ParameterTable table = make_parameter_table(plan.model.shape);
  std::string text;
  const auto line = [&](const std::string& label, const std::string& value) {
    text += fmt::format("{:<28} {}\n", label, value);
  };
  const double unit = 0x1p20;
  line("run", fmt::format("{} in {}", plan.config.name, plan.config.output.dir));
  line("device", run.backend->description());
  line("parameters", format_count(table.count()));
  line("train tokens", format_count(run.data.train.size()));
  line("validation tokens", format_count(run.data.val.size()));
  line("tokens per step",
       fmt::format("{} = {} sequences of {}, {} at once, {} times", format_count(plan.tokens_per_step()),
                   plan.sequences_per_step, plan.model.T, plan.model.B, plan.accumulate));
  line("steps", fmt::format("{} ({} tokens, {:.2f} epochs)", format_count(plan.steps),
                            format_count(plan.steps * plan.tokens_per_step()),
                            static_cast<double>(plan.steps * plan.tokens_per_step()) /
                                static_cast<double>(run.data.train.size())));
  const std::vector<MemoryCategory> memory = plan_memory(plan.model);
  for (const MemoryCategory& c : memory)
    line("memory: " + c.name, fmt::format("{:.1f} MiB", static_cast<double>(c.bytes) / unit));
  line("memory: total",
       fmt::format("{:.1f} MiB of {:.0f} MiB free", static_cast<double>(total_bytes(memory)) / unit,
                   static_cast<double>(run.backend->available_bytes()) / unit));
  const double checkpoint = static_cast<double>(checkpoint_bytes(table, run.data.tokenizer.get()));
  // While one is being written, the ones it replaces are still there.
  const std::int64_t kept = plan.config.train.keep_checkpoints + (plan.config.train.keep_best ? 2 : 1);
  line("disk: checkpoints", fmt::format("{:.1f} MiB each, up to {} at a time", checkpoint / unit, kept));
  line("estimated time", format_duration(estimated_seconds));
  for (const std::string& note : plan.notes) line("note", note);
  return text + paths_table(plan.paths);
}

}  // namespace octavo
