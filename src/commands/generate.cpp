// `octavo generate`: text from a run, a checkpoint or a Hugging Face folder, streamed to standard output.
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "commands/common_options.h"
#include "error.h"
#include "generator.h"
#include "trained_model.h"

namespace octavo {
namespace {

struct GenerateOptions {
  std::string source, prompt, tokenizer;
  std::vector<std::string> set;
  std::int64_t tokens = 256;
  SamplingOptions sampling;
  bool best = false, ignore_eot = false;
};

/// Writes bytes and flushes them, so that text is seen as it is made: a token may end inside a character. In
/// a closed pipe SIGPIPE ends the program, as it does others.
void print_bytes(const std::string& bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size() || std::fflush(stdout) != 0)
    fail("standard output: {}", std::strerror(errno));
}

int generate(const GenerateOptions& options) {
  TrainedModel trained =
      open_trained_model({.source = options.source,
                          .choice = options.best ? CheckpointChoice::best : CheckpointChoice::newest,
                          .tokenizer = options.tokenizer,
                          .overrides = parse_overrides(options.set),
                          .B = 1,
                          .T = 0});
  const Tokenizer* tokenizer = trained.tokenizer.get();
  if (tokenizer == nullptr)
    refuse(
        "{}: found no tokenizer.json beside the model; allowed: --tokenizer with \"bytes\" or a "
        "tokenizer.json",
        options.source);
  if (tokenizer->vocab() > trained.model->plan().shape.vocab)
    refuse("tokenizer: found a vocabulary of {}, the model has {}; allowed: the model's own tokenizer",
           tokenizer->vocab(), trained.model->plan().shape.vocab);

  std::vector<std::int32_t> ids = tokenizer->encode(options.prompt);
  // Every document of the training data begins with end-of-text: so does one that is to be made up from
  // nothing.
  if (ids.empty()) ids.push_back(tokenizer->eot() >= 0 ? tokenizer->eot() : 0);
  Generator generator(*trained.model, options.sampling);
  generator.feed(ids);
  print_bytes(options.prompt);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const std::int32_t id = generator.next();
    if (id == tokenizer->eot() && !options.ignore_eot) break;
    if (id < tokenizer->vocab()) print_bytes(tokenizer->bytes_of(id));
  }
  print_bytes("\n");
  return 0;
}

}  // namespace

void register_generate(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("generate", "Write text with a trained model");
  const auto o = std::make_shared<GenerateOptions>();
  command->add_option("MODEL", o->source, "Run, checkpoint or Hugging Face GPT-2 folder")->required();
  command->add_option("--prompt", o->prompt, "Text to go on from (default: the beginning of a document)");
  const auto number = [&](const char* name, auto& value, const char* help, const Accepted& accepted) {
    accept(*command->add_option(name, value, help)->capture_default_str(), accepted,
           accepted.kind == Accepted::Kind::integer ? "N" : "X");
  };
  Accepted probability = number_from(0, 1);
  probability.low_open = true;
  number("--tokens", o->tokens, "Tokens to write at most", integer_from(0, 1e9));
  number("--temperature", o->sampling.temperature, "0: always the most probable token", number_from(0, 100));
  number("--top-k", o->sampling.top_k, "Draw from the K most probable tokens; 0: all", integer_from(0, 1e9));
  number("--top-p", o->sampling.top_p, "Draw from the smallest set with this probability; 1: all",
         probability);
  number("--seed", o->sampling.seed, "Same seed, same text", find_field("train.seed")->accepted);
  command
      ->add_option("--tokenizer", o->tokenizer,
                   "bytes, or a tokenizer.json, where the model's folder has none")
      ->type_name("FILE");
  command->add_flag("--best", o->best,
                    "Of a run: the checkpoint with the lowest validation loss, not the newest");
  command->add_flag("--ignore-eot", o->ignore_eot, "Go on after end-of-text");
  add_set_option(*command, o->set);
  command->callback([&action, o] { action = [o] { return generate(*o); }; });
}

}  // namespace octavo
