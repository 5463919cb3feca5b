// export.cpp - `octavo export RUN DIR`: a model as a plain Hugging Face GPT-2 folder, without what only
// training needs.
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint.h"
#include "commands/commands.h"
#include "data/output_folder.h"
#include "error.h"
#include "files.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

// What a tokenizer consists of, in Octavo's checkpoints and in Hugging Face folders; copied as it is.
constexpr std::array kTokenizerFiles{
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt"};

struct Arguments {
  std::string run, folder;
  bool best = false;
};

int export_model(const Arguments& arguments) {
  const ModelFolder model =
      open_model(arguments.run, arguments.best ? CheckpointChoice::best : CheckpointChoice::newest);
  const ParameterTable table = make_parameter_table(model.shape);
  NewFolder out(arguments.folder);
  std::vector<float> masters(static_cast<std::size_t>(table.arena_size));
  read_weights(model.folder, table, masters.data());
  write_model(out.folder(), table, model.shape, model.details, masters.data());

  std::string written = "model.safetensors, config.json";
  if (model.details.eot >= 0) {
    write_json_atomically(out.file("generation_config.json"),
                          {{"bos_token_id", model.details.eot}, {"eos_token_id", model.details.eot}});
    written += ", generation_config.json";
  }
  for (const char* name : kTokenizerFiles) {
    if (!path_exists(model.folder / name)) continue;
    write_file_atomically(out.file(name), read_whole_file(model.folder / name));
    written += std::string(", ") + name;
  }
  out.publish();
  const std::string step = model.state ? fmt::format(" (step {})", model.state->step) : "";
  fmt::print("{}: {} parameters of {}{}: {}\n", arguments.folder, table.count(), model.folder.string(), step,
             written);
  return 0;
}

}  // namespace

void register_export(CLI::App& app, Action& action) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("export", "Write a model as a clean Hugging Face GPT-2 folder");
  command->add_option("MODEL", arguments->run, "Run, checkpoint or Hugging Face GPT-2 folder")->required();
  command->add_option("DIR", arguments->folder, "New or empty folder to write")->required();
  command->add_flag("--best", arguments->best,
                    "Of a run: the checkpoint with the lowest validation loss, not the newest");
  command->callback([arguments, &action] { action = [arguments] { return export_model(*arguments); }; });
}

}  // namespace octavo
