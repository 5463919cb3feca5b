// Who may use a run's folder, what stays untouched when a request is refused, and what describes the run.
#include "run_folder.h"

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <string>
#include <unistd.h>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/wait.h>

#include "catch.h"
#include "environment.h"
#include "error.h"
#include "files.h"
#include "machine.h"
#include "temp_dir.h"

using namespace octavo;
namespace fs = std::filesystem;

namespace {

/// All names below a folder, sorted, in one line.
std::string listing(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    names.push_back(entry.path().lexically_relative(folder).string());
  }
  std::sort(names.begin(), names.end());
  std::string line;
  for (const std::string& name : names) line += name + " ";
  return line;
}

void leave_run(const testing::TempDir& dir) {
  write_json_atomically(dir.path / "resolved.json", nlohmann::ordered_json::object());
  dir.file("metrics.jsonl", "");
  dir.file("curves.gp", "");
  dir.file("checkpoints/step_00000001/state.json", "{}");
  dir.file("notes.txt", "mine");
}

RunInfo example() {
  RunInfo info;
  info.command = "octavo train a|b.json";
  info.name = "demo";
  info.device = "cpu, AVX2, 2 threads";
  info.mode = "bf16";
  info.threads = 2;
  info.parameters = 1234567;
  info.tokens_per_step = 4096;
  info.total_steps = 100;
  info.data_fingerprint = "sha256:12";
  info.unigram_entropy = 3.47;
  info.paths = {{"layer.qkv fprop", "m=8 n=24 k=8", "oneDNN bf16", ""},
                {"attention", "", "own kernel", "head size 8"}};
  info.memory = {{"parameters", 100}, {"activations", 200}};
  return info;
}

}  // namespace

TEST_CASE("run_folder: a fresh run creates its folder and leaves no lock behind") {
  const testing::TempDir dir;
  const fs::path folder = dir.path / "runs" / "a";
  RunFolder::check(folder, FolderUse::fresh);
  CHECK_FALSE(fs::exists(folder.parent_path()));
  {
    const RunFolder run(folder, FolderUse::fresh);
    CHECK(run.lock_warning().empty());
    CHECK(run.file("x") == folder / "x");
    CHECK(listing(folder) == ".lock ");
  }
  CHECK(listing(folder).empty());
  const RunFolder again(folder, FolderUse::fresh);  // an empty folder is not used
}

TEST_CASE("run_folder: a used folder is refused with the three ways out, and untouched") {
  const testing::TempDir dir;
  leave_run(dir);
  const std::string before = listing(dir.path);
  CHECK_THROWS_AS(RunFolder(dir.path, FolderUse::fresh), RequestError);
  const std::string message =
      dir.path.string() +
      " already holds a run (resolved.json); allowed: --resume to go on with it, --overwrite "
      "to replace it, or another folder with --set output.dir=DIR";
  CHECK_THROWS_WITH(RunFolder(dir.path, FolderUse::fresh), ContainsSubstring(message));
  CHECK_THROWS_WITH(RunFolder::check(dir.path, FolderUse::fresh), ContainsSubstring(message));
  CHECK(listing(dir.path) == before);

  const testing::TempDir only_checkpoints;
  only_checkpoints.file("checkpoints/step_00000001/x", "");
  CHECK_THROWS_WITH(RunFolder(only_checkpoints.path, FolderUse::fresh), ContainsSubstring("(checkpoints)"));
}

TEST_CASE("run_folder: resume keeps everything, overwrite removes the run and nothing else") {
  const testing::TempDir dir;
  leave_run(dir);
  const std::string before = listing(dir.path);
  { const RunFolder run(dir.path, FolderUse::resume); }
  CHECK(listing(dir.path) == before);
  RunFolder::check(dir.path, FolderUse::overwrite);
  CHECK(listing(dir.path) == before);
  { const RunFolder run(dir.path, FolderUse::overwrite); }
  CHECK(listing(dir.path) == "notes.txt ");
  CHECK_NOTHROW(RunFolder(dir.path / "new", FolderUse::resume));
  CHECK_NOTHROW(RunFolder(dir.path / "other", FolderUse::overwrite));
}

TEST_CASE("run_folder: overwrite does not remove what Octavo did not write") {
  const testing::TempDir dir;
  dir.file("checkpoints/precious", "mine");
  dir.file("resolved.json", "{\"mine\": true}");
  const std::string before = listing(dir.path);
  CHECK_THROWS_WITH(RunFolder(dir.path, FolderUse::overwrite),
                    ContainsSubstring("--overwrite removes nothing there"));
  CHECK(listing(dir.path) == before);
}

