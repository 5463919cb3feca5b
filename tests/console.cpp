// The progress line is a pure function of state and width; the console puts it where a person or a file can
// read it.
#include "console.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <string>

#include "catch.h"
#include "error.h"
#include "file_size_limit.h"
#include "files.h"
#include "temp_dir.h"

using namespace octavo;

namespace {

Progress progress(std::int64_t step) {
  Progress p;
  p.label = "bf16";
  p.step = step;
  p.total_steps = 2000;
  p.loss = 2.34567;
  p.lr = 6e-4;
  p.grad_norm = 1.25;
  p.tokens_per_s = 12345.4;
  p.eta_s = 185;
  return p;
}

/// A stream in memory.
class Memory {
 public:
  Memory() : stream(open_memstream(&buffer_, &size_)) {}
  ~Memory() {
    std::fclose(stream);
    std::free(buffer_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::string text() {
    std::fflush(stream);
    return {buffer_, size_};
  }

 private:
  char* buffer_ = nullptr;
  std::size_t size_ = 0;

 public:
  std::FILE* stream;
};

/// What a terminal of unlimited height shows after this output (only \r, \n and clear-to-end are used).
std::string screen(const std::string& output) {
  std::string shown, line;
  std::size_t column = 0;
  for (std::size_t i = 0; i < output.size(); ++i) {
    if (output[i] == '\r') {
      column = 0;
    } else if (output[i] == '\n') {
      shown += line + "\n";
      line.clear();
      column = 0;
    } else if (output.compare(i, 3, "\x1b[K") == 0) {
      line.resize(column);
      i += 2;
    } else {
      if (column < line.size()) {
        line[column] = output[i];
      } else {
        line += output[i];
      }
      ++column;
    }
  }
  return shown + line;
}

}  // namespace

TEST_CASE("console: durations, counts and bytes") {
  CHECK(format_duration(0) == "0.0 s");
  CHECK(format_duration(9.94) == "9.9 s");
  CHECK(format_duration(9.96) == "10 s");
  CHECK(format_duration(59.6) == "1 min 00 s");
  CHECK(format_duration(185) == "3 min 05 s");
  CHECK(format_duration(3600) == "1 h 00 min");
  CHECK(format_duration(2 * 3600 + 7 * 60 + 10) == "2 h 07 min");
  CHECK(format_duration(99 * 3600) == "4 d 03 h");
  CHECK(format_duration(std::nan("")) == "?");
  CHECK(format_duration(-1) == "?");
  CHECK(format_fixed(2.48769, 4) == "2.4877");
  CHECK(format_fixed(-std::nan(""), 4) == "nan");  // as x86 makes one of 0/0
  CHECK(format_fixed(-std::numeric_limits<double>::infinity(), 2) == "-inf");
  CHECK(format_count(0) == "0");
  CHECK(format_count(999) == "999");
  CHECK(format_count(1000) == "1,000");
  CHECK(format_count(1234567) == "1,234,567");
  CHECK(format_count(-1234) == "-1,234");
  CHECK(format_count(-123456) == "-123,456");
  CHECK(markdown_cell("a|b\nc||") == "a\\|b c\\|\\|");
  CHECK(text_columns("\xc3\xa9t\xc3\xa9") == 3);
  CHECK(format_bytes(512) == "512 B");
  CHECK(format_bytes(3.25 * 1024 * 1024) == "3.2 MiB");
  CHECK(format_bytes(1024.0 * 1024 * 1024 - 1) == "1.0 GiB");
}

TEST_CASE("console: the line drops fields in a fixed order as the width shrinks") {
  Progress p = progress(120);
  p.val_loss = 2.5;
  const std::string full =
      "[bf16]  step 120/2000  loss 2.3457  val 2.5000  lr 6.00e-04  norm 1.250  12,345 tok/s  ETA 3 min 05 s";
  CHECK(progress_line(p) == full);
  CHECK(progress_line(p, static_cast<int>(full.size())) == full);
  CHECK(progress_line(p, static_cast<int>(full.size()) - 1) ==
        "[bf16]  step 120/2000  loss 2.3457  val 2.5000  lr 6.00e-04  12,345 tok/s  ETA 3 min 05 s");
  CHECK(progress_line(p, 80) ==
        "[bf16]  step 120/2000  loss 2.3457  val 2.5000  12,345 tok/s  ETA 3 min 05 s");
  CHECK(progress_line(p, 70) == "step 120/2000  loss 2.3457  val 2.5000  12,345 tok/s  ETA 3 min 05 s");
  CHECK(progress_line(p, 60) == "step 120/2000  loss 2.3457  12,345 tok/s  ETA 3 min 05 s");
  CHECK(progress_line(p, 45) == "step 120/2000  loss 2.3457  ETA 3 min 05 s");
  CHECK(progress_line(p, 30) == "step 120/2000  loss 2.3457");
  CHECK(progress_line(p, 10) == "step 120/2");
  for (int width = 1; width < 120; ++width)
    CHECK(progress_line(p, width).size() <= static_cast<std::size_t>(width));
}

TEST_CASE("console: what is not known or not finite does not break the line") {
  Progress p;
  p.step = 7;
  p.loss = -std::nan("");
  p.tokens_per_s = std::numeric_limits<double>::infinity();
  CHECK(progress_line(p) == "step 7  loss nan  lr 0.00e+00  norm 0.000  ? tok/s");
  p.label = "\xc3\xa9t\xc3\xa9";  // two-byte characters are one column each, and never cut in half
  CHECK(progress_line(p, 60) == "[\xc3\xa9t\xc3\xa9]  step 7  loss nan  lr 0.00e+00  norm 0.000  ? tok/s");
}

TEST_CASE("console: plain lines where there is no terminal, and no control characters") {
  Memory memory;
  ConsoleOptions options;
  options.stream = memory.stream;
  options.plain_interval_s = 0;
  {
    Console console(options);
    CHECK_FALSE(console.live());
    console.progress(progress(1));
    console.status("evaluating 1/2");
    console.warn("something odd");
    console.progress(progress(2));
  }
  CHECK(memory.text() ==
        progress_line(progress(1)) + "\nwarning: something odd\n" + progress_line(progress(2)) + "\n");
}

TEST_CASE("console: plain lines come at most once in the interval; evaluations and the last one always") {
  Memory memory;
  ConsoleOptions options;
  options.stream = memory.stream;
  options.plain_interval_s = 1e6;
  Progress with_val = progress(4), last = progress(2000), stopped = progress(6);
  with_val.val_loss = 2.0;
  {
    Console console(options);
    for (int step = 1; step <= 3; ++step) console.progress(progress(step));
    console.progress(with_val);
    console.progress(progress(5));
    console.progress(last);
    console.finish();
    console.progress(progress(5));
    console.progress(stopped);  // shown when the run stops early
    console.finish();
  }
  CHECK(memory.text() == progress_line(progress(1)) + "\n" + progress_line(with_val) + "\n" +
                             progress_line(last) + "\n" + progress_line(progress(5)) + "\n" +
                             progress_line(stopped) + "\n");
}

TEST_CASE("console: a message stands above the live line, which goes on below it") {
  Memory memory;
  ConsoleOptions options;
  options.stream = memory.stream;
  options.live = true;
  options.width = 60;
  options.live_interval_s = 0;
  Progress with_val = progress(1);
  with_val.val_loss = 2.25;
  Progress second = progress(2);
  Progress second_shown = second;
  second_shown.val_loss = 2.25;  // the live line keeps the latest one
  second_shown.label = with_val.label = second.label = "";
  {
    Console console(options);
    console.progress(with_val);
    console.warn("disk nearly full");
    CHECK(screen(memory.text()) == "warning: disk nearly full\n" + progress_line(with_val, 59));
    console.progress(second);
    CHECK(screen(memory.text()) == "warning: disk nearly full\n" + progress_line(second_shown, 59));
    console.status("evaluating 3/8");
    const std::string shown = screen(memory.text());
    CHECK(shown.substr(shown.find('\n') + 1).size() <= 59);
    CHECK_THAT(shown, ContainsSubstring("  evaluating 3/8"));
  }
  CHECK(screen(memory.text()) == "warning: disk nearly full\n" + progress_line(second_shown, 59) + "\n");
}

TEST_CASE("console: train.log has every message with its time, line by line") {
  const testing::TempDir dir;
  Memory memory;
  ConsoleOptions options;
  options.stream = memory.stream;
  options.plain_interval_s = 1e6;
  for (const bool append : {false, true, true}) {
    Console console(options);
    console.open_log(dir.path / "train.log", append);
    console.progress(progress(1));
    console.progress(progress(2));  // not due on the stream, but logged
    console.info("two\nlines {}");
  }
  const std::string log = read_whole_file(dir.path / "train.log");
  const std::regex line("(\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d\\.\\d{3})  ([^\n]*)\n");
  std::string messages;
  for (std::sregex_iterator i(log.begin(), log.end(), line), end; i != end; ++i)
    messages += (*i)[2].str() + "\n";
  const std::string once =
      progress_line(progress(1)) + "\n" + progress_line(progress(2)) + "\ntwo\nlines {}\n";
  CHECK(messages == once + once + once);
  {
    Console console(options);
    console.open_log(dir.path / "train.log", false);
  }
  CHECK(read_whole_file(dir.path / "train.log").empty());
}

TEST_CASE("console: a log that cannot be opened fails the run, one that cannot grow is said once") {
  const testing::TempDir dir;
  dir.file("file", "");
  Memory memory;
  ConsoleOptions options;
  options.stream = memory.stream;
  Console console(options);
  CHECK_THROWS_AS(console.open_log(dir.path / "file" / "train.log", false), RunError);
  console.open_log(dir.path / "train.log", false);
  {
    const testing::FileSizeLimit limit(10);
    console.info("first");
    console.info("second");
  }
  console.close_log();
  const std::string said = memory.text();
  CHECK_THAT(said, ContainsSubstring("first\nwarning: cannot write " + (dir.path / "train.log").string()));
  CHECK_THAT(said, ContainsSubstring("second\n"));
  CHECK(said.find("warning") == said.rfind("warning"));
}
