// execute_run.cpp - the loop around the training step: logs, evaluations, checkpoints, and the ways to stop.
#include <algorithm>
#include <cmath>

#include "error.h"
#include "evaluate.h"
#include "files.h"
#include "fp8_monitor.h"
#include "memory_usage.h"
#include "metrics.h"
#include "plot.h"
#include "run.h"
#include "stop_signal.h"
#include "time_limit.h"
#include "trainer.h"

namespace octavo {
namespace {

// Before they have been measured: a training step does the work of about three evaluations of its tokens, and
// this much a second goes to a slow disk.
constexpr double kEvaluationShare = 0.5, kSavedBytesPerSecond = 100e6;

/// The table of paths in a few lines: what runs alike, together.
std::vector<std::string> path_summary(const std::vector<PathRow>& paths) {
  std::vector<std::pair<std::string, std::string>> groups;  // path and reason; what
  for (const PathRow& row : paths) {
    const std::string path = row.reason.empty() ? row.path : row.path + " (" + row.reason + ")";
    const auto same =
        std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == path; });
    if (same == groups.end())
      groups.emplace_back(path, row.what);
    else
      same->second += ", " + row.what;
  }
  std::vector<std::string> lines;
  for (const auto& [path, what] : groups) lines.push_back("path: " + path + ": " + what);
  return lines;
}

class RunLoop {
 public:
  RunLoop(PreparedRun& run, Console& console, const StopSignal& stop)
      : run_(run),
        plan_(run.plan),
        config_(run.plan.config),
        console_(console),
        stop_(stop),
        folder_(config_.output.dir, run.request.use),
        trainer_(*run.backend, run.plan, run.data),
        table_(trainer_.model().table()),
        limit_(time_limit()) {
    console_.open_log(folder_.file("train.log"), run.checkpoint.has_value());
    if (!folder_.lock_warning().empty()) console_.warn(folder_.lock_warning());
    load_start();
    describe();
    metrics_.emplace(folder_.path(), trainer_.state().step);
    monitor_.emplace(trainer_.model().fp8(), plan_.model.shape, plan_.tokens_per_step(),
                     config_.precision.fp8.log_tensors && plan_.model.fp8.on()
                         ? std::optional(folder_.file("fp8_tensors.jsonl"))
                         : std::nullopt,
                     trainer_.state().step);
    if (!metrics_->warning().empty()) console_.warn("resumed run: " + metrics_->warning());
  }

  RunOutcome run() {
    const std::int64_t steps = plan_.steps;
    RunOutcome outcome{.status = 0, .message = "finished", .peak_memory_gib = 0};
    while (trainer_.state().step < steps && outcome.status == 0) {
      const double step_start = now();
      const StepResult result = trainer_.train_step();
      const double step_seconds = now() - step_start;
      if (!workspace_known_) describe_workspace();
      const std::int64_t step = trainer_.state().step;
      const bool last = step == steps;
      saved_.train_loss = result.loss;
      saved_.val_loss.reset();

      const double evaluation_start = now();
      const bool improved = evaluates(step) && evaluate();
      const double evaluation_seconds = now() - evaluation_start;
      if (evaluates(step)) limit_.evaluation.took(evaluation_seconds);
      report(result, step_seconds, last);
      check_finite(result);

      const std::int64_t save_every = config_.train.checkpoint_every;
      // Amid steps that are not finite the weights may be ruined: the good checkpoints stay.
      const bool due = (trainer_.state().bad_in_row == 0 && save_every > 0 && step % save_every == 0) ||
                       (improved && config_.train.keep_best);
      limit_.step.took(now() - step_start - evaluation_seconds);
      outcome = why_stop(due);
      if (last || outcome.status != 0 || due) save();
      // A stop that comes with the last step finds the run finished.
      if (last) outcome = {.status = 0, .message = "finished", .peak_memory_gib = 0};
      if (last && trainer_.state().bad_in_row > 0)
        console_.warn(
            fmt::format("the run ends with {} steps that were not finite", trainer_.state().bad_in_row));
    }
    update_account();
    outcome.peak_memory_gib = saved_.peak_memory_gib;
    conclude(outcome);
    return outcome;
  }

