// Curves in characters: they fit the width, show where the losses lie, and tell runs apart.
#include <cmath>
#include <string>
#include <vector>

#include "catch.h"
#include "plot.h"

using namespace octavo;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

int columns(const std::string& text) {
  int n = 0;
  for (const char c : text) n += (c & 0xC0) != 0x80;
  return n;
}

/// A straight line from `first` to `last`.
Curve line(const std::string& name, double first, double last, int steps = 100) {
  Curve curve;
  curve.name = name;
  for (int i = 0; i < steps; ++i) {
    StepRecord record;
    record.step = i + 1;
    record.loss = steps > 1 ? first + (last - first) * i / (steps - 1) : first;
    curve.records.push_back(record);
  }
  return curve;
}

}  // namespace

TEST_CASE("terminal_plot: a falling curve goes from the upper left to the lower right") {
  const auto lines = lines_of(terminal_plot({line("run", 5, 1)}, 44, 13, false));
  // 10 rows, then axis, numbers, words, legend
  CHECK(lines[0].rfind("  |A", 0) == 0);
  CHECK(lines[2].rfind("4 +", 0) == 0);  // (5 - 4) / 4 of the way down
  CHECK(lines[9].back() == 'A');
  CHECK(lines[9].size() == 44);  // margin 1, space, axis, 41 columns, the last one included
  CHECK(lines[10].find_first_not_of(' ') == 2);
  CHECK_THAT(lines[11], ContainsSubstring("1") && ContainsSubstring("100"));
  CHECK(lines[13] == "  A run: training 1.3838");
  for (int row = 0; row + 1 < 10; ++row) {  // each row's letters start right of those of the row above
    const auto at = static_cast<std::size_t>(row);
    CHECK(lines[at].find('A') < lines[at + 1].find('A'));
  }
}

TEST_CASE("terminal_plot: every width holds, in both character sets") {
  Curve a = line("first", 12.5, 0.001), b = line("second", 11, 2);
  a.records[50].val_loss = 3;
  b.unigram_entropy = 3.47;
  for (const bool unicode : {false, true}) {
    for (const int width : {30, 41, 80, 200}) {
      const auto lines = lines_of(terminal_plot({a, b}, width, 20, unicode));
      CHECK(lines.size() == 20 + 3 + 1);  // plot, legend of two runs and one reference, end
      for (std::size_t i = 0; i < 20; ++i) {
        INFO(lines[i]);
        CHECK(columns(lines[i]) <= width);
      }
    }
    CHECK_NOTHROW(terminal_plot({a}, 0, 0, unicode));
  }
}

TEST_CASE("terminal_plot: letters tell runs and validation losses apart, dashes the reference") {
  Curve a = line("first", 5, 3), b = line("second", 4, 2);
  a.records[49].val_loss = 4.5;
  a.unigram_entropy = 3.47;
  const std::string text = terminal_plot({a, b}, 80, 24, true);
  const std::string plot = text.substr(0, text.find("  A first"));
  for (const char* mark : {"A", "B", "a", "- - -", "\xe2\xa0"}) CHECK_THAT(plot, ContainsSubstring(mark));
  CHECK_THAT(plot, !ContainsSubstring("b"));  // no validation there ("number of" words hold none)
  CHECK_THAT(text, ContainsSubstring("A first: training 3.1919, a validation 4.5000"));
  CHECK_THAT(text, ContainsSubstring("- unigram entropy 3.4700"));
}

TEST_CASE("terminal_plot: flat curves, single steps and losses that are not finite") {
  CHECK_THAT(terminal_plot({line("flat", 2, 2)}, 40, 12, false), ContainsSubstring("AAAA"));
  CHECK_THAT(terminal_plot({line("one", 2, 2, 1)}, 40, 12, false), ContainsSubstring("A"));
  Curve bad = line("bad", 5, 1);
  for (std::size_t i = 10; i < 60; ++i) bad.records[i].loss = std::nan("");
  CHECK_THAT(terminal_plot({bad}, 40, 12, true), ContainsSubstring("A bad: training 1.38"));
  for (StepRecord& record : bad.records) record.loss = -std::nan("");
  CHECK(terminal_plot({bad}, 40, 12, true) == "no finite loss to draw\n  A bad: training nan\n");
}
