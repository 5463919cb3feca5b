// `octavo config`: a config file as resolved, checked; its JSON Schema and the table of its fields.
#include "config.h"

#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "error.h"

namespace octavo {
namespace {

struct Arguments {
  std::string file;
  bool schema = false, explain = false, check = false;
};

int show_config(const Arguments& arguments) {
  if (arguments.schema || arguments.explain) {
    if (!arguments.file.empty())
      refuse("octavo config: found {} beside {}; allowed: one of the two", arguments.file,
             arguments.schema ? "--schema" : "--explain");
    std::fputs(arguments.schema ? (config_schema().dump(2) + "\n").c_str() : explain_config().c_str(),
               stdout);
    return 0;
  }
  if (arguments.file.empty())
    refuse("octavo config: found no file; allowed: a config file, --schema or --explain");
  const Config config = load_config(arguments.file);
  std::printf("%s\n", arguments.check ? "ok" : dump_config(config).dump(2).c_str());
  return 0;
}

}  // namespace

void register_config(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("config", "Show a config with every default written out, or check it");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("FILE", arguments->file, "Config file");
  CLI::Option* schema =
      command->add_flag("--schema", arguments->schema, "Print the JSON Schema of a config, for editors");
  CLI::Option* explain = command->add_flag("--explain", arguments->explain,
                                           "Print every field: default, what is allowed, meaning");
  CLI::Option* check = command->add_flag("--check", arguments->check, "Check FILE only, print ok");
  schema->excludes(explain)->excludes(check);
  explain->excludes(check);
  command->callback([arguments, &action] { action = [arguments] { return show_config(*arguments); }; });
}

}  // namespace octavo
