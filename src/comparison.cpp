// comparison.cpp - from the logs of a sweep's runs to one table in its several forms.
#include "comparison.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "console.h"
#include "error.h"
#include "files.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kCpuNote = "CPU: says nothing of GPUs";

Estimate estimate(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  Estimate result;
  for (const double value : values) result.mean += value / n;
  if (values.size() < 2) return result;
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.standard_error = std::sqrt(squares / (n - 1) / n);
  return result;
}

/// What the repeats of one row measured.
struct Measured {
  std::vector<double> train_loss, val_loss, tokens_per_s;
};

/// The first row with something to compare, which the others are held against; their number where there is
/// none.
std::size_t base_row(const std::vector<ComparisonRow>& rows) {
  const auto found = std::find_if(rows.begin(), rows.end(), [](const auto& row) { return row.repeats > 0; });
  return static_cast<std::size_t>(found - rows.begin());
}

std::string cell(const Estimate& value, int decimals) {
  if (!std::isfinite(value.mean)) return "not finite";
  std::string text = fmt::format("{:.{}f}", value.mean, decimals);
  if (decimals == 0) text = format_count(std::llround(value.mean));
  if (value.standard_error) text += fmt::format(" ± {:.{}f}", *value.standard_error, decimals);
  return text;
}

/// The cells of the table, a heading first. A heading may have several lines.
std::vector<std::vector<std::string>> cells(const Comparison& comparison) {
  const std::vector<ComparisonRow>& rows = comparison.rows;
  const bool modes =
      std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row.name != row.mode; });
  const bool repeats = std::any_of(rows.begin(), rows.end(), [](const auto& row) {
    return static_cast<std::size_t>(row.repeats) + row.failures.size() > 1;
  });
  const std::string note = comparison.on_cpu ? "\n(CPU: says\nnothing of\nGPUs)" : "";
  const std::size_t base = base_row(rows);
  std::vector<std::vector<std::string>> table(1);
  std::vector<std::string>& head = table[0];
  head.push_back(modes ? "run" : "mode");
  if (modes) head.push_back("mode");
  if (repeats) head.push_back("repeats");
  for (const char* word : {"train loss", "val loss", "gap"}) head.push_back(word);
  head.push_back("tokens/s" + note);
  head.push_back("speed-up" + note);
  head.push_back("peak memory\n(GiB)");
  const std::size_t columns_in_all = head.size();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ComparisonRow& row = rows[i];
    std::vector<std::string> line{row.name};
    if (modes) line.push_back(row.mode);
    if (repeats) line.push_back(std::to_string(row.repeats));
    if (row.repeats == 0) {
      line.push_back("failed");
      line.resize(columns_in_all, "-");
      table.push_back(std::move(line));
      continue;
    }
    line.push_back(cell(row.train_loss, 4));
    line.push_back(row.val_loss ? cell(*row.val_loss, 4) : "-");
    line.push_back(i == base || !row.gap     ? "-"
                   : std::isfinite(*row.gap) ? fmt::format("{:+.4f}", *row.gap)
                                             : "n/a");
    line.push_back(cell(row.tokens_per_s, 0));
    line.push_back(std::isfinite(row.speedup) ? fmt::format("{:.2f} x", row.speedup) : "n/a");
    line.push_back(fmt::format("{:.2f}", row.peak_memory_gib));
    table.push_back(std::move(line));
  }
  return table;
}

std::size_t columns(const std::string& text) {
  return static_cast<std::size_t>(text_columns(text));
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

std::string references(const Comparison& comparison) {
  std::string text;
  for (const ReferenceLine& line : reference_lines(comparison.curves)) {
    text += fmt::format("{} {:.4f} nats per token\n", line.label, line.value);
  }
  return text;
}

std::string footnotes(const Comparison& comparison) {
  const auto& rows = comparison.rows;
  const bool repeated =
      std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row.repeats > 1; });
  std::string failures;
  for (const ComparisonRow& row : rows)
    for (const std::string& reason : row.failures)
      failures += fmt::format("{} failed: {}\n", row.name, reason);
  return failures + references(comparison) +
         "losses in nats per token; train loss: mean of the last 20 logged steps; gap: loss less that of the "
         "first row; "
         "tokens/s: median over steps\n" +
         (repeated ? "± is the standard error over repeats\n" : "");
}

std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + "\"";
}

std::string csv_number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value).dump() : "";
}

Json estimate_json(const Estimate& value) {
  return {{"mean", value.mean},
          {"standard_error", value.standard_error ? Json(*value.standard_error) : Json()}};
}

Json comparison_json(const Comparison& comparison) {
  Json json;
  json["speed_note"] = comparison.on_cpu ? Json(kCpuNote) : Json();
  json["references"] = Json::object();
  for (const ReferenceLine& line : reference_lines(comparison.curves))
    json["references"][line.label] = line.value;
  json["rows"] = Json::array();
  for (const ComparisonRow& row : comparison.rows) {
    json["rows"].push_back({{"name", row.name},
                            {"mode", row.mode},
                            {"repeats", row.repeats},
                            {"failures", row.failures},
                            {"train_loss", row.repeats > 0 ? estimate_json(row.train_loss) : Json()},
                            {"val_loss", row.val_loss ? estimate_json(*row.val_loss) : Json()},
                            {"gap", row.gap ? Json(*row.gap) : Json()},
                            {"tokens_per_s", row.repeats > 0 ? estimate_json(row.tokens_per_s) : Json()},
                            {"speedup", row.repeats > 0 ? Json(row.speedup) : Json()},
                            {"peak_memory_gib", row.repeats > 0 ? Json(row.peak_memory_gib) : Json()}});
  }
  return json;
}

}  // namespace

