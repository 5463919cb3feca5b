#include "sweep_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>

#include "error.h"
#include "files.h"
#include "metrics.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

/// Settings that change neither what a run computes nor what it logs of that.
constexpr std::array kNoMatter{"name",
                               "threads",
                               "train.checkpoint_every",
                               "train.keep_checkpoints",
                               "train.keep_best",
                               "train.max_minutes",
                               "parallel.timeout_s",
                               "output.dir",
                               "output.peak_tflops"};

bool is_automatic(const Config& config) {
  return config.train.micro_batch == 0 && !config.train.accumulate;
}

/// How the run in `request`'s folder, whose config was `former`, differs from the one that the request asks
/// for; both as run, so that defaults and what "auto" chose count as well.
std::vector<ConfigDifference> differences(const RunRequest& request, const Config& former) {
  RunRequest afresh = request;
  afresh.use = FolderUse::overwrite;
  const Config now = prepare_run(std::move(afresh)).plan.config;
  const bool fp8 = former.precision.mode == "fp8" || now.precision.mode == "fp8";
  std::vector<ConfigDifference> found = compare_configs(former, now);
  std::erase_if(found, [&](const ConfigDifference& d) {
    return std::count(kNoMatter.begin(), kNoMatter.end(), d.path) > 0 ||
           (d.path == "train.micro_batch" && is_automatic(request.config)) ||
           (d.path.rfind("precision.fp8.", 0) == 0 && !fp8);
  });
  return found;
}

[[noreturn]] void refuse_other_run(const fs::path& folder, const std::string& what) {
  refuse(
      "{} holds a run that is not this sweep's: {}; allowed: the config that it had, --overwrite to do all "
      "runs "
      "of the sweep afresh, or another folder with --set output.dir=DIR",
      folder.string(), what);
}

/// The config of the run that the folder holds, which is the one asked for; nothing where there is none.
std::optional<Config> check_former_run(const RunRequest& request) {
  const fs::path folder = request.config.output.dir;
  if (!is_folder(folder)) return std::nullopt;
  if (!path_exists(folder / kResolvedFile)) {
    // A run that was killed before its first step has left nothing to keep.
    if (path_exists(folder / kCheckpoints))
      refuse_other_run(folder, fmt::format("it has {}, but no {}", kCheckpoints, kResolvedFile));
    return std::nullopt;
  }
  const Config former = read_resolved_config(folder);
  const std::vector<ConfigDifference> found = differences(request, former);
  if (found.empty()) return former;
  constexpr std::size_t kShown = 3;
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < std::min(kShown, found.size()); ++i)
    parts.push_back(fmt::format("{} was {}, now {}", found[i].path, found[i].left, found[i].right));
  if (found.size() > kShown) parts.push_back(fmt::format("and {} more", found.size() - kShown));
  refuse_other_run(folder, fmt::format("{}", fmt::join(parts, ", ")));
}

/// Whether a run has done all of its steps and written everything. Its checkpoints may be gone since.
bool is_finished(const fs::path& folder, std::int64_t steps) {
  for (const char* file : {"metrics.jsonl", "receipt.md"})
    if (!path_exists(folder / file)) return false;
  const std::vector<StepRecord> records = read_metrics(folder / "metrics.jsonl");
  return !records.empty() && records.back().step >= steps &&
         read_whole_file(folder / "receipt.md").find("\n| status | finished |\n") != std::string::npos;
}

}  // namespace

std::vector<PlannedRun> plan_sweep(const Sweep& sweep, bool overwrite, bool dry_run,
                                   const std::string& command) {
  std::vector<PlannedRun> planned;
  std::vector<std::size_t> automatic;  // may yet be given the micro-batch that all share
  std::int64_t smallest = std::numeric_limits<std::int64_t>::max(), common = 0;
  const auto unsupported = [](PlannedRun& p, const UnsupportedError& error) {
    p.state = RunState::unsupported;
    p.why_unsupported = error.reason();
  };
  for (const SweepRun& run : sweep.runs) {
    PlannedRun& p = planned.emplace_back();
    p.run = run;
    p.request.config = load_config(sweep.base, run.overrides);
    p.request.use = overwrite ? FolderUse::overwrite : FolderUse::resume;
    p.request.command = command;
    p.request.label = run.folder;
    p.request.dry_run = dry_run;
    p.mode = p.request.config.precision.mode;
    p.seed = p.request.config.train.seed;
    try {
      const std::optional<Config> former = overwrite ? std::nullopt : check_former_run(p.request);
      const PreparedRun prepared = prepare_run(p.request);
      p.mode = prepared.plan.mode;
      p.on_cpu = prepared.backend->name() == "cpu";
      if (prepared.checkpoint) {
        p.state = RunState::unfinished;
        p.steps_done = prepared.checkpoint->state.step;
        p.peak_memory_gib = prepared.checkpoint->state.peak_memory_gib;
      }
      if (former && is_finished(p.request.config.output.dir, prepared.plan.steps))
        p.state = RunState::finished;
      if (!is_automatic(p.request.config)) continue;
      if (p.state == RunState::fresh) automatic.push_back(planned.size() - 1);
      const bool begun = former && p.state != RunState::fresh;
      smallest = std::min(smallest, begun ? former->train.micro_batch : prepared.plan.model.B);
      common = std::gcd(common, prepared.plan.sequences_per_step);
    } catch (const UnsupportedError& error) {
      unsupported(p, error);
    }
  }
  const auto cannot_run = [](const PlannedRun& p) { return p.state == RunState::unsupported; };
  if (automatic.empty() && !std::all_of(planned.begin(), planned.end(), cannot_run)) return planned;

  std::int64_t shared = std::min(smallest, common);
  while (shared > 1 && common % shared != 0) --shared;
  for (const std::size_t i : automatic) {
    planned[i].request.config.train.micro_batch = shared;
    try {
      (void)prepare_run(planned[i].request);  // which products run in FP8 depends on the micro-batch
    } catch (const UnsupportedError& error) {
      unsupported(planned[i], error);
    }
  }
  if (std::all_of(planned.begin(), planned.end(), cannot_run))
    refuse(
        "sweep: found no run that this machine can do; {}: {}; allowed: \"fallback\": \"allow\", or another "
        "mode",
        planned.front().run.folder, planned.front().why_unsupported);
  return planned;
}

}  // namespace octavo
