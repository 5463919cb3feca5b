// console.cpp - the progress line and the terminal it lives on.
#include "console.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <unistd.h>
#include <vector>

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>

#include "error.h"

namespace octavo {
namespace {

/// The first `width` code points.
std::string cut(const std::string& text, int width) {
  std::size_t end = 0;
  for (int n = 0; end < text.size(); ++end) {
    if ((text[end] & 0xC0) != 0x80 && n++ == width) break;
  }
  return text.substr(0, end);
}

/// Whether the stream is a terminal that understands "clear to the end of the line".
bool is_live_terminal(std::FILE* stream) {
  const int fd = ::fileno(stream);
  if (fd < 0 || ::isatty(fd) == 0) return false;
  const char* term = std::getenv("TERM");
  return term != nullptr && std::string_view(term) != "dumb" && *term != '\0';
}

}  // namespace

int text_columns(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(seconds, 1e15)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  const std::int64_t minutes = (whole + 30) / 60;
  if (minutes < 24 * 60) return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
  const std::int64_t hours = (minutes + 30) / 60;
  return fmt::format("{} d {:02} h", hours / 24, hours % 24);
}

std::string format_fixed(double value, int decimals) {
  return std::isnan(value) ? "nan" : fmt::format("{:.{}f}", value, decimals);
}

std::string format_count(std::int64_t n) {
  const std::string digits = std::to_string(n);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool after_digit = i > 0 && digits[i - 1] != '-';
    if (after_digit && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string markdown_cell(std::string_view text) {
  std::string cell;
  for (const char c : text) {
    if (c == '|') cell += '\\';
    cell += c == '\n' ? ' ' : c;
  }
  return cell;
}

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 6> kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  for (; std::abs(bytes) >= 1023.95 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string progress_line(const Progress& p, int width) {
  struct Field {
    std::string text;
    int drop;  // fields with the lowest value go first; 0 stays
  };
  std::vector<Field> fields;
  const auto add = [&](int drop, std::string text) { fields.push_back({std::move(text), drop}); };
  if (!p.label.empty()) add(3, fmt::format("[{}]", p.label));
  add(0,
      p.total_steps > 0 ? fmt::format("step {}/{}", p.step, p.total_steps) : fmt::format("step {}", p.step));
  add(0, "loss " + format_fixed(p.loss, 4));
  if (p.val_loss) add(4, "val " + format_fixed(*p.val_loss, 4));
  add(2, fmt::format("lr {:.2e}", p.lr));
  add(1, "norm " + format_fixed(p.grad_norm, 3));
  const bool counts = std::isfinite(p.tokens_per_s) && std::abs(p.tokens_per_s) < 1e15;
  add(5, (counts ? format_count(std::llround(p.tokens_per_s)) : std::string("?")) + " tok/s");
  if (p.eta_s) add(6, "ETA " + format_duration(*p.eta_s));

  for (int drop = 1;; ++drop) {
    std::string line;
    for (const Field& field : fields) {
      if (field.drop != 0 && field.drop < drop) continue;
      line += (line.empty() ? "" : "  ") + field.text;
    }
    if (width <= 0 || text_columns(line) <= width) return line;
    if (drop > 6) return cut(line, width);
  }
}

Console::Console(const ConsoleOptions& options)
    : options_(options), live_(options.live ? *options.live : is_live_terminal(options.stream)) {}

Console::~Console() {
  finish();
}

int Console::width() const {
  if (options_.width > 0) return options_.width;
  winsize size{};
  if (::ioctl(::fileno(options_.stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

void Console::open_log(const std::filesystem::path& file, bool append) {
  const std::lock_guard lock(mutex_);
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_st>(file.string(), !append);
    log_ = std::make_shared<spdlog::logger>("train", std::move(sink));
  } catch (const spdlog::spdlog_ex& error) {
    fail("cannot write {}: {}", file.string(), error.what());
  }
  log_->set_pattern("%Y-%m-%d %H:%M:%S.%e  %v");
  log_->flush_on(spdlog::level::info);  // what a killed run said last is worth a write a line
  log_error_.clear();
  log_error_told_ = false;
  log_->set_error_handler([this, file](const std::string& what) {
    if (log_error_.empty()) log_error_ = fmt::format("cannot write {}: {}", file.string(), what);
  });
}

void Console::close_log() {
  const std::lock_guard lock(mutex_);
  log_.reset();
}

void Console::write_log(std::string_view text) {
  if (!log_) return;
  while (true) {  // a time before every line
    const std::size_t end = text.find('\n');
    log_->log(spdlog::level::info, spdlog::string_view_t(text.data(), std::min(end, text.size())));
    if (end == std::string_view::npos || end + 1 == text.size()) break;
    text.remove_prefix(end + 1);
  }
  if (log_error_.empty() || log_error_told_) return;
  log_error_told_ = true;
  message("warning: " + log_error_);
}

void Console::draw(const std::string& line) {
  // One column is left free: a full line would wrap, and "\r" would then go back to the wrong one.
  std::fprintf(options_.stream, "\r%s\x1b[K", line.c_str());
  std::fflush(options_.stream);
  shown_ = line;
}

void Console::message(std::string_view text) {
  std::string printed(text);
  if (printed.empty() || printed.back() != '\n') printed += '\n';
  if (!shown_.empty()) std::fputs("\r\x1b[K", options_.stream);
  std::fwrite(printed.data(), 1, printed.size(), options_.stream);
  if (!shown_.empty()) {
    draw(shown_);
  } else {
    std::fflush(options_.stream);
  }
}

void Console::progress(const Progress& progress) {
  const std::lock_guard lock(mutex_);
  write_log(progress_line(progress));
  const Clock::time_point now = Clock::now();
  const double interval = live_ ? options_.live_interval_s : options_.plain_interval_s;
  const bool last_step = progress.total_steps > 0 && progress.step >= progress.total_steps;
  const bool due = !last_ || std::chrono::duration<double>(now - *last_).count() >= interval || last_step ||
                   progress.val_loss.has_value();
  std::optional<double> val_loss = progress.val_loss;
  if (!val_loss && newest_ && newest_->label == progress.label) val_loss = newest_->val_loss;
  newest_ = progress;
  newest_->val_loss = val_loss;
  pending_ = !due;
  if (!due) return;
  last_ = now;
  if (live_) {
    draw(progress_line(*newest_, width() - 1));
  } else {
    message(progress_line(progress));
  }
}

void Console::status(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (!live_) return;
  const int room = width() - 1 - text_columns(text) - 2;
  constexpr int kLeastProgress = 24;  // below that the remark stands alone
  const bool both = newest_ && room >= kLeastProgress;
  draw(cut((both ? progress_line(*newest_, room) + "  " : "") + std::string(text), width() - 1));
}

void Console::info(std::string_view text) {
  const std::lock_guard lock(mutex_);
  message(text);
  write_log(text);
}

void Console::warn(std::string_view text) {
  info("warning: " + std::string(text));
}

void Console::finish() {
  const std::lock_guard lock(mutex_);
  if (live_ && newest_) {
    const std::string line = progress_line(*newest_, width() - 1);
    if (line != shown_) draw(line);
  } else if (pending_) {
    message(progress_line(*newest_));
  }
  pending_ = false;
  if (!shown_.empty()) {
    std::fputc('\n', options_.stream);
    std::fflush(options_.stream);
  }
  shown_.clear();
  newest_.reset();
  last_.reset();
}

}  // namespace octavo
