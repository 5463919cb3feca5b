// run_folder.cpp - the lock, the three ways to use a folder, and the files that describe a run.
#include "run_folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/stat.h>

#include "console.h"
#include "error.h"
#include "files.h"
#include "json_text.h"
#include "machine.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kLockFile = ".lock";
// What a run leaves, besides the folder of checkpoints. A folder with one of these is used.
constexpr std::array kFiles{kResolvedFile, "run.json",  "metrics.jsonl", "metrics.csv",    "train.log",
                            "curves.png",  "curves.gp", "curves.dat",    "gemm_plan.json", "receipt.md"};

/// The first trace of a former run; empty where there is none.
std::string trace_of_run(const fs::path& folder) {
  for (const char* name : kFiles) {
    if (path_exists(folder / name)) return name;
  }
  return path_exists(folder / kCheckpoints) ? kCheckpoints : "";
}

/// An entry of a folder without a run; empty where there is none. Hidden ones, such as a lock that a killed
/// run left, do not count.
std::string foreign_entry(const fs::path& folder) {
  std::error_code ignored;
  for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end; it.increment(ignored)) {
    const std::string name = it->path().filename().string();
    if (name.front() != '.') return name;
  }
  return "";
}

/// Whether the folder's resolved.json or run.json is one that Octavo wrote.
bool is_run_of_ours(const fs::path& folder) {
  for (const char* name : {kResolvedFile, "run.json"}) {
    try {
      read_json_object(folder / name);
      return true;
    } catch (const RequestError&) {
      // missing or foreign: the other file decides
    }
  }
  return false;
}

/// The number that the holder of the lock wrote into the file; empty where it has not yet.
std::string holder(const fs::path& lock_file) {
  try {
    std::string text = read_whole_file(lock_file);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text.empty() || text.find_first_not_of("0123456789") != std::string::npos ? "" : " " + text;
  } catch (const RequestError&) {
    return "";
  }
}

[[noreturn]] void refuse_locked(const fs::path& folder) {
  refuse(
      "output.dir: process{} is training into {}; allowed: one process a folder: wait until it ends, or "
      "choose another "
      "folder with --set output.dir=DIR",
      holder(folder / kLockFile), folder.string());
}

/// Whether another process holds the lock, without leaving a lock file behind.
bool is_locked(const fs::path& folder) {
  const int fd = ::open((folder / kLockFile).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  const bool locked = ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return locked;
}

/// Refuses what a command may not do with what the folder holds.
void check_content(const fs::path& folder, FolderUse use) {
  const std::string trace = trace_of_run(folder);
  if (trace.empty()) {
    const std::string other = foreign_entry(folder);
    if (!other.empty())
      refuse(
          "output.dir: {} holds other files ({}) and no run; allowed: a new or an empty folder, such as "
          "--set output.dir={}",
          folder.string(), other, (folder / "run").lexically_normal().string());
    return;
  }
  if (use == FolderUse::resume) return;
  if (use == FolderUse::fresh) {
    refuse(
        "output.dir: {} already holds a run ({}); allowed: --resume to go on with it, --overwrite to replace "
        "it, or "
        "another folder with --set output.dir=DIR",
        folder.string(), trace);
  }
  if (!is_run_of_ours(folder)) {
    refuse(
        "output.dir: {} holds {} but no resolved.json or run.json of Octavo, so --overwrite removes nothing "
        "there; "
        "allowed: another folder with --set output.dir=DIR",
        folder.string(), trace);
  }
}

void check_is_folder(const fs::path& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (status.type() == fs::file_type::not_found || fs::is_directory(status)) return;
  if (error) refuse("output.dir: cannot use {}: {}", folder.string(), error.message());
  refuse("output.dir: {} is no folder; allowed: a folder, or a path that does not exist yet",
         folder.string());
}

/// Removes what a former run wrote, file by file: a folder may hold files of others.
void remove_run(const fs::path& folder) {
  std::error_code error;
  for (const char* name : kFiles) {
    if (!error) fs::remove(folder / name, error);
  }
  if (!error) fs::remove_all(folder / kCheckpoints, error);
  if (error) refuse("output.dir: cannot remove the former run in {}: {}", folder.string(), error.message());
}

/// resolved.json as it is.
Json read_resolved(const fs::path& folder) {
  if (!path_exists(folder / kResolvedFile)) {
    refuse("{}: no {} there; allowed: the folder of a run, as octavo train leaves it", folder.string(),
           kResolvedFile);
  }
  return read_json_object(folder / kResolvedFile);
}

}  // namespace

