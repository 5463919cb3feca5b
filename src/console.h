// console.h - what a person sees while a run works: one live line on a terminal, plain lines elsewhere, and
// the same messages with the time in train.log. Everything goes to standard error; standard output is for
// results.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace spdlog {
class logger;
}

namespace octavo {

/// State of a run, as the progress line shows it.
struct Progress {
  std::string label;  // the run's name within a sweep; may be empty
  std::int64_t step = 0, total_steps = 0;
  double loss = 0;
  std::optional<double> val_loss;  // on a live line: the latest one
  double lr = 0;
  double grad_norm = 0;
  double tokens_per_s = 0;
  std::optional<double> eta_s;  // seconds until the run ends
};

/// Columns that UTF-8 text takes in a terminal: its code points (wide and combining characters are not told
/// apart).
int text_columns(std::string_view text);
/// "1.2 s", "48 s", "3 min 05 s", "2 h 07 min", "4 d 03 h".
std::string format_duration(double seconds);
/// "2.4877", "inf", and "nan" whatever the sign of the NaN.
std::string format_fixed(double value, int decimals);
/// 1234567 -> "1,234,567".
std::string format_count(std::int64_t n);
/// Text as a cell of a Markdown table: '|' escaped, line ends as spaces.
std::string markdown_cell(std::string_view text);
/// Bytes as "512 B", "3.1 MiB", "12.4 GiB".
std::string format_bytes(double bytes);

/// The progress line, at most `width` columns (0: no limit). Where it does not fit, fields go in this order:
/// gradient norm, learning rate, label, validation loss, tokens/s, ETA; step and loss stay, cut if need be.
std::string progress_line(const Progress& progress, int width = 0);

struct ConsoleOptions {
  std::FILE* stream = stderr;
  std::optional<bool> live;      // empty: whether the stream is a terminal that can move its cursor
  int width = 0;                 // 0: the terminal's, asked at each line
  double live_interval_s = 0.1;  // at most one redraw in this time
  double plain_interval_s =
      1.0;  // likewise for plain lines; a line with a validation loss or the last step always shows
};

class Console {
 public:
  explicit Console(const ConsoleOptions& options = {});
  ~Console();  // ends the live line
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Starts train.log (appending where `append`, else afresh). Throws RunError where it cannot be opened. A
  /// later write error is reported once on the stream and does not stop the run.
  void open_log(const std::filesystem::path& file, bool append);
  void close_log();

  /// The live line, or a plain line; always a line of train.log (as plain line, every call).
  void progress(const Progress& progress);
  /// A passing remark ("evaluating 12/40") behind the live line; nothing elsewhere, nothing in train.log.
  void status(std::string_view text);
  /// A message above the live line, and in train.log. May hold several lines.
  void info(std::string_view text);
  /// The same, with "warning: " before it.
  void warn(std::string_view text);
  /// Ends the live line: what it showed stays, the cursor goes to a new line.
  void finish();

  bool live() const { return live_; }

 private:
  using Clock = std::chrono::steady_clock;

  void message(std::string_view text);  // prints above the live line
  void draw(const std::string& line);   // replaces the live line
  void write_log(std::string_view text);
  int width() const;

  ConsoleOptions options_;
  bool live_;
  std::mutex mutex_;
  std::string shown_;                      // what the live line shows now; empty: there is none
  std::optional<Progress> newest_;         // drawn or not yet, with the latest validation loss
  std::optional<Clock::time_point> last_;  // when a progress line was last printed
  bool pending_ = false;                   // newest_ has not been printed yet
  std::shared_ptr<spdlog::logger> log_;
  std::string log_error_;  // the first write error of train.log
  bool log_error_told_ = false;
};

}  // namespace octavo
