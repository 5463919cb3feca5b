// data.cpp - `octavo data pack | synth | info`: text to shards, corpora of known entropy, and what files
// hold.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "commands/common_options.h"
#include "data/inspect.h"
#include "data/pack.h"
#include "data/synth.h"
#include "error.h"

namespace octavo {

namespace {

const Accepted kCount = integer_from(0, 1e15);  // what is too few or too many, the work itself says

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

void add_shard_tokens(CLI::App& command, std::int64_t& value) {
  accept(*command.add_option("--shard-tokens", value, "Most tokens in a shard")->capture_default_str(),
         kCount, "N");
}

void add_pack(CLI::App& data, Action& action) {
  CLI::App* const command = data.add_subcommand("pack", "Make token shards of text files, with dataset.json");
  const auto options = std::make_shared<PackOptions>();
  command->add_option("INPUTS", options->inputs, "Text files and globs, each file a document")->required();
  command->add_option("--out", options->out, "New or empty folder to write")->required()->type_name("DIR");
  command->add_option("--tokenizer", options->tokenizer, "bytes, or a byte-level BPE tokenizer.json")
      ->capture_default_str()
      ->type_name("FILE");
  add_shard_tokens(*command, options->shard_tokens);
  accept(*command
              ->add_option("--val-fraction", options->val_fraction,
                           "Share of the bytes for validation, by whole files")
              ->capture_default_str(),
         find_field("data.val_fraction")->accepted, "X");
  command->callback([options, &action] {
    action = [options] {
      print_result(pack_text(*options, to_stderr), options->out);
      return 0;
    };
  });
}

void add_synth(CLI::App& data, Action& action) {
  CLI::App* const command = data.add_subcommand("synth", "Make a corpus whose entropy rate is known exactly");
  const auto options = std::make_shared<SynthOptions>();
  command->add_option("--out", options->out, "New or empty folder to write")->required()->type_name("DIR");
  accept(*command->add_option("--tokens", options->tokens, "Tokens for training")->required(), kCount, "N");
  accept(
      *command->add_option("--val-tokens", options->val_tokens, "Tokens for validation (default: a tenth)"),
      kCount, "N");
  accept(*command->add_option("--vocab", options->vocab, "Symbols")->capture_default_str(), kCount, "N");
  accept(*command->add_option("--order", options->order, "Symbols that decide the next one")
              ->capture_default_str(),
         kCount, "N");
  accept(*command->add_option("--entropy", options->entropy, "Nats per token (default: half of ln vocab)"),
         number_from(0, 1000), "X");
  accept(*command->add_option("--seed", options->seed, "Of the source and of what is drawn")
              ->capture_default_str(),
         find_field("train.seed")->accepted, "N");
  add_shard_tokens(*command, options->shard_tokens);
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
  CLI::App* const command = data.add_subcommand("info", "Check token files wholly and describe them");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("PATHS", arguments->paths, "Files, globs, folders with dataset.json")->required();
  accept(
      *command
           ->add_option("--format", arguments->format, "What the files hold: auto, shard, u16, u32 or text")
           ->capture_default_str(),
      find_field("data.format")->accepted, "WORD");
  command->add_flag("--json", arguments->json, "Print JSON");
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
  CLI::App* const data = app.add_subcommand("data", "Make, check and describe token files");
  data->require_subcommand(1);
  add_pack(*data, action);
  add_synth(*data, action);
  add_info(*data, action);
}

}  // namespace octavo
