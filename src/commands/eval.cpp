// `octavo eval`: the loss of a trained model on text or shards.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "commands/common_options.h"
#include "console.h"
#include "data/dataset.h"
#include "data/window_order.h"
#include "error.h"
#include "evaluate.h"
#include "files.h"
#include "trained_model.h"

namespace octavo {
namespace {

struct EvalOptions {
  std::string source, tokenizer, format = "auto";
  std::vector<std::string> data, set;
  std::int64_t tokens = -1, batch = 4;
  bool best = false, json = false;
};

/// The data to judge by: what is given, else the validation data of the run that the model belongs to.
TokenStream evaluation_stream(const EvalOptions& options, const TrainedModel& trained) {
  DataConfig data{};
  if (!options.data.empty()) {
    data.train = options.data;
    data.tokenizer = options.tokenizer.empty() ? "auto" : options.tokenizer;
    data.format = options.format;
  } else if (trained.config) {
    data = trained.config->data;
  } else {
    refuse("{}: found a model without a run's config; allowed: --data with text or shards", options.source);
  }
  const Dataset dataset = open_dataset(
      data, {.vocab = trained.folder.shape.vocab, .tokenizer = trained.tokenizer, .origin = options.source});
  if (!options.data.empty()) return dataset.train;
  if (dataset.val.empty())
    refuse("{}: its run has no validation data; allowed: --data with text or shards", options.source);
  return dataset.val;
}

int eval(const EvalOptions& options) {
  TrainedModel trained =
      open_trained_model({.source = options.source,
                          .choice = options.best ? CheckpointChoice::best : CheckpointChoice::newest,
                          .tokenizer = options.tokenizer,
                          .overrides = parse_overrides(options.set),
                          .B = options.batch,
                          .T = 0});
  const TokenStream stream = evaluation_stream(options, trained);
  const EvaluationWindows windows(stream, trained.model->plan().T, options.tokens);
  const double loss = evaluate(*trained.model, stream, options.tokens);
  if (!std::isfinite(loss))
    fail("{}: the loss is {}; its weights are damaged, or training diverged", trained.folder.folder.string(),
         format_fixed(loss, 4));
  if (options.json) {
    const nlohmann::ordered_json result = {{"format_version", kFormatVersion},
                                           {"model", trained.folder.folder.string()},
                                           {"mode", trained.mode},
                                           {"tokens", windows.targets()},
                                           {"loss", loss},
                                           {"perplexity", std::exp(loss)}};
    std::printf("%s\n", result.dump(2).c_str());
  } else {
    std::printf(
        "model       %s\nprecision   %s\ntokens      %lld\nloss        %.6f nats per token\nperplexity  "
        "%.4f\n",
        trained.folder.folder.string().c_str(), trained.mode.c_str(),
        static_cast<long long>(windows.targets()), loss, std::exp(loss));
  }
  return 0;
}

}  // namespace

void register_eval(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("eval", "Measure the loss of a trained model");
  const auto o = std::make_shared<EvalOptions>();
  command->add_option("MODEL", o->source, "Run, checkpoint or Hugging Face GPT-2 folder")->required();
  command->add_option("--data", o->data, "Text or shards (default: the run's validation data)")
      ->type_name("FILE");
  accept(*command->add_option("--format", o->format, "Of --data: auto, shard, u16, u32 or text")
              ->capture_default_str(),
         find_field("data.format")->accepted, "WORD");
  command
      ->add_option("--tokenizer", o->tokenizer,
                   "bytes, or a tokenizer.json, where the model's folder has none")
      ->type_name("FILE");
  accept(*command->add_option("--tokens", o->tokens, "Predictions to average over; -1: all")
              ->capture_default_str(),
         integer_from(1, 1e15).or_minus_one(), "N");
  accept(*command->add_option("--batch", o->batch, "Windows at once")->capture_default_str(),
         integer_from(1, 65536), "N");
  command->add_flag("--best", o->best,
                    "Of a run: the checkpoint with the lowest validation loss, not the newest");
  command->add_flag("--json", o->json, "Print JSON");
  add_set_option(*command, o->set);
  command->callback([&action, o] { action = [o] { return eval(*o); }; });
}

}  // namespace octavo
