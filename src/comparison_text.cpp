// comparison_text.cpp - a comparison as tables for people (terminal, Markdown) and as records for programs
// (CSV, JSON).
#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "comparison.h"
#include "console.h"
#include "error.h"
#include "files.h"
#include "json_text.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kCpuNote = "CPU: says nothing of GPUs";

using Cells = std::vector<std::vector<std::string>>;  // a heading first; a heading may have several lines

template <typename Predicate>
bool any_row(const Comparison& comparison, Predicate predicate) {
  return std::any_of(comparison.rows.begin(), comparison.rows.end(), predicate);
}

bool has_baseline(const Comparison& c) {
  return c.baseline < c.rows.size();
}

const char* status_of(const ComparisonRow& row) {
  if (!row.runs.empty()) return "finished";
  return row.unsupported.empty() ? "failed" : "unsupported";
}

std::string number(double value, int decimals) {
  if (!std::isfinite(value)) return "not finite";
  return decimals == 0 ? format_count(std::llround(value)) : fmt::format("{:.{}f}", value, decimals);
}

std::string with_error(const Estimate& value) {
  std::string text = number(value.mean, 4);
  if (value.standard_error && std::isfinite(*value.standard_error))
    text += fmt::format(" ± {:.4f}", *value.standard_error);
  return text;
}

/// "+0.0187 (+1.23 ± 0.10 %)"; of the baseline the noise, which its gaps are to be seen beside.
std::string gap_cell(const LossColumn& column, bool is_baseline) {
  if (is_baseline && column.noise && std::isfinite(*column.noise))
    return fmt::format("noise {:.4f} ({:.2f} %)", *column.noise, 100 * *column.noise / column.loss.mean);
  if (!column.gap) return "-";
  if (!std::isfinite(column.gap->nats.mean)) return "not finite";
  std::string error;
  if (column.gap->percent.standard_error)
    error = fmt::format(" ± {:.2f}", *column.gap->percent.standard_error);
  return fmt::format("{:+.4f} ({:+.2f}{} %)", column.gap->nats.mean, column.gap->percent.mean, error);
}

/// The cells that name a row: its run, and where they tell something, mode and number of seeds.
struct Naming {
  bool mode, seeds;

  explicit Naming(const Comparison& c)
      : mode(any_row(c, [](const auto& row) { return row.name != row.mode; })),
        seeds(any_row(c, [](const auto& row) { return row.runs.size() + row.failures.size() > 1; })) {}

  std::vector<std::string> heading() const {
    std::vector<std::string> cells{mode ? "run" : "mode"};
    if (mode) cells.push_back("mode");
    if (seeds) cells.push_back("seeds");
    return cells;
  }
  std::vector<std::string> of(const ComparisonRow& row) const {
    std::vector<std::string> cells{row.name};
    if (mode) cells.push_back(row.mode);
    if (seeds) cells.push_back(std::to_string(row.runs.size()));
    return cells;
  }
};

void append(std::vector<std::string>& cells, std::vector<std::string> more) {
  std::move(more.begin(), more.end(), std::back_inserter(cells));
}

/// What a run costs: its losses, and how far they are from the baseline's.
Cells loss_cells(const Comparison& c) {
  const Naming naming(c);
  Cells table{naming.heading()};
  append(table[0], {"train\nloss", "validation\nloss", "gap in train loss\nin nats (in %)",
                    "gap in validation loss\nin nats (in %)", fmt::format("inside\n{} %", kGapAllowed)});
  for (std::size_t i = 0; i < c.rows.size(); ++i) {
    const ComparisonRow& row = c.rows[i];
    std::vector<std::string> line = naming.of(row);
    if (row.runs.empty()) {
      line.push_back(status_of(row));
      line.resize(table[0].size(), "-");
    } else {
      const bool is_baseline = i == c.baseline;
      append(line, {number(row.train.loss.mean, 4), row.val ? number(row.val->loss.mean, 4) : "-",
                    gap_cell(row.train, is_baseline), row.val ? gap_cell(*row.val, is_baseline) : "-",
                    is_baseline     ? "baseline"
                    : row.judgement ? name_of(row.judgement->verdict)
                                    : "-"});
    }
    table.push_back(std::move(line));
  }
  return table;
}

