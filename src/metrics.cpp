// metrics.cpp - the rows of a log: one list of columns gives JSON, CSV and the reader.
#include "metrics.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <string_view>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>

#include "error.h"
#include "files.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The one list of columns. `visit` is called with (name, member) in the order of both files; an optional
// member is a key that may be missing.
template <typename Record, typename Visit>
void for_each_column(Record& r, Visit visit) {
  visit("step", r.step);
  visit("updates", r.updates);
  visit("skipped", r.skipped);
  visit("tokens", r.tokens);
  visit("loss", r.loss);
  visit("val_loss", r.val_loss);
  visit("lr", r.lr);
  visit("grad_norm", r.grad_norm);
  visit("step_ms", r.step_ms);
  visit("tokens_per_s", r.tokens_per_s);
  visit("tflops", r.tflops);
  visit("mfu", r.mfu);
  visit("memory_gib", r.memory_gib);
  visit("finite", r.finite);
}

// The columns of the object "fp8".
template <typename Record, typename Visit>
void for_each_fp8_column(Record&& r, Visit visit) {
  visit("scale_min", r.scale_min);
  visit("scale_max", r.scale_max);
  visit("amax_min", r.amax_min);
  visit("amax_max", r.amax_max);
  visit("saturated", r.saturated);
  visit("underflowed", r.underflowed);
}

bool all_finite(const StepRecord& record) {
  bool finite = record.finite;
  if (record.fp8)
    for_each_fp8_column(*record.fp8,
                        [&](const char*, double value) { finite = finite && std::isfinite(value); });
  for_each_column(record, [&](const char*, const auto& value) {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, double>) finite = finite && std::isfinite(value);
    if constexpr (std::is_same_v<T, std::optional<double>>)
      finite = finite && (!value || std::isfinite(*value));
  });
  return finite;
}

/// A row whose `finite` tells the truth about all its numbers.
StepRecord checked(StepRecord record) {
  record.finite = all_finite(record);
  return record;
}

/// One parsed line as a record; the fault as text where it is no row.
std::string to_record(const Json& row, StepRecord& record) {
  if (!row.is_object()) return std::string("found ") + row.type_name() + "; allowed: one JSON object a line";
  const auto version = row.find("format_version");
  if (version == row.end() || *version != kFormatVersion) {
    return fmt::format("format_version: found {}; allowed: {}",
                       version == row.end() ? "none" : json_excerpt(*version), kFormatVersion);
  }
  std::string fault;
  const auto number = [&](const std::string& name, const Json& found, double& value) {
    if (found.is_number())
      value = found.get<double>();
    else if (found.is_null())
      value = kNaN;
    else
      fault = fmt::format("{}: found {}; allowed: a number or null", name, json_excerpt(found));
  };
  if (const auto fp8 = row.find("fp8"); fp8 != row.end()) {
    if (!fp8->is_object()) return fmt::format("fp8: found {}; allowed: an object", json_excerpt(*fp8));
    for_each_fp8_column(record.fp8.emplace(), [&](const char* key, double& value) {
      const auto found = fp8->find(key);
      if (!fault.empty()) return;
      if (found == fp8->end())
        fault = fmt::format("key \"fp8.{}\" is missing", key);
      else
        number(fmt::format("fp8.{}", key), *found, value);
    });
  }
  for_each_column(record, [&](const char* name, auto& value) {
    using T = std::decay_t<decltype(value)>;
    if (!fault.empty()) return;
    const auto found = row.find(name);
    if constexpr (std::is_same_v<T, std::optional<double>>) {
      if (found == row.end()) {
        value.reset();
        return;
      }
    }
    if (found == row.end()) {
      fault = fmt::format("key \"{}\" is missing", name);
      return;
    }
    if constexpr (std::is_same_v<T, bool>) {
      if (found->is_boolean()) {
        value = found->get<bool>();
      } else {
        fault = fmt::format("{}: found {}; allowed: true or false", name, json_excerpt(*found));
      }
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      if (found->is_number_integer()) {
        value = found->get<std::int64_t>();
      } else {
        fault = fmt::format("{}: found {}; allowed: an integer", name, json_excerpt(*found));
      }
    } else {
      double read = 0;
      number(name, *found, read);
      value = read;
    }
  });
  return fault;
}

