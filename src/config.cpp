#include "config.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include "config_fields.h"
#include "error.h"
#include "files.h"
#include "json_text.h"
#include "parameters.h"
#include "rng.h"
#include "shape_bounds.h"

namespace octavo {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::size_t kMaxFaults = 50;  // of a report; a file of another kind may have thousands

bool is_utf8(const std::string& text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

/// Replaces every `from` in `text`.
std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

/// "train.seed" -> "/train/seed"
Json::json_pointer pointer_to(const std::string& path) {
  return Json::json_pointer("/" + replaced(path, ".", "/"));
}

/// Expands ${VAR}; "$${" stands for "${" itself. What is wrong with one is added to `faults`: what was found
/// and what is allowed.
std::string expand_variables(const std::string& text, std::vector<std::string>& faults) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (text.compare(i, 3, "$${") == 0) {
      out += "${";
      i += 3;
      continue;
    }
    if (text.compare(i, 2, "${") != 0) {
      out += text[i++];
      continue;
    }
    const std::size_t end = text.find('}', i);
    const std::string name = text.substr(i + 2, end == std::string::npos ? end : end - i - 2);
    const bool is_name =
        !name.empty() && end != std::string::npos && (name[0] < '0' || name[0] > '9') &&
        name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") ==
            std::string::npos;
    const char* value = is_name ? std::getenv(name.c_str()) : nullptr;
    if (!is_name) {
      faults.push_back(fmt::format("found {}; allowed: ${{NAME}}, or $${{ for ${{ itself",
                                   json_excerpt(Json(text.substr(i)))));
      return out;
    }
    if (value == nullptr) {
      faults.push_back(fmt::format(
          "found ${{{}}}, which the environment does not have; allowed: a variable that is set", name));
    } else {
      out += value;
    }
    i = end + 1;
  }
  return out;
}

/// Edit distance with swaps of neighbours as one edit (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const std::size_t replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({replace, d[i - 1][j] + 1, d[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

/// From the tree of a file to a Config; collects what is wrong on the way.
class ConfigReader {
 public:
  explicit ConfigReader(std::string origin) : origin_(std::move(origin)) {}

  Config read(std::string_view text, const std::vector<Override>& overrides) {
    std::optional<Json> tree = parse_json_text(text, origin_, Comments::allowed, faults_);
    if (!tree) report();
    tree_ = std::move(*tree);
    if (!tree_.is_object()) {
      faults_.push_back(fmt::format("{}: found {}; allowed: an object {{ \"data\": {{ \"train\": ... }} }}",
                                    origin_, json_excerpt(tree_)));
      report();
    }
    take_markers();
    check_keys(tree_, "");
    for (const Override& o : overrides) apply(o);
    Config config{};
    for (const Field& field : config_fields()) read_field(field, config);
    name_run(config);
    check_across(config);
    if (!faults_.empty()) report();
    return config;
  }

 private:
  [[noreturn]] void report() {
    const std::size_t total = faults_.size();
    if (total > kMaxFaults) {
      faults_.resize(kMaxFaults);
      faults_.push_back(fmt::format("{}: and {} faults more", origin_, total - kMaxFaults));
    }
    refuse("{}", fmt::join(faults_, "\n"));
  }

  /// "train.seed in gpt.json", the head of every message.
  std::string where(const std::string& path) const {
    return path + (overridden_.contains(path) ? " in the override of " : " in ") + origin_;
  }

  /// Takes a fault of a field, which then keeps its default so that the search for faults can go on.
  void fault(const std::string& path, const std::string& what) {
    faults_.push_back(where(path) + ": " + what);
    faulty_.insert(path);
  }

  /// Takes out the keys that are no fields: an editor's line, and what resolved.json carries.
  void take_markers() {
    const auto version = tree_.find("format_version");
    if (version != tree_.end() && *version != kFormatVersion)
      fault("format_version", fmt::format("found {}; allowed: {}", json_excerpt(*version), kFormatVersion));
    tree_.erase("format_version");
    const auto chosen = tree_.find(kChosenKey);
    if (chosen != tree_.end() &&
        (!chosen->is_array() ||
         !std::all_of(chosen->begin(), chosen->end(), [](const Json& path) { return path.is_string(); })))
      fault(kChosenKey, fmt::format("found {}; allowed: a list of strings", json_excerpt(*chosen)));
    tree_.erase(kChosenKey);
    const auto schema = tree_.find("$schema");
    if (schema != tree_.end() && !schema->is_string())
      fault("$schema", fmt::format("found {}; allowed: string", json_excerpt(*schema)));
    tree_.erase("$schema");
  }

