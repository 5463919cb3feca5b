// `octavo train`: one run from a config, or one to go on with from its folder.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "commands/common_options.h"
#include "error.h"
#include "files.h"
#include "run.h"
#include "run_job.h"

namespace octavo {
namespace {

struct TrainOptions {
  std::string source;
  std::vector<std::string> set;
  bool resume = false, overwrite = false, dry_run = false;
  int job = -1;  // the socket to a sweep that started this process
};

int train(const TrainOptions& options) {
  if (options.job >= 0) return train_for_parent(options.job);
  const std::filesystem::path source = options.source;
  const bool is_run = is_folder(source);
  if (is_run && !path_exists(source / kResolvedFile))
    refuse("{}: found a folder without resolved.json; allowed: a config file or a run's folder",
           options.source);
  if (is_run && !options.resume && !options.overwrite)
    refuse("{}: found a run's folder; allowed: --resume to go on, --overwrite to start it anew",
           options.source);

  RunRequest request;
  const std::vector<Override> overrides = parse_overrides(options.set);
  request.config = is_run ? read_config_to_go_on(source, overrides) : load_config(options.source, overrides);
  // A run's folder is meant wherever it lies now, not where it was made.
  const bool moved = std::any_of(overrides.begin(), overrides.end(),
                                 [](const Override& o) { return o.path == "output.dir"; });
  if (is_run && !moved) request.config.output.dir = source.string();
  request.use = options.resume      ? FolderUse::resume
                : options.overwrite ? FolderUse::overwrite
                                    : FolderUse::fresh;
  request.command = command_line();
  request.dry_run = options.dry_run;
  PreparedRun run = prepare_run(std::move(request));
  if (options.dry_run) {
    std::printf("%s\n%s", dump_config(run.plan.config).dump(2).c_str(),
                plan_text(run, estimate_run(run)).c_str());
    return 0;
  }
  Console console;
  const StopSignal stop;
  return execute_run(run, console, stop).status;
}

}  // namespace

void register_train(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("train", "Train a model from a config, or go on with a run");
  const auto o = std::make_shared<TrainOptions>();
  command->add_option("CONFIG", o->source, "Config file, or a run's folder with --resume or --overwrite")
      ->required();
  add_set_option(*command, o->set);
  CLI::Option* resume = command->add_flag(
      "--resume", o->resume, "Go on from the newest complete checkpoint; start afresh where there is none");
  command->add_flag("--overwrite", o->overwrite, "Delete the former run in output.dir")->excludes(resume);
  command->add_flag(
      "--dry-run", o->dry_run,
      "Check everything, print config, memory, disk, tokens a step and the estimated time, and exit");
  // For `octavo sweep` alone, which starts its runs so (run_job.h); in no group, so that no help shows it.
  command->add_option("--job", o->job)->group("");
  command->callback([&action, o] { action = [o] { return train(*o); }; });
}

}  // namespace octavo
