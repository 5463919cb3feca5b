// `octavo sweep`: several runs that differ in a few settings, one after the other, and the table that
// compares them.
#include "sweep.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <new>
#include <numeric>
#include <optional>
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
  std::optional<std::string> modes;
  std::vector<std::string> set;
  std::int64_t repeats = 0;
  bool resume = false, overwrite = false, dry_run = false;
};

/// "fp32,bf16" as a list; an empty one where the option was not given.
std::vector<std::string> split_modes(const std::optional<std::string>& text) {
  std::vector<std::string> modes;
  if (!text) return modes;
  for (std::size_t begin = 0; begin <= text->size();) {
    const std::size_t end = std::min(text->find(',', begin), text->size());
    modes.push_back(text->substr(begin, end - begin));
    if (modes.back().empty())
      refuse(
          "--modes: found \"{}\", with an empty mode; allowed: modes separated by commas, such as fp32,bf16",
          *text);
    begin = end + 1;
  }
  return modes;
}

/// Checks every run before the first one starts, and lets all runs split a step alike: a micro-batch left to
/// "auto" is the largest that all can use, up to the smallest that any of them chose. Runs to be gone on with
/// keep theirs, and the others take that.
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
    request.dry_run = arguments.dry_run;
    const PreparedRun prepared = prepare_run(request);
    if (request.config.train.micro_batch == 0 && !request.config.train.accumulate) {
      if (!prepared.checkpoint) automatic.push_back(requests.size());
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
  std::optional<double> total = 0;
  for (const RunRequest& request : requests) {
    PreparedRun run = prepare_run(request);
    const RunEstimate estimate = estimate_run(run);
    total = total && estimate.seconds ? std::optional(*total + *estimate.seconds) : std::nullopt;
    std::printf("%s\n", plan_text(run, estimate).c_str());
  }
  std::printf("%zu runs, estimated time in all: %s\n", requests.size(),
              total ? format_duration(*total).c_str() : "not known");
  return 0;
}

/// The sweep's table and picture, as files and on standard output.
void conclude(const std::vector<SweptRun>& runs, bool on_cpu, const std::filesystem::path& folder) {
  const Comparison comparison = compare_runs(runs, on_cpu);
  const PlotResult plot = write_comparison(comparison, folder);
  std::printf("%s", comparison_text(comparison).c_str());
  if (plot.drawn)
    std::printf("curves: %s\n", plot.picture.string().c_str());
  else
    std::printf("curves: not drawn: %s\n", plot.message.c_str());
}

int run_sweep(const SweepArguments& arguments) {
  const Sweep sweep = load_sweep(arguments.file, {.modes = split_modes(arguments.modes),
                                                  .repeats = arguments.repeats,
                                                  .overrides = parse_overrides(arguments.set)});
  const std::vector<RunRequest> requests = plan_requests(sweep, arguments);
  if (arguments.dry_run) return dry_run(requests);

  Console console;
  const StopSignal stop;
  std::vector<SweptRun> runs;
  bool on_cpu = true;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    console.info(fmt::format("run {} of {}: {}", i + 1, requests.size(), sweep.runs[i].folder));
    SweptRun swept{.name = sweep.runs[i].name,
                   .mode = requests[i].config.precision.mode,
                   .folder = requests[i].config.output.dir,
                   .peak_memory_gib = 0,
                   .failure = {}};
    int status = 0;
    // A run that fails is a result of the sweep; the others still are to be had.
    const auto failed = [&](const std::string& reason) {
      swept.failure = reason;
      console.warn(fmt::format("{} failed: {}", sweep.runs[i].folder, reason));
      console.finish();
      console.close_log();
    };
    try {
      PreparedRun run = prepare_run(requests[i]);
      const RunOutcome outcome = execute_run(run, console, stop);
      status = outcome.status;
      swept.mode = run.plan.mode;
      swept.peak_memory_gib = outcome.peak_memory_gib;
      on_cpu = on_cpu && run.backend->name() == "cpu";
    } catch (const RunError& e) {
      failed(e.what());
    } catch (const RequestError& e) {
      failed(e.what());
    } catch (const std::bad_alloc&) {
      failed("out of memory");
    }
    runs.push_back(std::move(swept));
    const bool last = i + 1 == requests.size();
    if (status != 0 || (stop.received() != 0 && !last)) {
      console.info("the sweep stops here; --resume goes on with it");
      return status != 0 ? status : exit_status_of(stop.received());
    }
  }
  console.finish();
  conclude(runs, on_cpu, sweep.dir);
  const auto failures =
      std::count_if(runs.begin(), runs.end(), [](const auto& run) { return !run.failure.empty(); });
  if (failures > 0)
    fail("{} of {} runs failed: {} has the reasons", failures, runs.size(),
         (sweep.dir / "comparison.md").string());
  return 0;
}

}  // namespace

void register_sweep(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("sweep", "Train several variants of a config and compare them");
  const auto o = std::make_shared<SweepArguments>();
  command->add_option("SWEEP", o->file, "Sweep file, or a config to train in several precision modes")
      ->required();
  command->add_option("--modes", o->modes, "Precision modes, separated by commas (a plain config: fp32,bf16)")
      ->type_name("A,B");
  accept(*command->add_option("--repeats", o->repeats, "Runs of each variant, with seeds one apart"),
         integer_from(1, 1000), "N");
  add_set_option(*command, o->set);
  CLI::Option* resume = command->add_flag("--resume", o->resume,
                                          "Go on where the sweep stopped: finished runs stay as they are");
  command->add_flag("--overwrite", o->overwrite, "Delete the former runs of this sweep")->excludes(resume);
  command->add_flag("--dry-run", o->dry_run,
                    "Check every run, print its plan and the estimated time, and exit");
  command->callback([&action, o] { action = [o] { return run_sweep(*o); }; });
}

}  // namespace octavo
