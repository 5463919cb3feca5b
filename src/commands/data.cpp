// data.cpp - `octavo data pack | synth | info`: text to shards, corpora of known entropy, and what files
// hold.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "data/inspect.h"
#include "data/pack.h"
#include "data/synth.h"
#include "error.h"

namespace octavo {

namespace {

void to_stderr(const std::string& line) {
  fmt::print(stderr, "{}\n", line);
}

std::int64_t tokens_of(const std::vector<DatasetShard>& shards) {
  std::int64_t tokens = 0;
  for (const DatasetShard& shard : shards) tokens += shard.tokens;
  return tokens;
}

// What was made, and the lines of a config that use it.
void print_result(const DatasetDescription& d, const std::string& folder) {
  fmt::print("{}: {} training tokens in {} shards, {} validation tokens in {}, vocabulary {}\n", folder,
             tokens_of(d.train), d.train.size(), tokens_of(d.val), d.val.size(), d.vocab);
  if (d.tokenizer_kind != "none") {
    fmt::print("tokenizer {} {}, {} documents, SHA-256 of the text {}\n", d.tokenizer_kind, d.tokenizer_hash,
               d.documents, d.made_by["text_sha256"].get<std::string>());
  }
  fmt::print("unigram entropy {:.6f} nats/token\n", *d.unigram_entropy);
  if (d.entropy_rate)
    fmt::print("entropy rate {:.9f} nats/token: the loss that nobody can beat\n", *d.entropy_rate);
  fmt::print("\"data\": {{ \"train\": \"{}/train_*.bin\"", folder);
  if (!d.val.empty()) fmt::print(", \"val\": \"{}/val_*.bin\"", folder);
  fmt::print(" }}\n");
}

void add_pack(CLI::App& data, Action& action) {
  CLI::App* const command = data.add_subcommand("pack", "text files to token shards, with dataset.json");
  const auto options = std::make_shared<PackOptions>();
  command->add_option("INPUTS", options->inputs, "text files and globs, each file a document")->required();
  command->add_option("--out", options->out, "a new or empty folder")->required();
  command->add_option("--tokenizer", options->tokenizer, "bytes, or a byte-level BPE tokenizer.json")
      ->capture_default_str();
  command->add_option("--shard-tokens", options->shard_tokens, "most tokens in a shard")
      ->capture_default_str();
  command
      ->add_option("--val-fraction", options->val_fraction,
                   "share of the bytes for validation, by whole files")
      ->capture_default_str();
  command->callback([options, &action] {
    action = [options] {
      print_result(pack_text(*options, to_stderr), options->out);
      return 0;
    };
  });
}

void add_synth(CLI::App& data, Action& action) {
  CLI::App* const command = data.add_subcommand("synth", "a corpus whose entropy rate is known exactly");
  const auto options = std::make_shared<SynthOptions>();
  command->add_option("--out", options->out, "a new or empty folder")->required();
  command->add_option("--tokens", options->tokens, "tokens for training")->required();
  command->add_option("--val-tokens", options->val_tokens, "tokens for validation; default: a tenth");
  command->add_option("--vocab", options->vocab, "symbols")->capture_default_str();
  command->add_option("--order", options->order, "symbols that decide the next one")->capture_default_str();
  command->add_option("--entropy", options->entropy, "nats per token; default: half of ln vocab");
  command->add_option("--seed", options->seed, "of the source and of what is drawn")->capture_default_str();
  command->add_option("--shard-tokens", options->shard_tokens, "most tokens in a shard")
      ->capture_default_str();
  command->callback([options, &action] {
    action = [options] {
      print_result(synthesise(*options, to_stderr), options->out);
      return 0;
    };
  });
}

void add_info(CLI::App& data, Action& action) {
  struct Arguments {
    std::vector<std::string> paths;
    std::string format = "auto";
    bool json = false;
  };
  CLI::App* const command = data.add_subcommand("info", "checks token files wholly and describes them");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("PATHS", arguments->paths, "files, globs, folders with dataset.json")->required();
  command->add_option("--format", arguments->format, "auto, shard, u16, u32, text")->capture_default_str();
  command->add_flag("--json", arguments->json, "machine-readable");
  command->callback([arguments, &action] {
    action = [arguments] {
      const DataReport report = inspect_data(arguments->paths, arguments->format);
      const std::string text =
          arguments->json
              ? to_json(report).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
              : to_text(report);
      std::fputs(text.c_str(), stdout);
      return 0;
    };
  });
}

}  // namespace

void register_data(CLI::App& app, Action& action) {
  CLI::App* const data = app.add_subcommand("data", "make, check and describe token files");
  data->require_subcommand(1);
  add_pack(*data, action);
  add_synth(*data, action);
  add_info(*data, action);
}

}  // namespace octavo
