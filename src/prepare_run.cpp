// prepare_run.cpp - everything that can be wrong with a run is found here, before it writes anything.
#include <algorithm>
#include <chrono>

#include "console.h"
#include "error.h"
#include "evaluate.h"
#include "files.h"
#include "rng.h"
#include "run.h"
#include "run_folder.h"
#include "trainer.h"

namespace octavo {
namespace {

// Of the step that is timed for an estimate: tokens of a small model, work of a large one.
constexpr std::int64_t kTimedTokens = 4096;
constexpr double kTimedFlops = 1e12, kLongEnough = 2.0;  // seconds

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
  run.fp8 = find_fp8_state(run.checkpoint->folder);
}

/// Windows of one evaluation; 0 where there is none, or where the data that decides them is absent.
std::int64_t evaluation_windows(const PreparedRun& run) {
  const Config& c = run.plan.config;
  const std::int64_t T = run.plan.model.T;
  if (!run.data.val.empty()) return EvaluationWindows(run.data.val, T, c.train.eval_tokens).windows();
  const bool evaluates = !c.data.val.empty() || c.data.val_fraction > 0;
  if (run.data.absent.empty() || !evaluates || c.train.eval_tokens < 0) return 0;
  return (c.train.eval_tokens + T - 1) / T;
}

/// Ids drawn evenly, as many as `windows` windows need: a step takes as long on them as on text.
TokenStream random_tokens(const RunPlan& plan, std::int64_t windows) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(windows * plan.model.T + 1));
  const auto vocab = static_cast<std::uint64_t>(plan.model.shape.vocab);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(mix64(i) % vocab);
  return TokenStream::of(std::move(ids));
}

double seconds_of(const std::function<void()>& work) {
  const double start = steady_seconds();
  work();
  return steady_seconds() - start;
}

std::string tokens_text(const PreparedRun& run, const TokenStream& stream) {
  return run.data.absent.empty() ? format_count(stream.size()) : "not known";
}

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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
  run.started = run.request.now();
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
  run.data = run.request.dry_run ? plan_dataset(config.data, tokens) : open_dataset(config.data, tokens);
  if (!run.data.absent.empty() && run.checkpoint) {  // taken to be the data that the run has had
    run.data.fingerprint = run.checkpoint->state.data_fingerprint;
    run.data.tokenizer_hash = run.checkpoint->state.tokenizer_hash;
  }
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

RunEstimate estimate_run(PreparedRun& run) {
  RunPlan small = run.plan;
  const std::int64_t T = run.plan.model.T, windows = evaluation_windows(run);
  const double flops = flops_per_token(make_parameter_table(small.model.shape), small.model.shape, T);
  const auto tokens = std::min(kTimedTokens, static_cast<std::int64_t>(kTimedFlops / flops));
  small.model.B = small.sequences_per_step = std::clamp<std::int64_t>(tokens / T, 1, run.plan.model.B);
  small.accumulate = 1;
  Dataset stand_in;
  if (!run.data.absent.empty()) stand_in.train = stand_in.val = random_tokens(small, small.model.B);
  const Dataset& data = run.data.absent.empty() ? run.data : stand_in;
  Trainer trainer(*run.backend, small, data);
  trainer.initialise();
  // The first step plans the products; a step of one sequence also holds one AdamW, which a real step does
  // once.
  trainer.train_step();
  double step = seconds_of([&] { trainer.train_step(); });
  if (step < kLongEnough) step = std::min(step, seconds_of([&] { trainer.train_step(); }));
  const double evaluation =
      windows == 0 ? 0 : seconds_of([&] { octavo::evaluate(trainer.model(), data.val, small.model.B * T); });

  RunEstimate estimate;
  estimate.measured_sequences = small.model.B;
  estimate.workspace_bytes = run.backend->workspace_bytes();
  const double per_sequence = 1 / static_cast<double>(small.model.B);
  estimate.step_seconds = step * per_sequence * static_cast<double>(run.plan.sequences_per_step);
  if (run.plan.steps == 0) return estimate;
  const std::int64_t done = run.checkpoint ? run.checkpoint->state.step : 0;
  const double steps = static_cast<double>(std::max<std::int64_t>(0, run.plan.steps - done));
  const double every = static_cast<double>(run.plan.config.train.eval_every);
  const double evaluations = 1 + (every > 0 ? std::floor(steps / every) : 0);
  estimate.seconds =
      steps * estimate.step_seconds + evaluations * static_cast<double>(windows) * per_sequence * evaluation;
  return estimate;
}