 private:
  void load_start() {
    saved_ = checkpoint_state(run_);
    if (run_.weights.empty()) return trainer_.initialise();
    Model& model = trainer_.model();
    const auto upload = [&](const Tensor& to, std::vector<float>& from) {
      run_.backend->copy_to_device(to.data, from.data(), from.size() * sizeof(float));
      from = {};
    };
    upload(model.masters(), run_.weights);
    load_scales();
    // The amaxes of weights that a checkpoint was cast with come from its scale state.
    model.refresh_working(/*record=*/!run_.fp8);
    if (!run_.checkpoint) return;
    upload(model.moment1(), run_.moment1);
    upload(model.moment2(), run_.moment2);
    const CheckpointState now = saved_;
    const CheckpointState& s = saved_ = run_.checkpoint->state;
    trainer_.set_state({s.step, s.samples, s.updates, s.skipped, s.bad_in_row});
    if (s.arithmetic != now.arithmetic)
      saved_.bit_equality_ends.push_back({.step = s.step, .was = s.arithmetic, .now = now.arithmetic});
    saved_.mode = now.mode;
    saved_.arithmetic = now.arithmetic;
    ++saved_.sessions;
    former_seconds_ = s.seconds;
  }

  /// Scales and histories of the run that is resumed; what it has none for is calibrated, or starts at 1.
  void load_scales() {
    const Fp8Plan& fp8 = plan_.model.fp8;
    if (!run_.checkpoint || !fp8.on() || fp8.recipe.scaling == Fp8Scaling::current) return;
    const char* instead = fp8.calibrate ? "they are calibrated" : "they start at 1";
    if (!run_.fp8) {
      run_.resume_notes.push_back(fmt::format("fp8: the checkpoint has no scales: {}", instead));
      return;
    }
    for (std::string& line : fp8_conversions(run_.fp8->recipe, fp8.recipe))
      run_.resume_notes.push_back(std::move(line));
    const std::vector<std::string> missing = trainer_.load_fp8(run_.fp8->slots);
    if (!missing.empty())
      run_.resume_notes.push_back(
          fmt::format("fp8: the checkpoint has no scales for {} tensors, such as {}: {}", missing.size(),
                      missing.front(), instead));
  }

  /// Wall time and peak memory over all sessions, up to now.
  void update_account() {
    saved_.seconds = former_seconds_ + (now() - run_.started);
    saved_.peak_memory_gib =
        std::max(saved_.peak_memory_gib, static_cast<double>(peak_resident_bytes()) / 0x1p30);
  }

  void describe() {
    RunInfo& info = receipt_.run;
    info.command = run_.request.command;
    info.name = config_.name;
    info.device = run_.backend->description();
    info.mode = plan_.mode;
    info.threads = run_.backend->threads();
    info.parameters = table_.count();
    info.tokens_per_step = plan_.tokens_per_step();
    info.total_steps = plan_.steps;
    info.resumed_from = trainer_.state().step;
    info.data_fingerprint = run_.data.fingerprint;
    info.sessions = saved_.sessions;
    info.arithmetic = saved_.arithmetic;
    info.bit_equality_ends = saved_.bit_equality_ends;
    info.unigram_entropy = run_.data.unigram_entropy;
    info.known_entropy = run_.data.entropy_rate;
    info.paths = plan_.paths;
    info.memory = plan_memory(plan_.model);
    write_run_description(folder_, config_, plan_.chosen, info);

    for (const std::string& line : path_summary(plan_.paths)) console_.info(line);
    for (const std::string& note : run_.data.notes) console_.info(note);
    for (const std::string& note : plan_.notes) console_.info(note);
    if (run_.checkpoint) {
      console_.info(fmt::format("resuming after step {} from {}", trainer_.state().step,
                                run_.checkpoint->folder.string()));
    }
    for (const std::string& note : run_.resume_notes) console_.warn("resumed run: " + note);
    if (run_.checkpoint && run_.checkpoint->state.arithmetic != saved_.arithmetic)
      console_.warn(fmt::format("resumed run: bit-equality ends at step {}: {} until then, {} after it",
                                trainer_.state().step, run_.checkpoint->state.arithmetic, saved_.arithmetic));
    console_.info(fmt::format("{}: {} parameters, {}, {} steps of {} tokens on {}", config_.name,
                              format_count(info.parameters), info.mode, format_count(plan_.steps),
                              format_count(info.tokens_per_step), info.device));
  }

  double now() const { return run_.request.now(); }