Comparison compare_runs(const std::vector<SweptRun>& runs, bool on_cpu) {
  Comparison comparison;
  comparison.on_cpu = on_cpu;
  std::vector<Measured> measured;
  for (const SweptRun& run : runs) {
    const auto found = std::find_if(comparison.rows.begin(), comparison.rows.end(),
                                    [&](const ComparisonRow& row) { return row.name == run.name; });
    const auto index = static_cast<std::size_t>(found - comparison.rows.begin());
    if (found == comparison.rows.end()) {
      comparison.rows.emplace_back().name = run.name;
      comparison.rows.back().mode = run.mode;
      measured.emplace_back();
    }
    ComparisonRow& row = comparison.rows[index];
    if (!run.failure.empty()) {
      row.failures.push_back(run.failure);
      continue;
    }
    Curve curve = load_curve(run.folder);
    measured[index].train_loss.push_back(trailing_loss(curve.records));
    if (const auto val = last_val_loss(curve.records)) measured[index].val_loss.push_back(*val);
    measured[index].tokens_per_s.push_back(median_tokens_per_s(curve.records));
    row.peak_memory_gib = std::max(row.peak_memory_gib, run.peak_memory_gib);
    for (const StepRecord& record :
         curve.records) {  // of a resumed run the larger part may be in the log alone
      if (record.memory_gib > row.peak_memory_gib) row.peak_memory_gib = record.memory_gib;
    }
    ++row.repeats;
    curve.name = row.repeats == 1 ? run.name : fmt::format("{} #{}", run.name, row.repeats);
    comparison.curves.push_back(std::move(curve));
  }
  const std::size_t base = base_row(comparison.rows);
  for (std::size_t i = base; i < comparison.rows.size(); ++i) {
    ComparisonRow& row = comparison.rows[i];
    const ComparisonRow& first = comparison.rows[base];
    if (row.repeats == 0) continue;
    row.train_loss = estimate(measured[i].train_loss);
    row.tokens_per_s = estimate(measured[i].tokens_per_s);
    if (!measured[i].val_loss.empty()) row.val_loss = estimate(measured[i].val_loss);
    row.speedup = row.tokens_per_s.mean / first.tokens_per_s.mean;
    if (!first.val_loss) {
      row.gap = row.train_loss.mean - first.train_loss.mean;
    } else if (row.val_loss) {
      row.gap = row.val_loss->mean - first.val_loss->mean;
    }
  }
  return comparison;
}

std::string comparison_text(const Comparison& comparison) {
  const auto table = cells(comparison);
  std::vector<std::size_t> width(table[0].size(), 0);
  for (const auto& row : table) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      for (const std::string& line : split_lines(row[i])) width[i] = std::max(width[i], columns(line));
    }
  }
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
        line += (i == 0 ? value + pad : "   " + pad + value);  // names left, numbers right
      }
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    if (r > 0) continue;
    std::size_t total = 3 * (width.size() - 1);
    for (const std::size_t w : width) total += w;
    text += std::string(total, '-') + "\n";
  }
  return text + footnotes(comparison);
}

std::string comparison_markdown(const Comparison& comparison) {
  std::string text;
  const auto table = cells(comparison);
  for (std::size_t r = 0; r < table.size(); ++r) {
    text += "|";
    for (const std::string& value : table[r]) text += fmt::format(" {} |", markdown_cell(value));
    text += "\n";
    if (r > 0) continue;
    text += "|---|";
    for (std::size_t i = 1; i < table[0].size(); ++i) text += "---:|";
    text += "\n";
  }
  text += "\n";
  for (const std::string& line : split_lines(footnotes(comparison))) {
    if (!line.empty()) text += "* " + line + "\n";
  }
  return text + fmt::format("* format_version {}\n", kFormatVersion);
}

std::string comparison_csv(const Comparison& comparison) {
  std::string text =
      "name,mode,repeats,train_loss,train_loss_se,val_loss,val_loss_se,gap,tokens_per_s,tokens_per_s_se,"
      "speedup,"
      "speed_note,peak_memory_gib,failure,format_version\n";
  for (const ComparisonRow& row : comparison.rows) {
    const Estimate none{std::nan(""), std::nullopt};
    const Estimate val = row.val_loss.value_or(none);
    const std::string failure = csv_text(fmt::format("{}", fmt::join(row.failures, "; ")));
    if (row.repeats == 0) {
      text += fmt::format("{},{},0,,,,,,,,,,,{},{}\n", csv_text(row.name), csv_text(row.mode), failure,
                          kFormatVersion);
      continue;
    }
    text += fmt::format(
        "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", csv_text(row.name), csv_text(row.mode), row.repeats,
        csv_number(row.train_loss.mean), csv_number(row.train_loss.standard_error), csv_number(val.mean),
        csv_number(val.standard_error), csv_number(row.gap), csv_number(row.tokens_per_s.mean),
        csv_number(row.tokens_per_s.standard_error), csv_number(row.speedup),
        comparison.on_cpu ? kCpuNote : "", csv_number(row.peak_memory_gib), failure, kFormatVersion);
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
  return plot_curves(comparison.curves, picture);
}

}  // namespace octavo