  /// Finds keys that are neither fields nor sections, and sections that are no objects, which it empties.
  void check_keys(Json& object, const std::string& section) {
    const std::vector<std::string> known = keys_of_section(section);
    for (auto& [key, value] : object.get_ref<Json::object_t&>()) {
      const std::string path = section.empty() ? key : section + "." + key;
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        faults_.push_back(unknown_key(section, key, " in "));
      } else if (find_field(path) == nullptr) {
        if (value.is_object()) {
          check_keys(value, path);
        } else {
          fault(path, fmt::format("found {}; allowed: an object with {}", json_excerpt(value),
                                  fmt::join(keys_of_section(path), ", ")));
          for (const Field& field : config_fields())
            if (field.path.starts_with(path + ".")) faulty_.insert(field.path);
          value = Json::object();  // so that overrides find their place
        }
      }
    }
  }

  /// Paths of fields or sections that a key which does not exist may stand for.
  static std::vector<std::string> suggestions(const std::string& section, const std::string& key) {
    const auto fields_named = [](const std::string& name) {
      std::vector<std::string> paths;
      for (const Field& field : config_fields())
        if (!name.empty() && split_path(field.path).key == name) paths.push_back(field.path);
      return paths;
    };
    // The right key in the wrong place is a better guess than a resemblance.
    if (const std::vector<std::string> same = fields_named(key); !same.empty()) return same;
    const std::string sibling = nearest_word(key, keys_of_section(section));
    if (!sibling.empty()) return {section.empty() ? sibling : section + "." + sibling};
    std::vector<std::string> paths, keys;
    for (const Field& field : config_fields()) {
      paths.push_back(field.path);
      keys.push_back(split_path(field.path).key);
    }
    if (key.find('.') == std::string::npos) return fields_named(nearest_word(key, keys));
    const std::string path = nearest_word(key, paths);
    return path.empty() ? std::vector<std::string>{} : std::vector<std::string>{path};
  }

  /// The message for a key that does not exist; `place` is " in " or " in the override of ".
  std::string unknown_key(const std::string& section, const std::string& key, const char* place) const {
    std::string hint = fmt::format("{}", fmt::join(suggestions(section, key), "\" or \""));
    if (hint == key) {  // { "model.layers": 12 }
      const SplitPath split = split_path(hint);
      hint = split.key + "\" inside \"" + split.section;
    }
    return fmt::format("{}{}{}{}{}: unknown key{}; allowed: {}", section, section.empty() ? "" : ".",
                       key_excerpt(key), place, origin_,
                       hint.empty() ? "" : fmt::format(", did you mean \"{}\"?", hint),
                       fmt::join(keys_of_section(section), ", "));
  }

  void apply(const Override& o) {
    if (find_field(o.path) == nullptr) {
      const std::vector<std::string> inside = keys_of_section(o.path);
      if (!o.path.empty() && !inside.empty()) {
        faults_.push_back(fmt::format("{} in the override of {}: found a section; allowed: {}.{}", o.path,
                                      origin_, o.path, fmt::join(inside, ", " + o.path + ".")));
        return;
      }
      // What stands before the last dot may be misspelt itself; then the whole path is the key.
      SplitPath split = split_path(o.path);
      if (keys_of_section(split.section).empty()) split = {"", o.path};
      faults_.push_back(unknown_key(split.section, split.key, " in the override of "));
      return;
    }
    overridden_.insert(o.path);
    faulty_.erase(o.path);
    std::vector<std::string> not_json;
    Json value = parse_json_text(o.value, o.path, Comments::refused, not_json).value_or(Json(o.value));
    tree_[pointer_to(o.path)] = std::move(value);
  }

  void read_field(const Field& field, Config& config) {
    if (field.default_value) field.set(config, *field.default_value);
    const Json::json_pointer pointer = pointer_to(field.path);
    if (!tree_.contains(pointer)) {
      if (!field.default_value && !faulty_.contains(field.path))
        fault(field.path,
              fmt::format("found nothing; allowed: {} ({})", field.accepted.words_for_message(), field.help));
      return;
    }
    Json value = tree_.at(pointer);
    std::vector<std::string> problems;
    const auto expand = [&](Json& text) {
      if (!text.is_string()) return;
      text = expand_variables(text.get<std::string>(), problems);
      if (!is_utf8(text.get<std::string>()))
        problems.push_back(fmt::format("found {}; allowed: a string in UTF-8", json_excerpt(text)));
    };
    expand(value);
    if (value.is_array()) std::for_each(value.begin(), value.end(), expand);
    for (const std::string& problem : problems) fault(field.path, problem);
    if (!problems.empty()) return;
    if (const std::optional<Json> normal = field.accepted.normalise(value)) {
      field.set(config, *normal);
    } else {
      fault(field.path,
            fmt::format("found {}; allowed: {}", json_excerpt(value), field.accepted.words_for_message()));
    }
  }

  /// The default name, and the name in output.dir.
  void name_run(Config& config) {
    if (faulty_.contains("name")) return;
    const bool from_file = config.name.empty();
    if (from_file) config.name = std::filesystem::path(origin_).stem().string();
    // It becomes part of a path, in place of "{name}".
    const bool is_bad = config.name.empty() || config.name == "." || config.name == ".." ||
                        config.name.find_first_of("/{}") != std::string::npos || !is_utf8(config.name);
    if (is_bad) {
      fault("name", fmt::format("found {}{}; allowed: the name of a folder, without / {{ }}",
                                json_excerpt(Json(config.name)), from_file ? ", from the file's name" : ""));
    }
    config.output.dir = replaced(config.output.dir, "{name}", config.name);
  }

  /// Takes a fault between fields, unless one of them is at fault itself.
  template <typename... Args>
  void check(bool holds, const std::vector<std::string>& paths, fmt::format_string<Args...> format,
             Args&&... args) {
    if (holds || std::any_of(paths.begin(), paths.end(), [&](const auto& p) { return faulty_.contains(p); }))
      return;
    faults_.push_back(where(paths.front()) + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  void check_across(const Config& c) {
    // With init_from the shape comes from there, and what the file says of it is not used.
    if (!c.model.init_from && !faulty_.contains("model.init_from")) check_shape(c);
    check((c.train.steps ? 1 : 0) + (c.train.tokens ? 1 : 0) + (c.train.epochs ? 1 : 0) <= 1,
          {"train", "train.steps", "train.tokens", "train.epochs"},
          "found {}; allowed: at most one of steps, tokens, epochs",
          given({{"steps", c.train.steps.has_value()},
                 {"tokens", c.train.tokens.has_value()},
                 {"epochs", c.train.epochs.has_value()}}));
    check(!c.train.tokens_per_step || !c.train.accumulate,
          {"train", "train.tokens_per_step", "train.accumulate"},
          "found tokens_per_step and accumulate; allowed: at most one of them");
    check(c.data.val.empty() || c.data.val_fraction == 0, {"data", "data.val", "data.val_fraction"},
          "found val and val_fraction; allowed: at most one of them");
    const double p = c.model.dropout;
    check(p == 0 || dropout_threshold(static_cast<float>(p)) > 0, {"model.dropout"},
          "found {}, of which steps of 1/256 leave nothing; allowed: 0, or from 1/512 (0.001953125) to 0.99",
          p);
    check(c.optimizer.clip == 0 || c.optimizer.clip >= 1e-30, {"optimizer.clip"},
          "found {}; allowed: 0, or from 1e-30 to 1e+30", c.optimizer.clip);
    check(!c.optimizer.min_lr || *c.optimizer.min_lr <= c.optimizer.lr, {"optimizer.min_lr", "optimizer.lr"},
          "found {}; allowed: at most optimizer.lr, {}", c.optimizer.min_lr.value_or(0), c.optimizer.lr);
  }

  void check_shape(const Config& c) {
    const ModelConfig& m = c.model;
    const std::string heads = fault_of_heads(m.heads, m.channels, "model.channels");
    check(heads.empty(), {"model.heads", "model.channels"}, "{}", heads);
    const std::int64_t sequence = c.train.sequence.value_or(m.context);
    check(sequence <= m.context, {"train.sequence", "model.context"},
          "found {}; allowed: up to model.context, {}", sequence, m.context);
    const std::int64_t accumulate = c.train.accumulate.value_or(1);
    check(c.train.micro_batch * accumulate <= kMaxTokensPerStep / sequence,
          {"train.micro_batch", "train.accumulate", "train.sequence", "model.context"},
          "found {}; with {} micro-batches a step and {} tokens a sequence allowed: steps of up to {} tokens",
          c.train.micro_batch, accumulate, sequence, kMaxTokensPerStep);
    const std::int64_t skipped = c.precision.fp8.skip_first_layers + c.precision.fp8.skip_last_layers;
    check(skipped == 0 || skipped < m.layers,
          {"precision.fp8.skip_first_layers", "precision.fp8.skip_last_layers", "model.layers"},
          "found {}, with skip_last_layers {}; allowed: together less than model.layers, {}",
          c.precision.fp8.skip_first_layers, c.precision.fp8.skip_last_layers, m.layers);
  }

  static std::string given(const std::vector<std::pair<std::string, bool>>& keys) {
    std::vector<std::string> names;
    for (const auto& [key, is_given] : keys)
      if (is_given) names.push_back(key);
    return fmt::format("{}", fmt::join(names, " and "));
  }

  std::string origin_;
  Json tree_;
  std::vector<std::string> faults_;
  std::set<std::string> faulty_;      // fields whose value is not known
  std::set<std::string> overridden_;  // fields whose value comes from an override
};

/// The file's text. Pipes are read, too, so the size is only known at the end.
std::string read_config_file(const std::string& file) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored))
    refuse("{}: found a folder; allowed: a config file", file);
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in) refuse("{}: cannot be read ({}); allowed: a config file", file, std::strerror(errno));
  std::string text(kMaxFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) refuse("{}: cannot be read ({}); allowed: a config file", file, std::strerror(errno));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMaxFileBytes)
    refuse("{}: found more than {} bytes; allowed: a config file of up to {}", file, kMaxFileBytes,
           kMaxFileBytes);
  return text;
}

}  // namespace