void RunFolder::check(const fs::path& folder, FolderUse use) {
  check_is_folder(folder);
  if (is_locked(folder)) refuse_locked(folder);
  check_content(folder, use);
}

RunFolder::RunFolder(const fs::path& folder, FolderUse use) : path_(folder) {
  check_is_folder(folder);
  check_content(folder, use);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) refuse("output.dir: cannot create {}: {}", folder.string(), error.message());
  lock();
  try {
    check_content(folder, use);  // again: another process may have run there between the check and the lock
    if (use == FolderUse::overwrite) remove_run(folder);
  } catch (...) {
    release();
    throw;
  }
}

RunFolder::~RunFolder() {
  release();
}

void RunFolder::lock() {
  const fs::path name = path_ / kLockFile;
  while (true) {
    lock_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock_ < 0) refuse("output.dir: cannot write into {}: {}", path_.string(), std::strerror(errno));
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      ::close(lock_);
      lock_ = -1;
      if (error == EWOULDBLOCK) refuse_locked(path_);
      ::unlink(name.c_str());
      lock_warning_ = fmt::format("{} cannot be locked ({}): start no second run in it", path_.string(),
                                  std::strerror(error));
      return;
    }
    // The former holder may have removed the file between open and flock; only a lock on the file that stands
    // there now keeps others out.
    struct stat ours {
    }, there{};
    if (::fstat(lock_, &ours) == 0 && ::stat(name.c_str(), &there) == 0 && ours.st_ino == there.st_ino) break;
    ::close(lock_);
  }
  const std::string pid = std::to_string(::getpid()) + "\n";
  // The number only serves a message: a full disk is no reason to stop here.
  [[maybe_unused]] const bool told = ::ftruncate(lock_, 0) == 0 && ::write(lock_, pid.data(), pid.size()) > 0;
}

void RunFolder::release() noexcept {
  if (lock_ < 0) return;
  ::unlink((path_.native() + "/" + kLockFile).c_str());
  ::close(lock_);
  lock_ = -1;
}

Json run_json(const RunInfo& info) {
  Json json;
  json["name"] = info.name;
  json["command"] = info.command;
  json["device"] = info.device;
  json["mode"] = info.mode;
  json["threads"] = info.threads;
  json["parameters"] = info.parameters;
  json["tokens_per_step"] = info.tokens_per_step;
  json["total_steps"] = info.total_steps;
  json["resumed_from"] = info.resumed_from;
  json["sessions"] = info.sessions;
  json["arithmetic"] = info.arithmetic;
  json["bit_equality_ends"] = bit_equality_json(info.bit_equality_ends);
  json["data_fingerprint"] = info.data_fingerprint;
  json["unigram_entropy"] = json_or_null(info.unigram_entropy);
  json["known_entropy"] = json_or_null(info.known_entropy);
  json["machine"] = machine_json();
  json["versions"] = versions_json();
  json["environment"] = environment_json();
  json["paths"] = Json::array();
  for (const PathRow& choice : info.paths) {
    json["paths"].push_back(
        {{"what", choice.what}, {"shape", choice.shape}, {"path", choice.path}, {"reason", choice.reason}});
  }
  json["memory"] = Json::array();
  for (const MemoryCategory& item : info.memory) {
    json["memory"].push_back({{"category", item.name}, {"bytes", item.bytes}});
  }
  return json;
}

void write_run_description(const RunFolder& folder, const Config& config,
                           const std::vector<std::string>& chosen, const RunInfo& info) {
  Json resolved;
  resolved[kChosenKey] = chosen;
  resolved.update(dump_config(config));
  write_json_atomically(folder.file(kResolvedFile), resolved);
  write_json_atomically(folder.file("run.json"), run_json(info));
}

