// common_options.h - what several commands take or do in the same way.
#pragma once

#include <string>
#include <vector>

#include "config_fields.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace octavo {

/// Adds the repeatable --set section.key=value.
void add_set_option(CLI::App& command, std::vector<std::string>& set);

/// Holds an option's value to what is accepted; a value that is not is answered with what is. `type` stands
/// for the value in the help ("N").
void accept(CLI::Option& option, const Accepted& accepted, const std::string& type);
Accepted integer_from(double low, double high);
Accepted number_from(double low, double high);

std::vector<Override> parse_overrides(const std::vector<std::string>& set);

/// The command line of this process, quoted for a shell.
std::string command_line();

}  // namespace octavo
