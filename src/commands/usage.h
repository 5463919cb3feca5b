// usage.h - a wrong command line in one line: the command, what was found, what is allowed.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace octavo {

/// What a command takes, in one line: `CONFIG [--set KEY=VALUE] [--resume]`; of a command that has commands,
/// their names.
std::string usage_text(const CLI::App& command);

/// The message for a word where the name of a command should stand; empty where it is one.
std::string unknown_command(const CLI::App& app, const std::string& word);

/// The message for what CLI11 could not parse, of the command that it had come to. `app` is the program.
std::string usage_fault(const CLI::App& app, const CLI::ParseError& error);

}  // namespace octavo