Config read_resolved_config(const fs::path& folder, const std::vector<Override>& overrides) {
  return parse_config(read_resolved(folder).dump(), (folder / kResolvedFile).string(), overrides);
}

Config read_config_to_go_on(const fs::path& folder, const std::vector<Override>& overrides) {
  Json json = read_resolved(folder);
  (void)read_resolved_config(folder);  // refuses what has not the form of a config
  const Json chosen = json.contains(kChosenKey) ? json[kChosenKey] : Json::array();
  const auto is_chosen = [&](const std::string& path) {
    return std::count(chosen.begin(), chosen.end(), path) > 0;
  };
  const auto leave_out = [&](const char* section, const char* key) {
    if (json.contains(section)) json[section].erase(key);
  };
  if (is_chosen("threads")) json.erase("threads");
  for (const auto& [section, key] :
       {std::pair{"data", "seed"}, std::pair{"train", "sequence"}, std::pair{"train", "tokens_per_step"},
        std::pair{"optimizer", "min_lr"}, std::pair{"optimizer", "warmup_steps"},
        std::pair{"optimizer", "decay_steps"}})
    if (is_chosen(fmt::format("{}.{}", section, key))) leave_out(section, key);
  const bool new_length = std::any_of(overrides.begin(), overrides.end(), [](const Override& o) {
    return o.path == "train.steps" || o.path == "train.tokens" || o.path == "train.epochs";
  });
  if (new_length)
    for (const char* key : {"steps", "tokens", "epochs"}) leave_out("train", key);
  return parse_config(json.dump(), (folder / kResolvedFile).string(), overrides);
}

std::string paths_table(const std::vector<PathRow>& paths) {
  std::vector<std::array<std::string, 4>> rows{{"operator", "shape", "path", "reason"}};
  for (const PathRow& choice : paths) rows.push_back({choice.what, choice.shape, choice.path, choice.reason});
  std::array<std::size_t, 4> width{};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (width[i] != 0) line += fmt::format("{:<{}}  ", row[i], width[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string receipt_text(const Receipt& receipt) {
  const RunInfo& run = receipt.run;
  std::string text = fmt::format("# Octavo run: {}\n\n| | |\n|---|---|\n", run.name);
  const auto row = [&](const char* key, const std::string& value) {
    text += fmt::format("| {} | {} |\n", key, markdown_cell(value));
  };
  const auto loss = [](double nats) { return format_fixed(nats, 4) + " nats per token"; };
  row("command", "`" + run.command + "`");
  row("version", version_text());
  row("machine", describe(this_machine()));
  row("device", run.device);
  row("precision", run.mode);
  row("parameters", format_count(run.parameters));
  row("steps", fmt::format("{} of {}, {} tokens each, {} tokens in all", format_count(receipt.steps),
                           format_count(run.total_steps), format_count(run.tokens_per_step),
                           format_count(receipt.tokens)));
  row("training loss", loss(receipt.train_loss) + " (mean of the last 20 logged steps)");
  row("validation loss", receipt.val_loss ? loss(*receipt.val_loss) : "not taken");
  if (receipt.val_loss_bf16) row("validation loss, same weights in bf16", loss(*receipt.val_loss_bf16));
  if (run.unigram_entropy) row("unigram entropy", loss(*run.unigram_entropy));
  if (run.known_entropy) row("entropy of the source", loss(*run.known_entropy));
  row("tokens/s",
      std::isfinite(receipt.tokens_per_s) ? format_count(std::llround(receipt.tokens_per_s)) : "n/a");
  const std::string all = run.sessions > 1 ? fmt::format(" over {} sessions", run.sessions) : "";
  row("peak memory", fmt::format("{:.2f} GiB{}", receipt.peak_memory_gib, all));
  row("wall time", format_duration(receipt.seconds) + all);
  for (const BitEqualityEnd& end : run.bit_equality_ends)
    row("bit-equality",
        fmt::format("ends at step {}: {} until then, {} after it", end.step, end.was, end.now));
  row("data", run.data_fingerprint);
  row("status", receipt.status);
  return text + fmt::format("\n<!-- format_version {} -->\n", kFormatVersion);
}

}  // namespace octavo