CheckpointDisk checkpoint_disk(const PreparedRun& run) {
  const TrainConfig& train = run.plan.config.train;
  const ParameterTable table = make_parameter_table(run.plan.model.shape);
  // While one is being written, the ones it replaces are still there.
  return {.bytes = checkpoint_bytes(table, run.data.tokenizer.get(), fp8_file_size(run.plan.model.fp8)),
          .at_most = static_cast<std::uint64_t>(train.keep_checkpoints) + (train.keep_best ? 2 : 1)};
}

std::string plan_text(const PreparedRun& run, const RunEstimate& estimate) {
  const RunPlan& plan = run.plan;
  const ParameterTable table = make_parameter_table(plan.model.shape);
  std::string text;
  const auto line = [&](const std::string& label, const std::string& value) {
    text += fmt::format("{:<32} {}\n", label, value);
  };
  const double unit = 0x1p20;
  line("run", fmt::format("{} in {}", plan.config.name, plan.config.output.dir));
  line("device", run.backend->description());
  line("parameters", format_count(table.count()));
  line("train tokens", tokens_text(run, run.data.train));
  line("validation tokens", tokens_text(run, run.data.val));
  line("tokens per step",
       fmt::format("{} = {} sequences of {}, {} at once, {} times", format_count(plan.tokens_per_step()),
                   plan.sequences_per_step, plan.model.T, plan.model.B, plan.accumulate));
  const std::int64_t tokens = plan.steps * plan.tokens_per_step();
  const std::string epochs =
      run.data.train.empty() ? ""
                             : fmt::format(", {:.2f} epochs", static_cast<double>(tokens) /
                                                                  static_cast<double>(run.data.train.size()));
  line("steps", plan.steps == 0 ? "not known"
                                : fmt::format("{} ({} tokens{})", format_count(plan.steps),
                                              format_count(tokens), epochs));
  const std::vector<MemoryCategory> memory = plan_memory(plan.model);
  for (const MemoryCategory& c : memory)
    line("memory: " + c.name, fmt::format("{:.1f} MiB", static_cast<double>(c.bytes) / unit));
  line("memory: operators' scratch",
       fmt::format("{:.1f} MiB, measured in a step of {} sequence{}",
                   static_cast<double>(estimate.workspace_bytes) / unit, estimate.measured_sequences,
                   estimate.measured_sequences == 1 ? "" : "s"));
  line("memory: total",
       fmt::format("{:.1f} MiB of {:.0f} MiB free",
                   static_cast<double>(total_bytes(memory) + estimate.workspace_bytes) / unit,
                   static_cast<double>(run.backend->available_bytes()) / unit));
  const CheckpointDisk disk = checkpoint_disk(run);
  line("disk: checkpoints", fmt::format("{:.1f} MiB each, up to {} at a time",
                                        static_cast<double>(disk.bytes) / unit, disk.at_most));
  line("estimated time a step", format_duration(estimate.step_seconds));
  line("estimated time", estimate.seconds ? format_duration(*estimate.seconds) : "not known");
  for (const std::string& note : run.data.notes) line("note", note);
  for (const std::string& note : plan.notes) line("note", note);
  return text + paths_table(plan.paths);
}

}  // namespace octavo
