#include "commands/usage.h"

#include <vector>

#include <CLI/CLI.hpp>

#include "config.h"
#include "error.h"

namespace octavo {
namespace {

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

/// The innermost command that was named.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

/// "data pack: ", the head of a message; nothing of the program itself.
std::string head_of(const CLI::App& app) {
  std::string name;
  for (const CLI::App* at = &app; at->get_parent() != nullptr; at = at->get_parent())
    name = at->get_name() + (name.empty() ? "" : " " + name);
  return name.empty() ? "" : name + ": ";
}

/// "[--set KEY=VALUE]", "CONFIG", "[FILE]".
std::string usage_of(const CLI::Option& option) {
  std::string text = option.get_name();
  const int most = option.get_items_expected_max();
  if (option.nonpositional() && most > 0) text += " " + option.get_type_name();
  if (most > 1) text += "...";
  return option.get_required() ? text : "[" + text + "]";
}

/// Those of the program's own use are in no group, and are told to nobody.
bool is_hidden(const CLI::Option& option) {
  return option.get_group().empty();
}

/// Whether a word looks like an option.
bool is_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-';
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string near = nearest_word(word, candidates);
  return near.empty() ? "" : fmt::format(", did you mean \"{}\"?", near);
}

/// A word that no option and no positional takes.
std::string stray_word(const CLI::App& command, const std::string& word) {
  std::vector<std::string> options;
  for (const CLI::Option* option : command.get_options())
    if (option->nonpositional() && !is_hidden(*option)) options.push_back(option->get_name());
  return fmt::format("found \"{}\"{}", word, is_option(word) ? did_you_mean(word, options) : "");
}

/// An option with too few or too many values; CLI11 begins its message with the name.
std::string wrong_count(const CLI::App& command, const std::string& message) {
  const std::string name = message.substr(0, message.find(':'));
  for (const CLI::Option* option : command.get_options())
    if (option->get_name() == name)
      return option->count() > 1 ? "found " + name + " more than once"
                                 : fmt::format("{}: found no {}", name, option->get_type_name());
  return message;
}

template <typename Kind>
bool is(const CLI::ParseError& error) {
  return dynamic_cast<const Kind*>(&error) != nullptr;
}

/// What is wrong with the command line of `command`; what is allowed may be missing.
std::string problem_of(const CLI::App& command, const CLI::ParseError& error) {
  const std::vector<std::string> extra = command.remaining(true);
  if (is<CLI::ExtrasError>(error) && !extra.empty()) return stray_word(command, extra.front());
  if (is<CLI::ArgumentMismatch>(error)) return wrong_count(command, error.what());
  if (is<CLI::ExcludesError>(error)) return error.what() + std::string("; allowed: one of the two");
  if (is<CLI::RequiredError>(error)) {
    for (const CLI::Option* option : command.get_options())
      if (option->get_required() && option->count() == 0) return "found no " + option->get_name();
    if (!commands_of(command).empty())
      return extra.empty() ? "found no command" : stray_word(command, extra.front());
  }
  return error.what();
}

}  // namespace

std::string usage_text(const CLI::App& command) {
  const std::vector<std::string> commands = commands_of(command);
  if (!commands.empty()) return fmt::format("{}", fmt::join(commands, ", "));
  std::vector<std::string> parts;
  for (const bool positional : {true, false})
    for (const CLI::Option* option : command.get_options())
      if (option->nonpositional() != positional && option->get_name() != "--help" && !is_hidden(*option))
        parts.push_back(usage_of(*option));
  return fmt::format("{}", fmt::join(parts, " "));
}

std::string unknown_command(const CLI::App& app, const std::string& word) {
  for (const std::string& name : commands_of(app))
    if (name == word) return "";
  return fmt::format("found the command \"{}\"{}; allowed: {}", word, did_you_mean(word, commands_of(app)),
                     usage_text(app));
}

std::string usage_fault(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = innermost(app);
  const std::vector<std::string> extra = command.remaining(true);
  if (!commands_of(command).empty() && !extra.empty() && !is_option(extra.front()))
    return head_of(command) + unknown_command(command, extra.front());
  const std::string problem = problem_of(command, error);
  // A check of a value has said what is allowed.
  const bool complete = problem.find("; allowed: ") != std::string::npos;
  return fmt::format("{}{}{}", head_of(command), problem,
                     complete ? "" : "; allowed: " + usage_text(command));
}

}  // namespace octavo
