#include "sweep.h"

#include <algorithm>
#include <set>
#include <system_error>

#include <nlohmann/json.hpp>

#include "error.h"
#include "files.h"

namespace octavo {
namespace {

using Json = nlohmann::ordered_json;

/// A name that is also a folder's name.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.front() != '.' &&
         name.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW"
             "XYZ0123456789._-+=,") == std::string::npos;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// Settings of one run before repeats: its name and what it sets.
struct Variant {
  std::string name;
  std::vector<std::pair<std::string, Json>> set;

  const Json* find(const std::string& path) const {
    for (const auto& [key, value] : set)
      if (key == path) return &value;
    return nullptr;
  }
};

class SweepReader {
 public:
  SweepReader(std::string file, const Json& json) : file_(std::move(file)), json_(json) {
    check_keys(json_, {"base", "output", "runs", "grid", "repeats", "baseline", "target_loss"}, "");
  }

  std::string base() const {
    if (!json_["base"].is_string())
      refuse("base in {}: found {}; allowed: the path of a config", file_, json_["base"].dump());
    const std::filesystem::path base = json_["base"].get<std::string>();
    return base.is_absolute() ? base.string() : (std::filesystem::path(file_).parent_path() / base).string();
  }

  std::filesystem::path dir() const {
    if (!json_.contains("output")) return std::filesystem::path("runs") / std::filesystem::path(file_).stem();
    const Json& output = json_["output"];
    if (!output.is_object())
      refuse("output in {}: found {}; allowed: {{ \"dir\": \"...\" }}", file_, output.dump());
    check_keys(output, {"dir"}, "output.");
    if (!output.contains("dir") || !output["dir"].is_string())
      refuse("output.dir in {}: found {}; allowed: a path", file_,
             output.contains("dir") ? output["dir"].dump() : "nothing");
    return output["dir"].get<std::string>();
  }

  std::int64_t repeats() const {
    if (!json_.contains("repeats")) return 1;
    const Json& n = json_["repeats"];
    if (!n.is_number_integer() || n.get<std::int64_t>() < 1 || n.get<std::int64_t>() > 1000)
      refuse("repeats in {}: found {}; allowed: an integer from 1 to 1000", file_, n.dump());
    return n.get<std::int64_t>();
  }

  /// Empty: not given.
  std::string baseline(const std::vector<Variant>& variants) const {
    if (!json_.contains("baseline")) return "";
    std::vector<std::string> names;
    for (const Variant& v : variants) names.push_back(v.name);
    const Json& name = json_["baseline"];
    if (!name.is_string() || std::find(names.begin(), names.end(), name.get<std::string>()) == names.end())
      refuse("baseline in {}: found {}; allowed: the name of a run, {}", file_, name.dump(),
             fmt::join(names, ", "));
    return name;
  }

  std::optional<double> target_loss() const {
    if (!json_.contains("target_loss")) return std::nullopt;
    const Json& loss = json_["target_loss"];
    if (!loss.is_number() || loss.get<double>() <= 0)
      refuse("target_loss in {}: found {}; allowed: a number over 0, in nats per token", file_, loss.dump());
    return loss.get<double>();
  }

  std::vector<Variant> variants() const {
    if (json_.contains("runs") == json_.contains("grid"))
      refuse("{}: found {}; allowed: exactly one of runs and grid", file_,
             json_.contains("runs") ? "both runs and grid" : "neither runs nor grid");
    return json_.contains("runs") ? named_runs() : grid_runs();
  }

 private:
  void check_keys(const Json& object, const std::vector<std::string>& known,
                  const std::string& prefix) const {
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      const std::string near = nearest_word(key, known);
      refuse("{}{} in {}: unknown key{}; allowed: {}", prefix, key, file_,
             near.empty() ? "" : fmt::format(", did you mean \"{}\"?", near), fmt::join(known, ", "));
    }
  }

