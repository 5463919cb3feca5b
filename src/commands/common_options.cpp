#include "commands/common_options.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "error.h"
#include "files.h"
#include "json_text.h"

namespace octavo {

using Json = nlohmann::ordered_json;

void add_set_option(CLI::App& command, std::vector<std::string>& set) {
  command
      .add_option("--set", set,
                  "Override one field of the config: section.key=value, the value JSON or else a string")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
}

void accept(CLI::Option& option, const Accepted& accepted, const std::string& type) {
  const auto check = [accepted](std::string& value) -> std::string {
    std::vector<std::string> not_json;
    const Json given = accepted.kind == Accepted::Kind::word
                           ? Json(value)
                           : parse_json_text(value, "", Comments::refused, not_json).value_or(Json(value));
    const std::optional<Json> normal = accepted.normalise(given);
    if (!normal)
      return fmt::format("found {}; allowed: {}", json_excerpt(Json(value)), accepted.words_for_message());
    if (!normal->is_string()) value = normal->dump();  // 1e6 is an integer, too
    return "";
  };
  option.transform(CLI::Validator(check, ""))->type_name(type);
}

Accepted integer_from(double low, double high) {
  return {.kind = Accepted::Kind::integer, .low = low, .high = high};
}

Accepted number_from(double low, double high) {
  return {.kind = Accepted::Kind::number, .low = low, .high = high};
}

std::vector<Override> parse_overrides(const std::vector<std::string>& set) {
  std::vector<Override> out;
  for (const std::string& text : set) out.push_back(parse_override(text));
  return out;
}

std::string command_line() {
  std::string text;
  // Files of /proc have no size; where there is no /proc the receipt lacks the command.
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  const std::string raw(std::istreambuf_iterator<char>(in), {});
  std::size_t begin = 0;
  while (begin < raw.size()) {
    const std::size_t end = std::min(raw.find('\0', begin), raw.size());
    const std::string word = raw.substr(begin, end - begin);
    begin = end + 1;
    const bool plain = !word.empty() && word.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789_-./=,:+@%") == std::string::npos;
    std::string quoted = "'";
    for (char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += (text.empty() ? "" : " ") + (plain ? word : quoted + "'");
  }
  return text;
}

}  // namespace octavo