/// What a run buys: speed, and what that makes of the losses.
Cells speed_cells(const Comparison& c) {
  const Naming naming(c);
  const std::string note = c.on_cpu ? "\n(CPU: says\nnothing of\nGPUs)" : "";
  Cells table{naming.heading()};
  append(table[0], {"tokens/s" + note, "middle half\nof the steps", "speed-up" + note,
                    "loss at\n" + format_duration(c.equal_seconds) + note,
                    fmt::format("time to\nloss {:.4f}", c.target_loss) + note, "time for\nall steps",
                    "peak memory\n(GiB)"});
  for (const ComparisonRow& row : c.rows) {
    if (row.runs.empty()) continue;
    std::vector<std::string> line = naming.of(row);
    const Quartiles& speed = row.tokens_per_s;
    append(line, {number(speed.median, 0),
                  std::isfinite(speed.median) ? number(speed.low, 0) + " - " + number(speed.high, 0) : "-",
                  std::isfinite(row.speedup) ? fmt::format("{:.2f} x", row.speedup) : "n/a",
                  with_error(row.loss_at_equal_time),
                  row.seconds_to_target ? format_duration(row.seconds_to_target->mean) : "not reached",
                  format_duration(row.seconds.mean), fmt::format("{:.2f}", row.peak_memory_gib)});
    table.push_back(std::move(line));
  }
  return table;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string aligned(const Cells& table) {
  const auto columns = [](const std::string& text) { return static_cast<std::size_t>(text_columns(text)); };
  std::vector<std::size_t> width(table[0].size(), 0);
  for (const auto& row : table)
    for (std::size_t i = 0; i < row.size(); ++i)
      for (const std::string& line : split_lines(row[i])) width[i] = std::max(width[i], columns(line));
  std::string text;
  for (std::size_t r = 0; r < table.size(); ++r) {
    std::size_t height = 1;
    for (const std::string& value : table[r]) height = std::max(height, split_lines(value).size());
    for (std::size_t h = 0; h < height; ++h) {
      std::string line;
      for (std::size_t i = 0; i < width.size(); ++i) {
        const auto lines = split_lines(table[r][i]);
        const std::string value = h < lines.size() ? lines[h] : "";
        const std::string pad(width[i] - columns(value), ' ');
        line += (i == 0 ? value + pad : "  " + pad + value);  // names left, numbers right
      }
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    if (r > 0) continue;
    std::size_t total = 2 * (width.size() - 1);
    for (const std::size_t w : width) total += w;
    text += std::string(total, '-') + "\n";
  }
  return text;
}

std::string markdown(const Cells& table) {
  std::string text;
  for (std::size_t r = 0; r < table.size(); ++r) {
    text += "|";
    for (const std::string& value : table[r]) text += fmt::format(" {} |", markdown_cell(value));
    text += "\n";
    if (r > 0) continue;
    text += "|---|";
    for (std::size_t i = 1; i < table[0].size(); ++i) text += "---:|";
    text += "\n";
  }
  return text + "\n";
}

/// "bf16 needs about 12 seeds, or more steps".
std::vector<std::string> unresolved(const Comparison& c) {
  std::vector<std::string> lines;
  for (const ComparisonRow& row : c.rows) {
    if (!row.judgement || row.judgement->verdict != Verdict::unresolved) continue;
    if (row.train.gap->pairs == 0) continue;  // a note says so
    const int pairs = row.train.gap->pairs;
    lines.push_back(
        pairs < kLeastPairs
            ? fmt::format("{}: not resolved with {} seed{}; --repeats {} adds the others", row.name, pairs,
                          pairs == 1 ? "" : "s", kLeastPairs)
            : fmt::format(
                  "{}: not resolved, its standard error is over {} %; --repeats {} may do, or more steps",
                  row.name, kGapAllowed, row.judgement->pairs_needed));
  }
  return lines;
}

/// What stands below the tables, one line each.
std::vector<std::string> footnotes(const Comparison& c) {
  std::vector<std::string> lines;
  for (const ComparisonRow& row : c.rows) {
    if (!row.unsupported.empty())
      lines.push_back(fmt::format("{} unsupported: {}", row.name, row.unsupported));
    for (const std::string& reason : row.failures)
      lines.push_back(fmt::format("{} failed: {}", row.name, reason));
  }
  for (const ReferenceLine& line : reference_lines(c.curves))
    lines.push_back(fmt::format("{} {:.4f} nats per token", line.label, line.value));
  if (!has_baseline(c)) return lines;
  if (!c.asked_baseline.empty())
    lines.push_back(
        fmt::format("{} has no result: {} is the baseline", c.asked_baseline, c.rows[c.baseline].name));
  lines.insert(lines.end(), c.notes.begin(), c.notes.end());
  for (std::string& line : unresolved(c)) lines.push_back(std::move(line));
  lines.push_back(
      "losses in nats per token; train loss: mean of the last 100 steps (of under 1000: of their last "
      "tenth)");
  lines.push_back(
      fmt::format("gap: the loss less {}'s of the same seed; inside: at most {} % or 2 standard errors",
                  c.rows[c.baseline].name, kGapAllowed));
  if (any_row(c, [](const auto& row) { return row.runs.size() > 1; }))
    lines.push_back("±: standard error over seeds; noise: standard deviation from seed to seed");
  lines.push_back("tokens/s: median over steps; times are of training alone, without evaluations and saves");
  return lines;
}

std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + "\"";
}

/// One value of a row: a number, a text, or null.
using Record = std::vector<std::pair<std::string, Json>>;

template <typename T>
Json error_of(const std::optional<T>& value) {
  return value ? json_or_null(value->standard_error) : Json();
}

/// Of no column the keys alone.
void append_loss(Record& record, const std::string& name, const LossColumn* column) {
  const LossGap* gap = column != nullptr && column->gap ? &*column->gap : nullptr;
  const Judgement* judgement = column != nullptr && column->judgement ? &*column->judgement : nullptr;
  const auto add = [&](const char* what, const void* there, const auto& value) {
    record.emplace_back(name + what, there != nullptr ? value() : Json());
  };
  add("_loss", column, [&] { return Json(column->loss.mean); });
  add("_loss_se", column, [&] { return json_or_null(column->loss.standard_error); });
  add("_noise", column, [&] { return json_or_null(column->noise); });
  add("_gap", gap, [&] { return Json(gap->nats.mean); });
  add("_gap_se", gap, [&] { return json_or_null(gap->nats.standard_error); });
  add("_gap_percent", gap, [&] { return Json(gap->percent.mean); });
  add("_gap_percent_se", gap, [&] { return json_or_null(gap->percent.standard_error); });
  add("_gap_pairs", gap, [&] { return Json(gap->pairs); });
  add("_verdict", judgement, [&] { return Json(name_of(judgement->verdict)); });
  add("_seeds_needed", judgement,
      [&] { return judgement->pairs_needed > 0 ? Json(judgement->pairs_needed) : Json(); });
}

/// All that is known of a row, the same for CSV and JSON.
Record record_of(const Comparison& c, std::size_t index) {
  const ComparisonRow& row = c.rows[index];
  const bool any = !row.runs.empty();
  const auto if_any = [&](Json value) { return any ? value : Json(); };
  Record record{{"name", row.name},
                {"mode", row.mode},
                {"status", status_of(row)},
                {"repeats", row.runs.size()},
                {"baseline", index == c.baseline}};
  append_loss(record, "train", any ? &row.train : nullptr);
  append_loss(record, "val", row.val ? &*row.val : nullptr);
  const Record rest{{"verdict", row.judgement ? Json(name_of(row.judgement->verdict)) : Json()},
                    {"tokens_per_s", if_any(row.tokens_per_s.median)},
                    {"tokens_per_s_q1", if_any(row.tokens_per_s.low)},
                    {"tokens_per_s_q3", if_any(row.tokens_per_s.high)},
                    {"speedup", if_any(row.speedup)},
                    {"speed_note", c.on_cpu ? Json(kCpuNote) : Json()},
                    {"training_s", if_any(row.seconds.mean)},
                    {"equal_time_s", if_any(c.equal_seconds)},
                    {"loss_at_equal_time", if_any(row.loss_at_equal_time.mean)},
                    {"loss_at_equal_time_se", if_any(json_or_null(row.loss_at_equal_time.standard_error))},
                    {"target_loss", if_any(c.target_loss)},
                    {"time_to_target_s", row.seconds_to_target ? Json(row.seconds_to_target->mean) : Json()},
                    {"time_to_target_s_se", error_of(row.seconds_to_target)},
                    {"peak_memory_gib", if_any(row.peak_memory_gib)}};
  record.insert(record.end(), rest.begin(), rest.end());
  return record;
}

Json runs_json(const ComparisonRow& row) {
  Json runs = Json::array();
  for (const MeasuredRun& run : row.runs)
    runs.push_back({{"seed", run.seed},
                    {"steps", run.steps},
                    {"tokens", run.tokens},
                    {"train_loss", run.train_loss},
                    {"val_loss", json_or_null(run.val_loss)},
                    {"tokens_per_s", run.tokens_per_s},
                    {"training_s", run.seconds},
                    {"loss_at_equal_time", run.loss_at_equal_time},
                    {"time_to_target_s", json_or_null(run.seconds_to_target)},
                    {"peak_memory_gib", run.peak_memory_gib}});
  return runs;
}

Json comparison_json(const Comparison& c) {
  Json json;
  json["speed_note"] = c.on_cpu ? Json(kCpuNote) : Json();
  json["baseline"] = has_baseline(c) ? Json(c.rows[c.baseline].name) : Json();
  json["gap_allowed_percent"] = kGapAllowed;
  json["least_seeds"] = kLeastPairs;
  json["references"] = Json::object();
  for (const ReferenceLine& line : reference_lines(c.curves)) json["references"][line.label] = line.value;
  json["notes"] = c.notes;
  json["rows"] = Json::array();
  for (std::size_t i = 0; i < c.rows.size(); ++i) {
    Json row;
    for (auto& [key, value] : record_of(c, i)) row[key] = value;
    row["unsupported"] = c.rows[i].unsupported.empty() ? Json() : Json(c.rows[i].unsupported);
    row["failures"] = c.rows[i].failures;
    row["runs"] = runs_json(c.rows[i]);
    json["rows"].push_back(std::move(row));
  }
  return json;
}

}  // namespace