  std::vector<Variant> named_runs() const {
    std::vector<Variant> out;
    const Json& runs = json_["runs"];
    if (!runs.is_array() || runs.empty())
      refuse("runs in {}: found {}; allowed: a list of runs", file_, runs.dump());
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::string where = fmt::format("runs[{}]", i);
      const Json& run = runs[i];
      if (!run.is_object())
        refuse("{} in {}: found {}; allowed: {{ \"name\": ..., \"set\": {{...}} }}", where, file_,
               run.dump());
      check_keys(run, {"name", "set"}, where + ".");
      if (!run.contains("name") || !run["name"].is_string() || !is_plain_name(run["name"].get<std::string>()))
        refuse("{}.name in {}: found {}; allowed: a name of letters, digits and ._-+=, (it becomes a folder)",
               where, file_, run.contains("name") ? run["name"].dump() : "nothing");
      Variant v{.name = run["name"].get<std::string>(), .set = {}};
      if (run.contains("set")) {
        if (!run["set"].is_object())
          refuse("{}.set in {}: found {}; allowed: {{ \"section.key\": value }}", where, file_,
                 run["set"].dump());
        for (const auto& [key, value] : run["set"].items()) v.set.emplace_back(key, value);
      }
      out.push_back(std::move(v));
    }
    return out;
  }

  std::vector<Variant> grid_runs() const {
    const Json& grid = json_["grid"];
    if (!grid.is_object() || grid.empty())
      refuse("grid in {}: found {}; allowed: {{ \"section.key\": [values] }}", file_, grid.dump());
    std::vector<Variant> out{Variant{}};
    for (const auto& [key, values] : grid.items()) {
      if (!values.is_array() || values.empty())
        refuse("grid.{} in {}: found {}; allowed: a list of values", key, file_, values.dump());
      std::vector<Variant> longer;
      for (const Variant& v : out)
        for (const Json& value : values) {
          Variant w = v;
          w.set.emplace_back(key, value);
          // The mode alone names itself; other keys are named as well: "bf16,lr=0.001".
          const std::string part = key == "precision.mode"
                                       ? text_of(value)
                                       : key.substr(key.rfind('.') + 1) + "=" + text_of(value);
          w.name += (w.name.empty() ? "" : ",") + part;
          for (char& c : w.name)
            if (!is_plain_name(std::string("x") + c)) c = '_';
          longer.push_back(std::move(w));
        }
      out = std::move(longer);
    }
    return out;
  }

  std::string file_;
  const Json& json_;
};

/// Keeps the variants of the modes asked for; a plain config has one variant a mode.
std::vector<Variant> choose_modes(std::vector<Variant> variants, const std::vector<std::string>& modes,
                                  const std::string& file) {
  if (modes.empty()) return variants;
  std::vector<Variant> kept;
  for (const std::string& mode : modes) {
    const std::size_t before = kept.size();
    for (const Variant& v : variants) {
      const Json* value = v.find("precision.mode");
      if (value != nullptr && text_of(*value) == mode) kept.push_back(v);
    }
    if (kept.size() == before)
      refuse("--modes: found {}; no run of {} sets precision.mode to it", mode, file);
  }
  return kept;
}

}  // namespace

Sweep load_sweep(const std::string& file, const SweepOptions& options) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored) || std::filesystem::is_directory(file, ignored))
    refuse("{}: {}; allowed: a sweep file, or a config", file,
           std::filesystem::exists(file, ignored) ? "found a folder" : "no such file");
  const Json json = parse_json_with_comments(read_whole_file(file), file);
  if (!json.is_object())
    refuse("{}: found {}; allowed: a JSON object, a sweep or a config", file, json.type_name());
  Sweep sweep;
  std::vector<Variant> variants;
  std::int64_t repeats = 1;
  if (json.contains("base")) {
    const SweepReader reader(file, json);
    sweep.base = reader.base();
    sweep.dir = reader.dir();
    repeats = reader.repeats();
    variants = reader.variants();
    sweep.baseline = reader.baseline(variants);
    sweep.target_loss = reader.target_loss();
    variants = choose_modes(std::move(variants), options.modes, file);
  } else {
    sweep.base = file;
    sweep.dir = std::filesystem::path("runs") / (std::filesystem::path(file).stem().string() + "_sweep");
    for (const std::string& mode :
         options.modes.empty() ? std::vector<std::string>{"fp32", "bf16", "fp8"} : options.modes)
      variants.push_back({.name = mode, .set = {{"precision.mode", Json(mode)}}});
  }
  if (options.repeats > 0) repeats = options.repeats;

  for (const Override& o : options.overrides) {
    if (o.path == "output.dir") sweep.dir = o.value;
    if (o.path == "name")
      refuse("--set name: a sweep names its runs itself; allowed: --set output.dir=DIR for their folder");
  }
  std::set<std::string> folders;
  for (std::int64_t r = 0; r < repeats; ++r)
    for (const Variant& v : variants) {
      SweepRun run{
          .name = v.name, .folder = r == 0 ? v.name : fmt::format("{}_{}", v.name, r + 1), .overrides = {}};
      if (!folders.insert(run.folder).second)
        refuse("{}: two runs are named {}; allowed: each name once", file, run.folder);
      for (const auto& [path, value] : v.set) run.overrides.push_back({path, value.dump()});
      run.overrides.insert(run.overrides.end(), options.overrides.begin(), options.overrides.end());
      if (r > 0) {
        const Config base = load_config(sweep.base, run.overrides);
        run.overrides.push_back({"train.seed", std::to_string(base.train.seed + r)});
      }
      run.overrides.push_back({"name", Json(run.folder).dump()});
      run.overrides.push_back({"output.dir", Json((sweep.dir / run.folder).string()).dump()});
      sweep.runs.push_back(std::move(run));
    }
  return sweep;
}

}  // namespace octavo
