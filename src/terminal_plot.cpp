// terminal_plot.cpp - curves of loss in characters, for a terminal without pictures. Declared in plot.h.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "console.h"
#include "error.h"
#include "plot.h"

namespace octavo {
namespace {

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

/// The step of round numbers (1, 2 or 5 times a power of ten) that divides a range into at most `most` parts.
double round_step(double range, int most) {
  const double least = range / std::max(most, 1);
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
}

/// A grid of characters, each with 2 x 4 dots below it. A letter hides the dots of its cell.
class Canvas {
 public:
  Canvas(int columns, int rows, bool unicode)
      : columns_(columns),
        rows_(rows),
        unicode_(unicode),
        dots_(static_cast<std::size_t>(columns * rows), 0),
        letters_(static_cast<std::size_t>(columns * rows), 0) {}

  int dot_columns() const { return columns_ * 2; }
  int dot_rows() const { return rows_ * 4; }

  /// Sets a dot, counted from the upper left; without Unicode its cell takes the letter.
  void dot(int x, int y, char letter) {
    if (x < 0 || y < 0 || x >= dot_columns() || y >= dot_rows()) return;
    // Dots of a Braille cell as Unicode numbers them: 1-3 and 7 on the left, 4-6 and 8 on the right.
    constexpr std::array<std::array<std::uint8_t, 2>, 4> kBits{
        {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
    const std::size_t at = cell(x / 2, y / 4);
    if (unicode_) {
      dots_[at] = static_cast<std::uint8_t>(
          dots_[at] | kBits[static_cast<std::size_t>(y % 4)][static_cast<std::size_t>(x % 2)]);
    } else if (letters_[at] == 0) {
      letters_[at] = letter;
    }
  }
  void line(int x0, int y0, int x1, int y1, char letter) {
    const int steps = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
    for (int i = 0; i <= steps; ++i) {
      dot(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps, letter);
    }
  }
  void letter(int x, int y, char letter) { letters_[cell(x / 2, y / 4)] = letter; }
  /// A dashed line through the empty cells of the row that holds dot row y.
  void reference(int y) {
    for (int column = 0; column < columns_; ++column) {
      const std::size_t at = cell(column, y / 4);
      if (dots_[at] == 0 && letters_[at] == 0 && column % 2 == 0) letters_[at] = '-';
    }
  }

  std::string row(int row) const {
    std::string text;
    for (int column = 0; column < columns_; ++column) {
      const std::size_t at = cell(column, row);
      if (letters_[at] != 0) {
        text += letters_[at];
      } else if (dots_[at] != 0) {
        // U+2800 + bits in UTF-8
        text += {static_cast<char>(0xE2), static_cast<char>(0xA0 | (dots_[at] >> 6)),
                 static_cast<char>(0x80 | (dots_[at] & 0x3F))};
      } else {
        text += ' ';
      }
    }
    return text.substr(0, text.find_last_not_of(' ') + 1);
  }

 private:
  std::size_t cell(int column, int row) const { return static_cast<std::size_t>(row * columns_ + column); }

  int columns_, rows_;
  bool unicode_;
  std::vector<std::uint8_t> dots_;
  std::vector<char> letters_;
};

char run_letter(std::size_t run) {
  return static_cast<char>('A' + run % 26);
}
char val_letter(std::size_t run) {
  return static_cast<char>('a' + run % 26);
}

std::string legend(const std::vector<Curve>& curves) {
  std::string text;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    text += fmt::format("  {} {}: training {}", run_letter(i), curves[i].name,
                        format_fixed(trailing_loss(curves[i].records), 4));
    if (const auto val = last_val_loss(curves[i].records)) {
      text += fmt::format(", {} validation {}", val_letter(i), format_fixed(*val, 4));
    }
    text += "\n";
  }
  for (const ReferenceLine& line : reference_lines(curves)) {
    text += fmt::format("  - {} {:.4f}\n", line.label, line.value);
  }
  return text;
}

}  // namespace

std::string terminal_plot(const std::vector<Curve>& curves, int width, int height, bool unicode) {
  Range steps, losses;
  std::vector<std::vector<double>> smooth;
  for (const Curve& curve : curves) {
    smooth.push_back(smoothed_loss(curve));
    for (std::size_t i = 0; i < curve.records.size(); ++i) {
      steps.include(static_cast<double>(curve.records[i].step));
      losses.include(smooth.back()[i]);
      if (curve.records[i].val_loss) losses.include(*curve.records[i].val_loss);
    }
  }
  if (losses.empty()) return "no finite loss to draw\n" + legend(curves);
  const std::vector<ReferenceLine> references = reference_lines(curves);
  for (const ReferenceLine& line : references) losses.include(line.value);
  if (losses.high - losses.low < 1e-9 * std::max(1.0, std::abs(losses.high)))
    losses = {losses.low - 0.5, losses.high + 0.5};
  if (steps.high == steps.low) steps.low -= 1;

  // Ticks of the loss decide how wide their labels are, and so how wide the canvas is.
  const int rows = std::max(height - 3, 4);  // below: axis, numbers, word
  const double tick = round_step(losses.high - losses.low, std::max(rows / 3, 2));
  const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(tick) - 1e-9)), 0, 9);
  const auto label = [&](double value) { return fmt::format("{:.{}f}", value, decimals); };
  const int margin = static_cast<int>(std::max(label(losses.low).size(), label(losses.high).size()));
  Canvas canvas(std::max(width - margin - 2, 10), rows, unicode);

  const auto x_of = [&](double step) {
    return static_cast<int>(
        std::lround((step - steps.low) / (steps.high - steps.low) * (canvas.dot_columns() - 1)));
  };
  const auto y_of = [&](double loss) {
    return static_cast<int>(
        std::lround((losses.high - loss) / (losses.high - losses.low) * (canvas.dot_rows() - 1)));
  };
  for (std::size_t run = 0; run < curves.size(); ++run) {
    int last_x = -1, last_y = -1;
    // Letters on the curve tell the runs apart; each run starts a little later, so that they do not hide each
    // other.
    const int letter_every = std::max(canvas.dot_columns() / 5, 8);
    int next_letter = static_cast<int>(run) * 4;
    for (std::size_t i = 0; i < smooth[run].size(); ++i) {
      if (!std::isfinite(smooth[run][i])) continue;
      const int x = x_of(static_cast<double>(curves[run].records[i].step)), y = y_of(smooth[run][i]);
      if (last_x < 0) {
        canvas.dot(x, y, run_letter(run));
      } else {
        canvas.line(last_x, last_y, x, y, run_letter(run));
      }
      if (curves.size() > 1 && x >= next_letter) {
        canvas.letter(x, y, run_letter(run));
        next_letter = x + letter_every;
      }
      last_x = x;
      last_y = y;
    }
  }
  for (std::size_t run = 0; run < curves.size(); ++run) {
    for (const StepRecord& record : curves[run].records) {
      if (!record.val_loss || !std::isfinite(*record.val_loss)) continue;
      canvas.letter(x_of(static_cast<double>(record.step)), y_of(*record.val_loss), val_letter(run));
    }
  }
  for (const ReferenceLine& line : references) canvas.reference(y_of(line.value));

  std::vector<std::string> labels(static_cast<std::size_t>(rows));
  for (double value = std::ceil(losses.low / tick) * tick; value <= losses.high + 1e-9 * tick;
       value += tick) {
    labels[static_cast<std::size_t>(std::min(y_of(value) / 4, rows - 1))] = label(value);
  }
  std::string text;
  for (int row = 0; row < rows; ++row) {
    const std::string& mark = labels[static_cast<std::size_t>(row)];
    const char* axis = mark.empty() ? (unicode ? "│" : "|") : (unicode ? "┤" : "+");
    text += fmt::format("{:>{}} {}{}\n", mark, margin, axis, canvas.row(row));
  }
  const int columns = canvas.dot_columns() / 2;
  text += std::string(static_cast<std::size_t>(margin) + 1, ' ') + (unicode ? "└" : "+");
  for (int column = 0; column < columns; ++column) text += unicode ? "─" : "-";
  const std::string first = fmt::format("{:.0f}", steps.low), last = fmt::format("{:.0f}", steps.high);
  const std::string words = "step (across), loss in nats per token (up)";
  text += fmt::format("\n{:{}}{}{:>{}}\n", "", margin + 2, first, last,
                      std::max(columns - static_cast<int>(first.size()), static_cast<int>(last.size()) + 1));
  text += fmt::format("{:{}}{}\n", "", margin + 2, words.substr(0, static_cast<std::size_t>(columns)));
  return text + legend(curves);
}

}  // namespace octavo