  TimeLimit time_limit() const {
    std::optional<double> seconds;
    if (config_.train.max_minutes) seconds = *config_.train.max_minutes * 60;
    double evaluation_steps = 0;
    if (!run_.data.val.empty()) {
      const EvaluationWindows windows(run_.data.val, plan_.model.T, config_.train.eval_tokens);
      evaluation_steps = kEvaluationShare * static_cast<double>(windows.targets()) /
                         static_cast<double>(plan_.tokens_per_step());
    }
    const double bytes = static_cast<double>(
        checkpoint_bytes(table_, run_.data.tokenizer.get(), fp8_file_size(plan_.model.fp8)));
    return {seconds, evaluation_steps, bytes / kSavedBytesPerSecond};
  }

  /// What the operators hold beside the model is known when each has run once.
  void describe_workspace() {
    workspace_known_ = true;
    receipt_.run.memory.push_back(
        {"operators' scratch, measured after the first step", run_.backend->workspace_bytes()});
    write_run_description(folder_, config_, plan_.chosen, receipt_.run);
  }

  /// Whether an evaluation follows a step.
  bool evaluates(std::int64_t step) const {
    const std::int64_t every = config_.train.eval_every;
    return !run_.data.val.empty() && (step == plan_.steps || (every > 0 && step % every == 0));
  }

  /// Validation loss of the present weights; true where it is the best so far.
  bool evaluate() {
    console_.status("evaluating");
    const double loss = octavo::evaluate(trainer_.model(), run_.data.val, config_.train.eval_tokens);
    saved_.val_loss = loss;
    if (!std::isfinite(loss) || (saved_.best_val_loss && loss >= *saved_.best_val_loss)) return false;
    saved_.best_val_loss = loss;
    return true;
  }

  void report(const StepResult& result, double step_seconds, bool last) {
    const TrainState& state = trainer_.state();
    const double tokens = static_cast<double>(plan_.tokens_per_step());
    StepRecord r;
    r.step = state.step;
    r.updates = state.updates;
    r.skipped = state.skipped;
    r.tokens = state.samples * plan_.model.T;
    r.loss = result.loss;
    r.val_loss = saved_.val_loss;
    r.lr = result.lr;
    r.grad_norm = result.grad_norm;
    r.step_ms = step_seconds * 1e3;
    r.tokens_per_s = tokens / step_seconds;
    r.tflops = flops_per_token(table_, plan_.model.shape, plan_.model.T) * r.tokens_per_s * 1e-12;
    if (config_.output.peak_tflops) r.mfu = r.tflops / *config_.output.peak_tflops;
    r.memory_gib = static_cast<double>(peak_resident_bytes()) / 0x1p30;
    r.finite = result.finite;
    r.fp8 = monitor_->record(result.fp8);
    for (const std::string& line : monitor_->warnings(result.fp8)) console_.warn(line);
    if (r.step % config_.train.log_every == 0 || last || r.val_loss || !r.finite) {
      metrics_->append(r);
      monitor_->append(r.step, result.fp8);
    }

    // The rate of the last steps, so that one slow step does not make the remaining time jump.
    rate_ = rate_ == 0 ? r.tokens_per_s : 0.9 * rate_ + 0.1 * r.tokens_per_s;
    console_.progress({.label = run_.request.label,
                       .step = r.step,
                       .total_steps = plan_.steps,
                       .loss = r.loss,
                       .val_loss = r.val_loss,
                       .lr = r.lr,
                       .grad_norm = r.grad_norm,
                       .tokens_per_s = r.tokens_per_s,
                       .eta_s = static_cast<double>(plan_.steps - r.step) * tokens / rate_});
  }

  void check_finite(const StepResult& result) {
    if (result.finite) return;
    const TrainState& state = trainer_.state();
    console_.warn(fmt::format(
        "step {}: loss {} and gradient norm {} are not both finite; update skipped ({} in a row)", state.step,
        format_fixed(result.loss, 4), format_fixed(result.grad_norm, 3), state.bad_in_row));
    if (state.bad_in_row >= config_.train.max_bad_steps)
      fail(
          "step {}: {} steps in a row were not finite (train.max_bad_steps); the newest checkpoint in {} is "
          "from "
          "before them; a lower optimizer.lr or a longer warm-up may help",
          state.step, state.bad_in_row, folder_.checkpoints().string());
  }

  /// `saves`: a checkpoint is due before the next step.
  RunOutcome why_stop(bool saves) const {
    const std::int64_t step = trainer_.state().step;
    if (const int signal = stop_.received(); signal != 0)
      return {.status = exit_status_of(signal),
              .message = fmt::format("stopped by {} after step {}, resumable", name_of_signal(signal), step),
              .peak_memory_gib = 0};
    if (limit_.reached(now() - run_.started, {.saves = saves, .evaluates = evaluates(step + 1)}))
      return {.status = 3,
              .message = fmt::format("stopped by max_minutes after step {}, resumable", step),
              .peak_memory_gib = 0};
    return {};
  }

