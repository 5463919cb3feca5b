// run_folder.h - the folder a run writes into: who may use it, and the files that describe the run.
//
//   resolved.json  the config as run            run.json    machine, versions, paths, memory, environment
//   metrics.jsonl  metrics.csv  (metrics.h)     train.log   (console.h)     curves.png  curves.gp  (plot.h)
//   receipt.md     a summary to paste           checkpoints/  (checkpoint.h)
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "checkpoint.h"
#include "config.h"
#include "model.h"

namespace octavo {

inline constexpr const char* kResolvedFile = "resolved.json";

enum class FolderUse { fresh, resume, overwrite };

/// A run's folder, locked against a second process for as long as this object lives.
class RunFolder {
 public:
  /// Refuses, without touching anything, what the constructor would refuse: `fresh` in a used folder (the
  /// message gives the three ways out), any use of a folder that holds other files and no run, a path that is
  /// no folder, `overwrite` of something that is no run of ours, or another process training there. For the
  /// start of a command and for --dry-run. Throws RequestError.
  static void check(const std::filesystem::path& folder, FolderUse use);

  /// check(), then creates the folder where it is missing and locks it. `overwrite` removes the files of the
  /// former run that Octavo writes, and nothing else. Call it when every other request has been checked, so
  /// that a refused run leaves no folder. Throws RequestError.
  RunFolder(const std::filesystem::path& folder, FolderUse use);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path file(const std::string& name) const { return path_ / name; }
  std::filesystem::path checkpoints() const { return path_ / kCheckpoints; }

  /// Where the file system knows no locks: the reason, to be shown as a warning. Else empty.
  const std::string& lock_warning() const { return lock_warning_; }

 private:
  void lock();
  void release() noexcept;

  std::filesystem::path path_;
  int lock_ = -1;
  std::string lock_warning_;
};

/// The facts of one run that only the run itself knows; machine, versions and environment are added by
/// run_json().
struct RunInfo {
  std::string command;  // as typed
  std::string name;     // the run's
  std::string device;   // Backend::description()
  std::string mode;     // precision.mode as run
  int threads = 0;
  std::int64_t parameters = 0;       // count without padding
  std::int64_t tokens_per_step = 0;  // global
  std::int64_t total_steps = 0;
  std::int64_t resumed_from = 0;  // 0: from the start
  std::int64_t sessions = 1;      // starts and resumes so far, this one included
  std::string arithmetic;         // Backend::arithmetic()
  std::vector<BitEqualityEnd> bit_equality_ends;
  std::string data_fingerprint;
  std::optional<double>
      unigram_entropy;  // nats per token of the validation text: what knowing no context gives
  std::optional<double> known_entropy;  // nats per token, of a synthetic source: the floor of the loss
  std::vector<PathRow> paths;
  std::vector<MemoryCategory> memory;
};

/// run.json's content. Holds no host name, user name or other path than those of the command.
nlohmann::ordered_json run_json(const RunInfo& info);
/// Writes resolved.json, with the paths of the fields that Octavo chose, and run.json.
void write_run_description(const RunFolder& folder, const Config& config,
                           const std::vector<std::string>& chosen, const RunInfo& info);
/// The config of a run as its resolved.json holds it, with overrides. Throws RequestError where the folder
/// has none or it is damaged.
Config read_resolved_config(const std::filesystem::path& folder, const std::vector<Override>& overrides = {});
/// The same to train on with. What Octavo chose by a rule from other fields (warm-up and decay from the
/// steps, optimizer.min_lr from lr, ...) is left to the rule again, so that an override means what it would
/// mean in the file that the run was started with; and one of train.steps, tokens or epochs takes the place
/// of the length that the run had.
Config read_config_to_go_on(const std::filesystem::path& folder, const std::vector<Override>& overrides);
/// The table of paths, aligned, one row a choice, for the terminal and train.log.
std::string paths_table(const std::vector<PathRow>& paths);

/// What receipt.md says.
struct Receipt {
  RunInfo run;
  std::int64_t steps = 0, tokens = 0;
  double train_loss = 0;  // trailing_loss()
  std::optional<double> val_loss;
  std::optional<double> val_loss_bf16;  // of an FP8 run's masters
  double tokens_per_s = 0;              // median_tokens_per_s()
  double peak_memory_gib = 0;           // the largest of all sessions
  double seconds = 0;                   // wall time of all sessions
  std::string status;                   // "finished", "stopped by SIGTERM, resumable", ...
};
/// Markdown to paste: command, version and commit, machine, model, tokens/s, memory, losses.
std::string receipt_text(const Receipt& receipt);

}  // namespace octavo