std::string comparison_text(const Comparison& comparison) {
  std::string text = aligned(loss_cells(comparison)) + "\n";
  if (has_baseline(comparison)) text += aligned(speed_cells(comparison)) + "\n";
  for (const std::string& line : footnotes(comparison)) text += line + "\n";
  return text;
}

std::string comparison_markdown(const Comparison& comparison) {
  std::string text = markdown(loss_cells(comparison));
  if (has_baseline(comparison)) text += markdown(speed_cells(comparison));
  for (const std::string& line : footnotes(comparison)) text += "* " + line + "\n";
  return text + fmt::format("* format_version {}\n", kFormatVersion);
}

std::string comparison_csv(const Comparison& comparison) {
  std::string text;
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) {
    const ComparisonRow& row = comparison.rows[i];
    Record record = record_of(comparison, i);
    std::vector<std::string> reasons = row.failures;
    if (!row.unsupported.empty()) reasons.push_back(row.unsupported);
    record.emplace_back("reason", fmt::format("{}", fmt::join(reasons, "; ")));
    record.emplace_back("format_version", kFormatVersion);
    std::string heading, line;
    for (const auto& [key, value] : record) {
      const bool absent = value.is_null() || (value.is_number_float() && !std::isfinite(value.get<double>()));
      heading += (heading.empty() ? "" : ",") + key;
      line += (&value == &record.front().second ? "" : ",") +
              (absent ? "" : csv_text(value.is_string() ? value.get<std::string>() : value.dump()));
    }
    if (i == 0) text += heading + "\n";
    text += line + "\n";
  }
  return text;
}

PlotResult write_comparison(const Comparison& comparison, const fs::path& folder) {
  write_file_atomically(folder / "comparison.md", comparison_markdown(comparison));
  write_file_atomically(folder / "comparison.csv", comparison_csv(comparison));
  write_json_atomically(folder / "comparison.json", comparison_json(comparison));
  const fs::path picture = folder / "comparison.png";
  if (comparison.curves.empty())
    return {.picture = picture, .script = {}, .drawn = false, .message = "no run finished"};
  return plot_curves(comparison.curves, picture, PlotPanels::steps_and_time);
}

void remove_comparison(const fs::path& folder) {
  std::error_code ignored;
  for (const char* ending : {"md", "csv", "json", "png", "gp", "dat"})
    fs::remove(folder / (std::string("comparison.") + ending), ignored);
}

}  // namespace octavo
