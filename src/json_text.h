// json_text.h - from the text of a file that a person wrote to a JSON tree: parsed by SAX events, because a
// DOM parser silently keeps one of two equal keys; and the small change of writing JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace octavo {

enum class Comments : bool { refused, allowed };

/// Parses `text`, which `origin` names in messages. A key that stands twice adds a line to `faults`, with its
/// path and line; the tree then holds both. Text that is no JSON (or is nested more than 32 deep, so that no
/// recursion over the tree can exhaust the stack) adds one line with line and column, and returns nothing.
/// A UTF-8 byte order mark at the start is skipped. Never throws for what the text holds.
std::optional<nlohmann::ordered_json> parse_json_text(std::string_view text, const std::string& origin,
                                                      Comments comments, std::vector<std::string>& faults);

/// A value as JSON; null where there is none.
template <typename T>
nlohmann::ordered_json json_or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

/// A key as it stands in a message: as it is where it is plain, else as an ASCII JSON string.
std::string key_excerpt(std::string_view key);

/// The tree of a file of another program, by parse_json_text(). Throws RequestError with the first fault.
nlohmann::ordered_json parse_foreign_json(std::string_view text, const std::string& origin);

}  // namespace octavo
