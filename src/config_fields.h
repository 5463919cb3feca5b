// config_fields.h - what a field of the config is; the one list of them stands in config_fields.cpp.
//
// A field says what it takes as data (`Accepted`), not as code, so that the check of a value, the words of
// the message that refuses it, the JSON Schema and the table of `octavo config --explain` are four readings
// of one description and cannot disagree.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "config.h"

namespace octavo {

/// What a field takes: values of one kind in one range, and besides them possibly null, "auto" or -1.
struct Accepted {
  enum class Kind : std::uint8_t {
    boolean,
    integer,  // 1e9 and 3.0 are integers, too, as in JSON Schema
    number,
    word,     // one of `words`
    text,     // any string but the empty one
    texts,    // such a string, or a list of them with one at least
    numbers2  // two numbers
  };

  Kind kind = Kind::text;
  double low = -std::numeric_limits<double>::infinity();  // of kinds integer, number and numbers2
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false, high_open = false;  // the bound itself is not in the range
  std::vector<std::string> words;
  bool null = false, automatic = false, minus_one = false;

  Accepted or_null() const;       // stored as std::nullopt, an empty string or an empty list
  Accepted or_auto() const;       // stored as 0
  Accepted or_minus_one() const;  // all there is, of kind integer

  /// The value as a field stores it (an integer given as 1e9 as 1000000000); nothing where it is not
  /// accepted.
  std::optional<nlohmann::ordered_json> normalise(const nlohmann::ordered_json& value) const;

  /// In words, for messages and the table: `integer from 1 to 4096 | "auto"`.
  std::string words_for_message() const;

  /// As JSON Schema.
  nlohmann::ordered_json schema() const;
};

struct Field {
  std::string path;                                     // "train.seed", as in Config
  std::optional<nlohmann::ordered_json> default_value;  // nothing: the field is required
  Accepted accepted;
  std::string help;                                                 // one line
  std::function<void(Config&, const nlohmann::ordered_json&)> set;  // takes a normalised value
  std::function<nlohmann::ordered_json(const Config&)> get;
};

/// The list, in the order of the resolved dump.
const std::vector<Field>& config_fields();

/// The field of that path, or nullptr.
const Field* find_field(std::string_view path);

/// Names of what stands in a section ("" is the whole file): its fields and sections, in the list's order.
std::vector<std::string> keys_of_section(std::string_view section);

/// "train.seed" -> {"train", "seed"}; the first of a path without a dot is empty.
struct SplitPath {
  std::string section, key;
};
SplitPath split_path(std::string_view path);

}  // namespace octavo
