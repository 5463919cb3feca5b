// diff.cpp - comparison of two run folders, section by section.
#include "diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "config.h"
#include "error.h"
#include "files.h"
#include "run_folder.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Equal to the bit; any NaN equals any other.
bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(a)) == 0;
}

Parting parting(std::int64_t step, const char* quantity, double left, double right) {
  Parting result{step, quantity, left, right, std::numeric_limits<double>::quiet_NaN()};
  if (std::isfinite(left) && std::isfinite(right)) {
    const double scale = std::max(std::abs(left), std::abs(right));
    result.relative = scale > 0 ? std::abs(left - right) / scale : 0;  // 0 against -0
  }
  return result;
}

/// Everything that diff reads of a run.
struct Run {
  Config config{};
  Json description;  // run.json
  std::vector<StepRecord> records;
};

Run load_run(const fs::path& folder) {
  Run run;
  run.config = read_resolved_config(folder);
  for (const char* name : {"run.json", "metrics.jsonl"}) {
    if (path_exists(folder / name)) continue;
    refuse("{}: no {} there; allowed: the folder of a run, as octavo train leaves it", folder.string(), name);
  }
  run.description = read_json_object(folder / "run.json");
  run.records = read_metrics(folder / "metrics.jsonl");
  if (run.records.empty())
    refuse("{}: has no row; allowed: the log of a run that has done a step",
           (folder / "metrics.jsonl").string());
  return run;
}

std::string joined(const std::string& head, const std::string& tail) {
  return tail.empty() ? head : head + " " + tail;
}

std::string text_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Path chosen by operator and shape. A reason is part of the choice: a fallback may end on the same path.
std::map<std::string, std::string> paths_of(const Json& description) {
  std::map<std::string, std::string> paths;
  const auto list = description.find("paths");
  if (list == description.end() || !list->is_array()) return paths;
  for (const Json& choice : *list) {
    if (!choice.is_object()) continue;
    const std::string reason = text_at(choice, "reason");
    paths[joined(text_at(choice, "what"), text_at(choice, "shape"))] =
        text_at(choice, "path") + (reason.empty() ? "" : " (" + reason + ")");
  }
  return paths;
}

/// Machine, versions, environment and threads, flat: "versions.commit" -> "\"abc\"".
std::map<std::string, std::string> surroundings_of(const Json& description) {
  std::map<std::string, std::string> result;
  for (const char* section : {"machine", "versions", "environment"}) {
    const auto found = description.find(section);
    if (found == description.end() || !found->is_object()) continue;
    for (const auto& [key, value] : found->items()) result[std::string(section) + "." + key] = value.dump();
  }
  for (const char* key : {"device", "threads", "data_fingerprint", "resumed_from"}) {
    if (description.contains(key)) result[key] = description[key].dump();
  }
  return result;
}

using Rows = std::vector<ConfigDifference>;

Rows compare_maps(const std::map<std::string, std::string>& left,
                  const std::map<std::string, std::string>& right) {
  Rows rows;
  const auto value = [](const auto& map, const std::string& key) {
    const auto found = map.find(key);
    return found == map.end() ? std::string("-") : found->second;
  };
  std::map<std::string, std::string> all = left;
  all.insert(right.begin(), right.end());
  for (const auto& [key, unused] : all) {
    if (value(left, key) != value(right, key)) rows.push_back({key, value(left, key), value(right, key)});
  }
  return rows;
}

std::string section(const std::string& title, const Rows& rows) {
  if (rows.empty()) return title + ": equal\n";
  std::string text = fmt::format("{}: {} difference{}\n", title, rows.size(), rows.size() == 1 ? "" : "s");
  std::size_t key_width = 0;
  for (const auto& row : rows) key_width = std::max(key_width, row.path.size());
  for (const auto& row : rows) {
    text += fmt::format("  {:<{}}  A {}\n  {:<{}}  B {}\n", row.path, key_width, row.left, "", key_width,
                        row.right);
  }
  return text;
}

