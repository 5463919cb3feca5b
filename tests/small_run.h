// small_run.h - runs small enough for a test: a text of a few sentences, a model of two layers.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "config.h"
#include "metrics.h"
#include "program.h"
#include "run.h"
#include "safetensors.h"
#include "temp_dir.h"

namespace octavo::testing {

/// About 40 KB of text with structure to learn, made from a fixed list of words.
inline std::string small_text() {
  const char* words[] = {"the ",   "printer ", "folds ",  "a ",     "sheet ", "into ",
                         "eight ", "leaves, ", "and ",    "each ",  "leaf ",  "has ",
                         "two ",   "pages.\n", "octavo ", "means ", "eight. "};
  std::string text;
  unsigned x = 12345;
  while (text.size() < 40000) {
    x = x * 1103515245u + 12345u;
    text += words[(x >> 16) % std::size(words)];
  }
  return text;
}

/// A workplace with corpus.txt and a config of two layers over it.
struct SmallRun {
  TempDir dir;
  std::string text = dir.file("corpus.txt", small_text());

  nlohmann::json json(const std::string& mode) const {
    return {{"name", "small"},
            {"model", {{"layers", 2}, {"channels", 48}, {"heads", 3}, {"context", 37}}},
            {"precision", {{"mode", mode}}},
            {"data", {{"train", text}, {"val_fraction", 0.1}}},
            {"train",
             {{"steps", 20},
              {"micro_batch", 3},
              {"accumulate", 2},
              {"eval_every", 5},
              {"eval_tokens", 500},
              {"checkpoint_every", 10}}},
            {"optimizer", {{"lr", 1e-2}, {"warmup_steps", 3}, {"decay_steps", 30}}},
            {"output", {{"dir", (dir.path / "run").string()}}}};
  }

  /// Runs in this process, quietly, and returns the run's folder.
  std::filesystem::path train(nlohmann::json config, const std::string& folder,
                              FolderUse use = FolderUse::fresh,
                              std::function<double()> now = steady_seconds) const {
    config["output"]["dir"] = (dir.path / folder).string();
    RunRequest request;
    request.config = parse_config(config.dump(), "small.json");
    request.use = use;
    request.now = std::move(now);
    PreparedRun run = prepare_run(std::move(request));
    std::FILE* nowhere = std::fopen("/dev/null", "w");
    {
      ConsoleOptions quiet;
      quiet.stream = nowhere;
      Console console(quiet);
      const StopSignal stop;
      execute_run(run, console, stop);
    }
    std::fclose(nowhere);
    return dir.path / folder;
  }
};

/// What training computed, as bytes: losses, rates and norms of every step, weights and optimizer state at
/// the end.
inline std::string training_bits(const std::filesystem::path& run) {
  std::string bits;
  const auto add = [&](double v) { bits.append(reinterpret_cast<const char*>(&v), sizeof v); };
  for (const StepRecord& r : read_metrics(run / "metrics.jsonl")) add(r.loss), add(r.lr), add(r.grad_norm);
  const Checkpoint last = newest_checkpoint(run / "checkpoints").value();
  for (const char* file : {"model.safetensors", "optimizer_rank0000.safetensors", kFp8File}) {
    if (!std::filesystem::exists(last.folder / file)) continue;  // outside FP8 there are no scales
    const SafetensorsFile tensors(last.folder / file);
    for (const SavedTensor& t : tensors.tensors())
      bits.append(reinterpret_cast<const char*>(tensors.bytes(t)), t.end - t.begin);
  }
  return bits;
}

}  // namespace octavo::testing