Override parse_override(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0)
    refuse("--set: found {}; allowed: section.key=value", json_excerpt(Json(std::string(text))));
  return {std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))};
}

Config load_config(const std::string& file, const std::vector<Override>& overrides) {
  return parse_config(read_config_file(file), file, overrides);
}

Config parse_config(std::string_view text, const std::string& origin,
                    const std::vector<Override>& overrides) {
  return ConfigReader(origin).read(text, overrides);
}

Json dump_config(const Config& config) {
  // Reading expands ${VAR}: what stands here is the value itself.
  const auto escape = [](Json& text) {
    if (text.is_string()) text = replaced(text.get<std::string>(), "${", "$${");
  };
  Json dump = Json::object();
  for (const Field& field : config_fields()) {
    Json value = field.get(config);
    escape(value);
    if (value.is_array()) std::for_each(value.begin(), value.end(), escape);
    dump[pointer_to(field.path)] = std::move(value);
  }
  return dump;
}

std::vector<ConfigDifference> compare_configs(const Config& left, const Config& right) {
  std::vector<ConfigDifference> differences;
  for (const Field& field : config_fields()) {
    const std::string a = field.get(left).dump(), b = field.get(right).dump();
    if (a != b) differences.push_back({field.path, a, b});
  }
  return differences;
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::size_t longer = std::max(word.size(), candidate.size());
    // A third of the letters may be wrong: beyond that every short word resembles every other.
    const std::size_t limit = std::max<std::size_t>(1, (longer + 1) / 3);
    if (longer - std::min(word.size(), candidate.size()) > limit) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance <= limit && (best.empty() || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace octavo
