#include "commands/common_options.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include <CLI/CLI.hpp>

namespace octavo {

void add_set_option(CLI::App& command, std::vector<std::string>& set) {
  command
      .add_option("--set", set,
                  "Override one field of the config: section.key=value, the value JSON or else a string")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
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
