// `octavo sweep`: several runs that differ in a few settings, one after the other, and the table that
// compares them.
#include "sweep.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "commands/common_options.h"
#include "comparison.h"
#include "console.h"
#include "error.h"
#include "run.h"

namespace octavo {
namespace {

struct SweepArguments {
  std::string file;
  std::vector<std::string> modes, set;
  std::int64_t repeats = 0;
  bool resume = false, overwrite = false, dry_run = false;
};

/// Checks every run before the first one starts, and lets all runs split a step alike: a micro-batch left to
/// "auto" is the largest that all can use, up to the smallest that any of them chose. Runs to be gone on with
/// keep theirs.
std::vector<RunRequest> plan_requests(const Sweep& sweep, const SweepArguments& arguments) {
  std::vector<RunRequest> requests;
  std::vector<std::size_t> automatic;
  std::int64_t smallest = std::numeric_limits<std::int64_t>::max(), common = 0;
  for (const SweepRun& run : sweep.runs) {
    RunRequest request;
    request.config = load_config(sweep.base, run.overrides);
    request.use = arguments.resume      ? FolderUse::resume
                  : arguments.overwrite ? FolderUse::overwrite
                                        : FolderUse::fresh;
    request.command = command_line();
    request.label = run.folder;
    const PreparedRun prepared = prepare_run(request);
    if (request.config.train.micro_batch == 0 && !request.config.train.accumulate && !prepared.checkpoint) {
      automatic.push_back(requests.size());
      smallest = std::min(smallest, prepared.plan.model.B);
      common = std::gcd(common, prepared.plan.sequences_per_step);
    }
    requests.push_back(std::move(request));
  }
  if (automatic.empty()) return requests;
  std::int64_t shared = std::min(smallest, common);
  while (common % shared != 0) --shared;
  for (std::size_t i : automatic) requests[i].config.train.micro_batch = shared;
  return requests;
}

int dry_run(const std::vector<RunRequest>& requests) {
  double total = 0;
  for (const RunRequest& request : requests) {
    PreparedRun run = prepare_run(request);
    const double seconds = estimate_seconds(run);
    total += seconds;
    std::printf("%s\n", plan_text(run, seconds).c_str());
  }
  std::printf("%zu runs, estimated time in all: %s\n", requests.size(), format_duration(total).c_str());
  return 0;
}

int run_sweep(const SweepArguments& arguments) {
  for (const std::string& mode : arguments.modes)
    if (mode.empty())
      refuse("--modes: found an empty mode; allowed: modes separated by commas, such as fp32,bf16");
  const Sweep sweep = load_sweep(
      arguments.file,
      {.modes = arguments.modes, .repeats = arguments.repeats, .overrides = parse_overrides(arguments.set)});
  const std::vector<RunRequest> requests = plan_requests(sweep, arguments);
  if (arguments.dry_run) return dry_run(requests);

  Console console;
  const StopSignal stop;
  std::vector<FinishedRun> finished;
  bool on_cpu = true;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    console.info(fmt::format("run {} of {}: {}", i + 1, requests.size(), sweep.runs[i].folder));
    PreparedRun run = prepare_run(requests[i]);
    const RunOutcome outcome = execute_run(run, console, stop);
    const bool last = i + 1 == requests.size();
    if (outcome.status != 0 || (stop.received() != 0 && !last)) {
      console.info("the sweep stops here; --resume goes on with it");
      return outcome.status != 0 ? outcome.status : exit_status_of(stop.received());
    }
    on_cpu = on_cpu && run.backend->name() == "cpu";
    finished.push_back({.name = sweep.runs[i].name,
                        .mode = run.plan.mode,
                        .folder = run.plan.config.output.dir,
                        .peak_memory_gib = outcome.peak_memory_gib});
  }
  const Comparison comparison = compare_runs(finished, on_cpu);
  const PlotResult plot = write_comparison(comparison, sweep.dir);
  console.finish();
  std::printf("%s", comparison_text(comparison).c_str());
  if (plot.drawn)
    std::printf("curves: %s\n", plot.picture.string().c_str());
  else
    std::printf("curves: not drawn: %s\n", plot.message.c_str());
  return 0;
}

}  // namespace

void register_sweep(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("sweep", "Train several variants of a config and compare them");
  const auto o = std::make_shared<SweepArguments>();
  command->add_option("file", o->file, "Sweep file, or a config to train in several precision modes")
      ->required();
  command->add_option("--modes", o->modes, "Precision modes, separated by commas (a plain config: fp32,bf16)")
      ->delimiter(',')
      ->expected(1)
      ->take_all();
  command->add_option("--repeats", o->repeats, "Runs of each variant, with seeds one apart")
      ->check(CLI::Range(1, 1000));
  add_set_option(*command, o->set);
  CLI::Option* resume = command->add_flag("--resume", o->resume, "Go on where the sweep stopped");
  command->add_flag("--overwrite", o->overwrite, "Delete the former runs of this sweep")->excludes(resume);
  command->add_flag("--dry-run", o->dry_run,
                    "Check every run, print its plan and the estimated time, and exit");
  command->callback([&action, o] { action = [o] { return run_sweep(*o); }; });
}

}  // namespace octavo
