// common_options.h - what several commands take or do in the same way.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config.h"

namespace CLI {
class App;
}

namespace octavo {

/// Adds the repeatable --set section.key=value.
void add_set_option(CLI::App& command, std::vector<std::string>& set);

std::vector<Override> parse_overrides(const std::vector<std::string>& set);

/// The config that a run's folder holds (resolved.json), with overrides. Throws RequestError.
Config load_run_config(const std::filesystem::path& run, const std::vector<Override>& overrides);

/// The command line of this process, quoted for a shell.
std::string command_line();

}  // namespace octavo