/// All digits of a number; a NaN without its sign.
std::string exact(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{:.17g}", value);
}

std::string steps_section(const std::vector<StepRecord>& left, const std::vector<StepRecord>& right) {
  std::int64_t common = 0;
  for (auto a = left.begin(), b = right.begin(); a != left.end() && b != right.end();) {
    if (a->step == b->step) ++common;
    const bool advance_left = a->step <= b->step, advance_right = b->step <= a->step;
    if (advance_left) ++a;
    if (advance_right) ++b;
  }
  std::string text =
      fmt::format("steps: A logged {}, B logged {}, both {}\n", left.size(), right.size(), common);
  if (common == 0) return text + "  nothing to compare\n";
  const std::optional<Parting> first = first_parting(left, right);
  if (!first) return text + "  every logged step that both have is equal to the bit\n";
  return text + fmt::format("  first difference: step {}, {}\n    A {}\n    B {}\n    relative {}\n",
                            first->step, first->quantity, exact(first->left), exact(first->right),
                            std::isnan(first->relative) ? "n/a" : fmt::format("{:.3g}", first->relative));
}

std::string end_section(const std::vector<StepRecord>& left, const std::vector<StepRecord>& right) {
  std::string text = fmt::format("{:<24}{:>16}{:>16}\n", "at the end", "A", "B");
  const auto row = [&](const char* name, double a, double b, int decimals) {
    const auto cell = [&](double v) {
      return std::isfinite(v) ? fmt::format("{:.{}f}", v, decimals) : "n/a";
    };
    text += fmt::format("  {:<22}{:>16}{:>16}\n", name, cell(a), cell(b));
  };
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const auto last_step = [&](const auto& r) {
    return r.empty() ? kNone : static_cast<double>(r.back().step);
  };
  row("step", last_step(left), last_step(right), 0);
  row("training loss", trailing_loss(left), trailing_loss(right), 6);
  row("validation loss", last_val_loss(left).value_or(kNone), last_val_loss(right).value_or(kNone), 6);
  row("tokens/s (median)", median_tokens_per_s(left), median_tokens_per_s(right), 0);
  return text;
}

}  // namespace

std::optional<Parting> first_parting(const std::vector<StepRecord>& left,
                                     const std::vector<StepRecord>& right) {
  auto b = right.begin();
  for (const StepRecord& a : left) {
    while (b != right.end() && b->step < a.step) ++b;
    if (b == right.end()) break;
    if (b->step != a.step) continue;
    const auto differs = [&](double x, double y) { return !same(x, y); };
    const auto whole = [](std::int64_t n) { return static_cast<double>(n); };
    if (differs(a.lr, b->lr)) return parting(a.step, "lr", a.lr, b->lr);
    if (a.tokens != b->tokens) return parting(a.step, "tokens", whole(a.tokens), whole(b->tokens));
    if (differs(a.loss, b->loss)) return parting(a.step, "loss", a.loss, b->loss);
    if (differs(a.grad_norm, b->grad_norm)) return parting(a.step, "grad_norm", a.grad_norm, b->grad_norm);
    if (a.updates != b->updates) return parting(a.step, "updates", whole(a.updates), whole(b->updates));
    if (a.val_loss && b->val_loss && differs(*a.val_loss, *b->val_loss)) {
      return parting(a.step, "val_loss", *a.val_loss, *b->val_loss);
    }
  }
  return std::nullopt;
}

std::string diff_runs(const fs::path& left, const fs::path& right) {
  const Run a = load_run(left), b = load_run(right);
  return fmt::format("A {}\nB {}\n\n", left.string(), right.string()) +
         section("config", compare_configs(a.config, b.config)) + "\n" +
         section("machine, versions, environment",
                 compare_maps(surroundings_of(a.description), surroundings_of(b.description))) +
         "\n" + section("paths chosen", compare_maps(paths_of(a.description), paths_of(b.description))) +
         "\n" + steps_section(a.records, b.records) + "\n" + end_section(a.records, b.records);
}

}  // namespace octavo