TEST_CASE("run_folder: a folder of other files without a run is refused, whatever is asked") {
  const testing::TempDir dir;
  dir.file("notes.txt", "mine");
  for (const FolderUse use : {FolderUse::fresh, FolderUse::resume, FolderUse::overwrite}) {
    CHECK_THROWS_AS(RunFolder::check(dir.path, use), RequestError);
    CHECK_THROWS_WITH(
        RunFolder(dir.path, use),
        ContainsSubstring(dir.path.string() +
                          " holds other files (notes.txt) and no run; allowed: a new or an empty "
                          "folder, such as --set output.dir=" +
                          (dir.path / "run").string()));
  }
  CHECK(listing(dir.path) == "notes.txt ");
  const testing::TempDir killed;
  killed.file(".lock", "1234\n");  // what a killed run leaves at the least
  CHECK_NOTHROW(RunFolder(killed.path, FolderUse::fresh));
}

TEST_CASE("run_folder: a path that cannot be a folder is refused") {
  const testing::TempDir dir;
  const std::string file = dir.file("file", "");
  CHECK_THROWS_WITH(RunFolder(file, FolderUse::fresh), ContainsSubstring(file + " is no folder"));
  CHECK_THROWS_AS(RunFolder(fs::path(file) / "run", FolderUse::fresh), RequestError);
  CHECK_THROWS_WITH(RunFolder("/proc/octavo_run", FolderUse::fresh),
                    ContainsSubstring("cannot create /proc/octavo_run"));
}

TEST_CASE("run_folder: two processes do not train into one folder; a killed one frees it") {
  const testing::TempDir dir;
  const std::string lock = (dir.path / ".lock").string();
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {  // only system calls here: the test program may have threads
    const int fd = open(lock.c_str(), O_RDWR | O_CREAT, 0666);
    const char locked = flock(fd, LOCK_EX) == 0 ? 'y' : 'n';
    if (write(ready[1], &locked, 1) == 1) pause();
    _exit(0);
  }
  char locked = 'n';
  REQUIRE(read(ready[0], &locked, 1) == 1);
  REQUIRE(locked == 'y');
  close(ready[0]);
  close(ready[1]);
  dir.file(".lock", std::to_string(child) + "\n");

  const std::string message = "process " + std::to_string(child) + " is training into " + dir.path.string();
  for (const FolderUse use : {FolderUse::fresh, FolderUse::resume, FolderUse::overwrite}) {
    CHECK_THROWS_AS(RunFolder(dir.path, use), RequestError);
    CHECK_THROWS_WITH(RunFolder(dir.path, use), ContainsSubstring(message));
    CHECK_THROWS_WITH(RunFolder::check(dir.path, use), ContainsSubstring(message));
  }
  CHECK(fs::exists(lock));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  RunFolder::check(dir.path, FolderUse::fresh);
  const RunFolder mine(dir.path, FolderUse::fresh);
  CHECK(read_whole_file(lock) == std::to_string(getpid()) + "\n");
  CHECK_THROWS_WITH(RunFolder(dir.path, FolderUse::resume),
                    ContainsSubstring("process " + std::to_string(getpid()) + " is training"));
}

TEST_CASE("run_folder: run.json tells machine, versions, paths, memory and environment, and no host name") {
  const testing::TempDir dir;
  const testing::ScopedVariable isa("ONEDNN_MAX_CPU_ISA", "AVX2");
  const nlohmann::ordered_json json = run_json(example());
  CHECK(json["name"] == "demo");
  CHECK(json["unigram_entropy"] == 3.47);
  CHECK(json["known_entropy"].is_null());
  CHECK(json["paths"].size() == 2);
  CHECK(json["paths"][1]["reason"] == "head size 8");
  CHECK(json["memory"][1]["category"] == "activations");
  CHECK(json["memory"][1]["bytes"] == 200);
  CHECK(json["environment"]["ONEDNN_MAX_CPU_ISA"] == "AVX2");
  CHECK(json["machine"]["processor"] == this_machine().processor);
  CHECK_FALSE(json["versions"]["commit"].get<std::string>().empty());
  CHECK(run_json({})["paths"].is_array());  // empty lists stay lists
}

TEST_CASE("run_folder: the config comes back from resolved.json") {
  const testing::TempDir dir;
  const Config config = parse_config(R"({"data": {"train": "x.txt"}, "train": {"steps": 7}})", "demo.json");
  {
    const RunFolder folder(dir.path / "run", FolderUse::fresh);
    write_run_description(folder, config, {"train.steps"}, example());
  }
  CHECK(read_json_object(dir.path / "run" / "run.json")["format_version"] == 1);
  CHECK(read_json_object(dir.path / "run" / "resolved.json")["format_version"] == 1);
  CHECK(compare_configs(config, read_resolved_config(dir.path / "run")).empty());
  CHECK_THROWS_WITH(read_resolved_config(dir.path), ContainsSubstring("no resolved.json there"));
}