  void save() {
    console_.status("writing a checkpoint");
    const double start = now();
    const TrainState& state = trainer_.state();
    saved_.step = state.step;
    saved_.samples = state.samples;
    saved_.tokens = state.samples * plan_.model.T;
    saved_.updates = state.updates;
    saved_.skipped = state.skipped;
    saved_.bad_in_row = state.bad_in_row;
    update_account();
    Model& model = trainer_.model();
    const HostCopy masters(*run_.backend, model.masters()), m(*run_.backend, model.moment1()),
        v(*run_.backend, model.moment2());
    metrics_->sync();  // a checkpoint must not be ahead of its log
    write_checkpoint(folder_.checkpoints(), {.table = table_,
                                             .shape = plan_.model.shape,
                                             .details = {.dropout = plan_.model.dropout,
                                                         .init_std = config_.model.init_std,
                                                         .eot = run_.data.eot},
                                             .masters = masters.data(),
                                             .moment1 = m.data(),
                                             .moment2 = v.data(),
                                             .state = saved_,
                                             .tokenizer = run_.data.tokenizer.get(),
                                             .fp8 = {plan_.model.fp8.recipe, model.fp8().save()}});
    prune_checkpoints(folder_.checkpoints(), config_.train.keep_checkpoints, config_.train.keep_best);
    limit_.save.took(now() - start);
  }

  void conclude(const RunOutcome& outcome) {
    const std::vector<StepRecord> records = read_metrics(metrics_->file());
    receipt_.steps = trainer_.state().step;
    receipt_.tokens = trainer_.state().samples * plan_.model.T;
    receipt_.train_loss = trailing_loss(records);
    receipt_.val_loss = last_val_loss(records);
    if (outcome.status == 0) receipt_.val_loss_bf16 = loss_in_bf16();
    receipt_.tokens_per_s = median_tokens_per_s(records);
    receipt_.peak_memory_gib = outcome.peak_memory_gib;
    receipt_.seconds = saved_.seconds;
    receipt_.status = outcome.message;
    write_file_atomically(folder_.file("receipt.md"), receipt_text(receipt_));
    console_.finish();
    if (!records.empty()) {
      const PlotResult plot = plot_curves({load_curve(folder_.path())}, folder_.file("curves.png"));
      if (!plot.drawn) console_.info(plot.message);
    }
    console_.info(fmt::format("{} ({}); run folder {}", outcome.message,
                              format_duration(saved_.seconds - former_seconds_), folder_.path().string()));
    console_.close_log();
  }

  /// Of an FP8 run's end: what its masters lose on the validation text in bf16, so that what FP8 itself costs
  /// when the model is used is told apart from what it cost in training.
  std::optional<double> loss_in_bf16() {
    if (!plan_.model.fp8.on() || run_.data.val.empty()) return std::nullopt;
    console_.status("evaluating in bf16");
    ModelPlan plain = plan_.model;
    plain.fp8 = {};
    plain.training = false;
    try {
      Model model(*run_.backend, plain);
      run_.backend->copy(model.masters().data, trainer_.model().masters().data, model.masters().bytes());
      model.refresh_working(/*record=*/false);
      return octavo::evaluate(model, run_.data.val, config_.train.eval_tokens);
    } catch (const RequestError& e) {  // no room for a second model
      console_.warn(fmt::format("the loss in bf16 is not measured: {}", e.what()));
      return std::nullopt;
    }
  }

  PreparedRun& run_;
  const RunPlan& plan_;
  const Config& config_;
  Console& console_;
  const StopSignal& stop_;
  RunFolder folder_;
  Trainer trainer_;
  const ParameterTable& table_;
  std::optional<MetricsLog> metrics_;
  std::optional<Fp8Monitor> monitor_;
  CheckpointState saved_;
  double former_seconds_ = 0;  // wall time of the sessions before this one
  Receipt receipt_;
  double rate_ = 0;  // smoothed tokens/s
  TimeLimit limit_;
  bool workspace_known_ = false;
};

}  // namespace

RunOutcome execute_run(PreparedRun& run, Console& console, const StopSignal& stop) {
  reset_peak_resident();
  RunLoop loop(run, console, stop);
  return loop.run();
}

}  // namespace octavo
