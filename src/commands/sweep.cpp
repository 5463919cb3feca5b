// `octavo sweep`: several runs that differ in a few settings, one after the other, each in a process of its
// own, and the tables that compare them.
#include "sweep.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "commands/common_options.h"
#include "comparison.h"
#include "console.h"
#include "error.h"
#include "run_job.h"
#include "sweep_plan.h"

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

/// "fp8: finished, kept".
std::string state_text(const PlannedRun& planned) {
  switch (planned.state) {
    case RunState::fresh:
      return planned.run.folder;
    case RunState::unfinished:
      return fmt::format("{}: goes on after step {}", planned.run.folder, planned.steps_done);
    case RunState::finished:
      return fmt::format("{}: finished, kept", planned.run.folder);
    case RunState::unsupported:
      return fmt::format("{}: unsupported: {}", planned.run.folder, planned.why_unsupported);
  }
  throw std::logic_error("unknown state of a run");
}

/// "run 2 of 6: fp8: finished, kept".
std::string heading(const std::vector<PlannedRun>& runs, std::size_t i) {
  return fmt::format("run {} of {}: {}", i + 1, runs.size(), state_text(runs[i]));
}

int dry_run(const std::vector<PlannedRun>& runs) {
  std::optional<double> total = 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::printf("%s\n", heading(runs, i).c_str());
    if (runs[i].state == RunState::unsupported || runs[i].state == RunState::finished) continue;
    PreparedRun run = prepare_run(runs[i].request);
    const RunEstimate estimate = estimate_run(run);
    total = total && estimate.seconds ? std::optional(*total + *estimate.seconds) : std::nullopt;
    const CheckpointDisk disk = checkpoint_disk(run);
    bytes += disk.bytes * disk.at_most;
    std::printf("%s\n", plan_text(run, estimate).c_str());
  }
  std::printf("%zu runs, disk for checkpoints in all: up to %s\n", runs.size(),
              format_bytes(static_cast<double>(bytes)).c_str());
  std::printf("%zu runs, estimated time in all: %s\n", runs.size(),
              total ? format_duration(*total).c_str() : "not known");
  return 0;
}

/// The sweep's tables and picture, as files and on standard output.
void conclude(const std::vector<SweptRun>& runs, const Sweep& sweep, bool on_cpu) {
  const Comparison comparison =
      compare_runs(runs, {.on_cpu = on_cpu, .baseline = sweep.baseline, .target_loss = sweep.target_loss});
  const PlotResult plot = write_comparison(comparison, sweep.dir);
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
  const std::vector<PlannedRun> planned =
      plan_sweep(sweep, arguments.overwrite, arguments.dry_run, command_line());
  if (arguments.dry_run) return dry_run(planned);

  Console console;
  const StopSignal stop;
  std::vector<SweptRun> runs;
  bool on_cpu = true;
  remove_comparison(sweep.dir);
  for (std::size_t i = 0; i < planned.size(); ++i) {
    const PlannedRun& p = planned[i];
    console.info(heading(planned, i));
    SweptRun& swept = runs.emplace_back();
    swept = {.name = p.run.name,
             .mode = p.mode,
             .folder = p.request.config.output.dir,
             .seed = p.seed,
             .peak_memory_gib = p.peak_memory_gib,
             .failure = {},
             .unsupported = p.why_unsupported};
    if (p.state == RunState::unsupported) continue;
    on_cpu = on_cpu && p.on_cpu;
    if (p.state == RunState::finished) continue;
    const RunReport report = run_in_child(p.request, stop);
    swept.peak_memory_gib = std::max(swept.peak_memory_gib, report.peak_memory_gib);
    if (report.end == RunReport::End::failed) swept.failure = report.message;
    if (report.end == RunReport::End::unsupported) swept.unsupported = report.message;
    if (!report.told && report.end == RunReport::End::failed)
      console.warn(fmt::format("{} failed: {}", p.run.folder, report.message));
    if (!report.told && report.end == RunReport::End::unsupported)
      console.info(fmt::format("{}: unsupported: {}", p.run.folder, report.message));
    const bool last = i + 1 == planned.size(), stopped = report.end == RunReport::End::stopped;
    if (stopped || (stop.received() != 0 && !last)) {
      console.info("the sweep stops here; the same command goes on with it");
      return stopped ? report.status : exit_status_of(stop.received());
    }
  }
  conclude(runs, sweep, on_cpu);
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
  command
      ->add_option("--modes", o->modes,
                   "Precision modes, separated by commas (a plain config: fp32,bf16,fp8)")
      ->type_name("A,B");
  accept(*command->add_option("--repeats", o->repeats, "Runs of each variant, with seeds one apart"),
         integer_from(1, 1000), "N");
  add_set_option(*command, o->set);
  CLI::Option* resume = command->add_flag(
      "--resume", o->resume,
      "Go on where the sweep stopped, which it does anyway: finished runs stay as they are");
  command->add_flag("--overwrite", o->overwrite, "Delete the former runs of this sweep")->excludes(resume);
  command->add_flag("--dry-run", o->dry_run,
                    "Check every run, print its plan and the estimated time, and exit");
  command->callback([&action, o] { action = [o] { return run_sweep(*o); }; });
}

}  // namespace octavo