TEST_CASE("run_folder: what was chosen is chosen again where a run goes on with other settings") {
  const testing::TempDir dir;
  const Config config = parse_config(R"({"data": {"train": "x.txt", "seed": 3}, "threads": 2,
      "train": {"steps": 100, "tokens_per_step": 64, "micro_batch": 2, "sequence": 8},
      "optimizer": {"lr": 0.1, "min_lr": 0.01, "warmup_steps": 2, "decay_steps": 98}})",
                                     "demo.json");
  {
    const RunFolder folder(dir.path / "run", FolderUse::fresh);
    write_run_description(folder, config,
                          {"threads", "data.seed", "train.tokens_per_step", "train.micro_batch",
                           "optimizer.min_lr", "optimizer.decay_steps", "train.steps"},
                          example());
  }
  const auto go_on = [&](const std::vector<Override>& overrides) {
    return read_config_to_go_on(dir.path / "run", overrides);
  };
  const Config same = go_on({});
  CHECK(same.threads == 0);
  CHECK_FALSE(same.data.seed);
  CHECK_FALSE(same.train.tokens_per_step);
  CHECK_FALSE(same.optimizer.min_lr);
  CHECK_FALSE(same.optimizer.decay_steps);
  CHECK(same.optimizer.warmup_steps == 2);  // written by whoever wrote the config
  CHECK(same.train.sequence == 8);
  CHECK(same.train.steps == 100);
  CHECK(same.train.micro_batch == 2);
  CHECK(go_on({{"optimizer.lr", "0.001"}}).optimizer.lr == 0.001);  // below the min_lr that was chosen
  CHECK(go_on({{"train.accumulate", "4"}}).train.accumulate == 4);
  const Config longer = go_on({{"train.epochs", "2"}});
  CHECK(longer.train.epochs == 2);
  CHECK_FALSE(longer.train.steps);

  dir.file("run/resolved.json", R"({"format_version": 1, "chosen": "all", "data": {"train": "x"}})");
  CHECK_THROWS_WITH(go_on({}),
                    ContainsSubstring("chosen in ") && ContainsSubstring("found \"all\"; allowed: a list"));
  dir.file("run/resolved.json",
           R"({"format_version": 1, "chosen": ["optimizer.min_lr"], "data": {"train": "x"}})");
  CHECK(go_on({{"train.steps", "5"}}).train.steps == 5);
}

TEST_CASE("run_folder: the table of paths is aligned") {
  CHECK(paths_table(example().paths) ==
        "operator         shape         path         reason\n"
        "layer.qkv fprop  m=8 n=24 k=8  oneDNN bf16\n"
        "attention                      own kernel   head size 8\n");
}

TEST_CASE("run_folder: the receipt has everything to paste") {
  Receipt receipt;
  receipt.run = example();
  receipt.steps = 90;
  receipt.tokens = 368640;
  receipt.train_loss = 2.5;
  receipt.val_loss = 2.625;
  receipt.tokens_per_s = 12345.4;
  receipt.peak_memory_gib = 0.5;
  receipt.seconds = 185;
  receipt.status = "stopped by SIGTERM, resumable";
  const std::string text = receipt_text(receipt);
  for (const char* row :
       {"# Octavo run: demo", "| command | `octavo train a\\|b.json` |", "| device | cpu, AVX2, 2 threads |",
        "| precision | bf16 |", "| parameters | 1,234,567 |",
        "| steps | 90 of 100, 4,096 tokens each, 368,640 tokens in all |",
        "| training loss | 2.5000 nats per token", "| validation loss | 2.6250 nats per token |",
        "| unigram entropy | 3.4700 nats per token |", "| tokens/s | 12,345 |", "| peak memory | 0.50 GiB |",
        "| wall time | 3 min 05 s |", "| status | stopped by SIGTERM, resumable |",
        "\n<!-- format_version 1 -->\n"}) {
    CHECK_THAT(text, ContainsSubstring(row));
  }
  CHECK_THAT(text, ContainsSubstring(version_text()) && ContainsSubstring(this_machine().processor));
  receipt.val_loss.reset();
  CHECK_THAT(receipt_text(receipt), ContainsSubstring("| validation loss | not taken |"));
  CHECK_THAT(receipt_text(receipt), !ContainsSubstring("session") && !ContainsSubstring("bit-equality"));
  receipt.run.sessions = 3;
  receipt.run.bit_equality_ends = {{.step = 40, .was = "kernels for AVX-512", .now = "kernels for AVX2"}};
  CHECK_THAT(
      receipt_text(receipt),
      ContainsSubstring("| peak memory | 0.50 GiB over 3 sessions |") &&
          ContainsSubstring("| wall time | 3 min 05 s over 3 sessions |") &&
          ContainsSubstring("| bit-equality | ends at step 40: kernels for AVX-512 until then, kernels for "
                            "AVX2 after it |"));
}
