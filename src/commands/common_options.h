// common_options.h - what several commands take or do in the same way.
#pragma once

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

/// The command line of this process, quoted for a shell.
std::string command_line();

}  // namespace octavo