struct Row {
  std::string text;
  StepRecord record;
};

/// All whole rows of a log, each with its text (which may hold keys of other versions of the program, kept on
/// resume). `on_fault` is called with the number of a line that is no row, and why; it throws, or the line is
/// passed over.
template <typename OnFault>
std::vector<Row> read_rows(const fs::path& file, OnFault on_fault) {
  const std::string content = read_whole_file(file);
  std::vector<Row> rows;
  std::size_t line = 0;
  for (std::size_t begin = 0; begin < content.size();) {
    std::size_t end = content.find('\n', begin);
    const bool torn = end == std::string::npos;
    if (torn) end = content.size();
    Row row{content.substr(begin, end - begin), {}};
    begin = end + 1;
    ++line;
    const Json json = Json::parse(row.text, nullptr, false);
    if (torn && !json.is_object()) break;  // a killed run
    std::string fault = json.is_discarded()
                            ? fmt::format("not valid JSON: {}", json_excerpt(row.text.substr(0, 40)))
                            : to_record(json, row.record);
    if (fault.empty() && !rows.empty() && row.record.step <= rows.back().record.step)
      fault = fmt::format("step {} follows step {}; allowed: steps that increase", row.record.step,
                          rows.back().record.step);
    if (fault.empty())
      rows.push_back(std::move(row));
    else
      on_fault(line, fault);
  }
  return rows;
}

int open_for_append(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) fail("cannot write {}: {}", file.string(), std::strerror(errno));
  return fd;
}

/// Appends `text` in one write; takes it back and throws where not all of it went in.
void append_line(int fd, const fs::path& file, const std::string& text) {
  const off_t before = ::lseek(fd, 0, SEEK_END);
  ssize_t written = -1;
  do {
    errno = 0;
    written = ::write(fd, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(text.size())) return;
  // A short write means that the disk ran full in the middle of the row.
  const int error = written < 0 ? errno : ENOSPC;
  if (before < 0 || ::ftruncate(fd, before) != 0) {
    // The torn row stays; readers and resume pass over it.
  }
  fail("cannot write {}: {}", file.string(), std::strerror(error));
}

}  // namespace

std::string metrics_json(const StepRecord& unchecked) {
  const StepRecord record = checked(unchecked);
  Json row;
  for_each_column(record, [&](const char* name, const auto& value) {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, std::optional<double>>) {
      if (value) row[name] = *value;
    } else {
      row[name] = value;
    }
  });
  if (record.fp8)
    for_each_fp8_column(*record.fp8, [&](const char* name, double value) { row["fp8"][name] = value; });
  row["format_version"] = kFormatVersion;
  return row.dump();  // the library writes non-finite numbers as null, others so that they read back to the
                      // same bits
}

std::string metrics_csv_header() {
  std::string header;
  const StepRecord record;
  for_each_column(record, [&](const char* name, const auto&) { header += std::string(name) + ","; });
  for_each_fp8_column(Fp8Record(),
                      [&](const char* name, double) { header += std::string("fp8_") + name + ","; });
  return header + "format_version";
}

std::string metrics_csv(const StepRecord& unchecked) {
  const StepRecord record = checked(unchecked);
  std::string row;
  const auto number = [&](double value) {
    if (std::isfinite(value)) row += Json(value).dump();
  };
  for_each_column(record, [&](const char*, const auto& value) {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, double>) {
      number(value);
    } else if constexpr (std::is_same_v<T, std::optional<double>>) {
      if (value) number(*value);
    } else {
      row += fmt::format("{}", value);
    }
    row += ",";
  });
  for_each_fp8_column(record.fp8.value_or(Fp8Record()), [&](const char*, double value) {
    if (record.fp8) number(value);
    row += ",";
  });
  return row + std::to_string(kFormatVersion);
}

MetricsLog::MetricsLog(const fs::path& folder, std::int64_t keep_through_step)
    : jsonl_path_(folder / "metrics.jsonl"), csv_path_(folder / "metrics.csv") {
  std::string jsonl, csv = metrics_csv_header() + "\n";
  if (keep_through_step > 0 && path_exists(jsonl_path_)) {
    std::size_t dropped = 0;
    std::string first;
    const std::vector<Row> rows = read_rows(jsonl_path_, [&](std::size_t line, const std::string& fault) {
      if (dropped++ == 0) first = fmt::format("line {}: {}", line, fault);
    });
    for (const Row& row : rows) {
      if (row.record.step > keep_through_step) break;
      jsonl += row.text + "\n";
      csv += metrics_csv(row.record) + "\n";
    }
    if (dropped > 0)
      warning_ = fmt::format(
          "{}: dropped {}, the first at {}", jsonl_path_.string(),
          dropped == 1 ? "1 line that is no row" : fmt::format("{} lines that are no rows", dropped), first);
    else if (jsonl.empty())
      warning_ = fmt::format("{}: has no row; the log begins after step {}", jsonl_path_.string(),
                             keep_through_step);
  } else if (keep_through_step > 0) {
    warning_ =
        fmt::format("{}: is missing; the log begins after step {}", jsonl_path_.string(), keep_through_step);
  }
  // The CSV is made anew from the rows kept, so that the two files agree whatever happened to it.
  write_file_atomically(jsonl_path_, jsonl);
  write_file_atomically(csv_path_, csv);
  jsonl_ = open_for_append(jsonl_path_);
  try {
    csv_ = open_for_append(csv_path_);
  } catch (...) {
    ::close(jsonl_);
    throw;
  }
}

MetricsLog::~MetricsLog() {
  ::close(jsonl_);
  ::close(csv_);
}

void MetricsLog::append(const StepRecord& record) {
  if (failed_) return;
  try {
    append_line(jsonl_, jsonl_path_, metrics_json(record) + "\n");
    append_line(csv_, csv_path_, metrics_csv(record) + "\n");
  } catch (const RunError&) {
    failed_ = true;
    throw;
  }
}

void MetricsLog::sync() {
  if (failed_) return;
  for (const auto& [fd, path] : {std::pair(jsonl_, &jsonl_path_), std::pair(csv_, &csv_path_)}) {
    // EINVAL and EROFS: not a file that can be synchronised (a device, a pipe).
    if (::fdatasync(fd) == 0 || errno == EINVAL || errno == EROFS) continue;
    failed_ = true;
    fail("cannot write {}: {}", path->string(), std::strerror(errno));
  }
}

std::vector<StepRecord> read_metrics(const fs::path& file) {
  std::vector<StepRecord> records;
  const auto refuse_line = [&](std::size_t line, const std::string& fault) {
    refuse("{} line {}: {}; remove the damaged line, or the whole file", file.string(), line, fault);
  };
  for (const Row& row : read_rows(file, refuse_line)) records.push_back(row.record);
  return records;
}

double trailing_loss(const std::vector<StepRecord>& records, std::size_t count) {
  double sum = 0;
  std::size_t n = 0;
  for (auto record = records.rbegin(); record != records.rend() && n < count; ++record) {
    if (!std::isfinite(record->loss)) continue;
    sum += record->loss;
    ++n;
  }
  return n == 0 ? kNaN : sum / static_cast<double>(n);
}

std::optional<double> last_val_loss(const std::vector<StepRecord>& records) {
  const auto found = std::find_if(records.rbegin(), records.rend(),
                                  [](const StepRecord& record) { return record.val_loss.has_value(); });
  return found == records.rend() ? std::nullopt : found->val_loss;
}

double median_tokens_per_s(const std::vector<StepRecord>& records) {
  std::vector<double> speeds;
  const std::size_t skip = std::min<std::size_t>(5, records.size() / 2);
  for (std::size_t i = skip; i < records.size(); ++i) {
    if (std::isfinite(records[i].tokens_per_s)) speeds.push_back(records[i].tokens_per_s);
  }
  if (speeds.empty()) return kNaN;
  std::sort(speeds.begin(), speeds.end());
  const std::size_t middle = speeds.size() / 2;
  return speeds.size() % 2 == 1 ? speeds[middle] : (speeds[middle - 1] + speeds[middle]) / 2;
}

}  // namespace octavo
