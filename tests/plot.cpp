// Curves as a picture: the script that is left behind, gnuplot present, absent and failing; and `octavo
// plot`.
#include "plot.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "captured_output.h"
#include "catch.h"
#include "commands/commands.h"
#include "environment.h"
#include "error.h"
#include "files.h"
#include "run_example.h"
#include "temp_dir.h"

using namespace octavo;
using octavo::testing::ScopedVariable;
using octavo::testing::write_example_run;
namespace fs = std::filesystem;

namespace {

bool gnuplot_is_there() {
  return std::system("gnuplot --version > /dev/null 2>&1") == 0;
}

/// Runs `octavo plot ...`; the exit status, or the error as it is thrown.
int plot_command(std::vector<std::string> arguments) {
  CLI::App app;
  std::function<int()> action;
  register_plot(app, action);
  arguments.insert(arguments.begin(), "plot");
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  app.parse(arguments);
  return action();
}

Curve example(const std::string& name) {
  Curve curve;
  curve.name = name;
  for (int step = 1; step <= 50; ++step) {
    StepRecord record;
    record.step = step;
    record.loss = 5.0 / step;
    if (step % 25 == 0) record.val_loss = 6.0 / step;
    curve.records.push_back(record);
  }
  return curve;
}

}  // namespace

TEST_CASE("plot: smoothing is a mean of the past that passes over what is not finite") {
  const double nan = std::nan("");
  for (const double value : smoothed({3, 3, 3}, 10)) CHECK(value == Approx(3));
  CHECK(smoothed({1, 5, 2}, 1) == std::vector<double>{1, 5, 2});  // a span of one row smooths nothing
  const auto some = smoothed({nan, 2, nan, 5}, 3);                // weights of span 3: 1/2, bias corrected
  CHECK(std::isnan(some[0]));
  CHECK(some[1] == Approx(2));
  CHECK(some[2] == Approx(2));
  CHECK(some[3] == Approx((0.25 * 2 + 0.5 * 5) / 0.75));
}

TEST_CASE("plot: reference values stand once") {
  Curve a = example("a"), b = example("b");
  a.unigram_entropy = b.unigram_entropy = 3.5;
  b.known_entropy = 1.25;
  a.known_entropy = std::nan("");
  const auto lines = reference_lines({a, b});
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].label == "unigram entropy");
  CHECK(lines[1].value == 1.25);
}

TEST_CASE("plot: script and data hold every curve, whatever the names and numbers") {
  const testing::TempDir dir;
  const ScopedVariable no_gnuplot("PATH", dir.path.string());
  Curve a = example("it's\n_a_"), b = example("b");
  a.unigram_entropy = 3.5;
  a.records[3].loss = std::nan("");
  for (StepRecord& record : b.records) record.val_loss.reset();
  plot_curves({a, b}, dir.path / "curves.png");
  const std::string script = read_whole_file(dir.path / "curves.gp");
  CHECK_THAT(script, ContainsSubstring("title 'it''s_a_ training, smoothed'"));
  CHECK_THAT(script, ContainsSubstring("title 'it''s_a_ validation'"));
  CHECK_THAT(script,
             ContainsSubstring("index 2 using 1:3") && ContainsSubstring("title 'b training, smoothed'"));
  CHECK_THAT(script, !ContainsSubstring("b validation"));
  CHECK_THAT(script, ContainsSubstring("  3.5 with lines") && ContainsSubstring("'unigram entropy 3.500'"));
  CHECK_THAT(script, !ContainsSubstring("logscale"));
  CHECK_THAT(script, !ContainsSubstring(dir.path.string()));  // it can be moved with its data
  const std::string data = read_whole_file(dir.path / "curves.dat");
  CHECK_THAT(data, ContainsSubstring("\n4 NaN ") && ContainsSubstring("\n5 1 ") &&
                       ContainsSubstring("\n25 0.24 0\n"));
}

TEST_CASE("plot: without gnuplot the script stays, and the message says what to do") {
  const testing::TempDir dir;
  const ScopedVariable path("PATH", dir.path.string());
  const PlotResult result = plot_curves({example("a")}, dir.path / "curves.png");
  CHECK_FALSE(result.drawn);
  CHECK(result.message ==
        "no picture " + (dir.path / "curves.png").string() +
            ": gnuplot is not installed (Debian, Ubuntu: apt-get install gnuplot-nox); to draw it later: "
            "cd " +
            dir.path.string() + " && gnuplot curves.gp");
  CHECK(fs::exists(result.script));
  CHECK_FALSE(fs::exists(result.picture));
}

TEST_CASE("plot: a gnuplot that fails is quoted, and the former picture stays") {
  const testing::TempDir dir;
  const std::string fake = dir.file(
      "bin/gnuplot",
      "#!/bin/sh\necho half > .curves.png.tmp$PPID\necho '   ^' >&2\necho 'line 3: no font' >&2\nexit 3\n");
  fs::permissions(fake, fs::perms::owner_all);
  const ScopedVariable path("PATH", (dir.path / "bin").string());
  const std::string picture = dir.file("curves.png", "former");
  const PlotResult result = plot_curves({example("a")}, picture);
  CHECK_FALSE(result.drawn);
  CHECK_THAT(result.message, ContainsSubstring("gnuplot failed: line 3: no font; to draw it later"));
  CHECK(read_whole_file(picture) == "former");
  for (const auto& entry : fs::directory_iterator(dir.path)) {
    CHECK_THAT(entry.path().filename().string(), !ContainsSubstring(".tmp"));
  }
}

TEST_CASE("plot: gnuplot draws a PNG, also from the script that is left behind") {
  if (!gnuplot_is_there()) {
    WARN("gnuplot is not installed: drawing is not tested");
    return;
  }
  const testing::TempDir dir;
  Curve a = example("it's a"), nothing = example("nothing finite");
  a.known_entropy = 0.5;
  for (StepRecord& record : nothing.records) record.loss = std::nan(""), record.val_loss.reset();
  const PlotResult result = plot_curves({a, nothing, example("c")}, dir.path / "two words.png");
  INFO(result.message);
  REQUIRE(result.drawn);
  const std::string png = read_whole_file(result.picture);
  CHECK(png.substr(1, 3) == "PNG");
  CHECK(png.size() > 5000);
  fs::remove(result.picture);
  REQUIRE(std::system(("cd '" + dir.path.string() + "' && gnuplot 'two words.gp' 2> /dev/null").c_str()) ==
          0);
  CHECK(read_whole_file(result.picture).substr(1, 3) == "PNG");
}

TEST_CASE("plot: a curve takes name and reference lines from run.json, else the folder's name") {
  const testing::TempDir dir;
  RunInfo info;
  info.known_entropy = 1.5;
  write_example_run(dir.path / "run", "named", 12, {}, info);
  CHECK(load_curve(dir.path / "run").name == "named");
  CHECK(load_curve(dir.path / "run").known_entropy == 1.5);
  CHECK_FALSE(load_curve(dir.path / "run").unigram_entropy);
  fs::remove(dir.path / "run" / "run.json");
  CHECK(load_curve(dir.path / "run").name == "run");
  CHECK(load_curve(dir.path / "run" / "").name == "run");
  dir.file("run/run.json", "{damaged");
  CHECK_THROWS_WITH(load_curve(dir.path / "run"), ContainsSubstring("run.json: not valid JSON"));
  dir.file("empty/metrics.jsonl", "");
  CHECK_THROWS_WITH(load_curve(dir.path / "empty"), ContainsSubstring("no step in it yet"));
  CHECK_THROWS_WITH(load_curve(dir.path), ContainsSubstring(dir.path.string() + ": no metrics.jsonl there"));
}

TEST_CASE("plot: the command prints where the picture is") {
  if (!gnuplot_is_there()) {
    WARN("gnuplot is not installed: drawing is not tested");
    return;
  }
  const testing::TempDir dir;
  write_example_run(dir.path / "a", "a", 12);
  const std::string picture = (dir.path / "a" / "curves.png").string();
  CHECK(testing::captured_output([&] { CHECK(plot_command({(dir.path / "a").string()}) == 0); }) ==
        picture + "\n");
  CHECK(fs::exists(picture));
}

TEST_CASE("plot: the command refuses what is no run, and fails where it cannot draw") {
  const testing::TempDir dir;
  write_example_run(dir.path / "sweep" / "a", "same", 12);
  write_example_run(dir.path / "sweep" / "b", "same", 12);
  const std::string a = (dir.path / "sweep" / "a").string();
  CHECK_THROWS_WITH(plot_command({(dir.path / "none").string()}), ContainsSubstring("no such folder"));
  CHECK_THROWS_WITH(plot_command({dir.file("f", "")}),
                    ContainsSubstring("/f: found a file; allowed: the folder of a run or of a sweep"));
  CHECK_THROWS_WITH(plot_command({dir.path.string()}), ContainsSubstring("no metrics.jsonl there"));
  CHECK_THROWS_WITH(plot_command({a, "--out", "x.svg"}),
                    ContainsSubstring("--out: found x.svg; allowed: a file whose"));
  CHECK_THROWS_WITH(plot_command({a, "--out", (dir.path / "none/x.png").string()}),
                    ContainsSubstring("--out: no folder"));
  CHECK_THROWS_AS(plot_command({}), CLI::ParseError);

  const std::string drawn = testing::captured_output([&] { CHECK(plot_command({a, "--terminal"}) == 0); });
  CHECK_THAT(drawn, ContainsSubstring("  A same: training "));
  CHECK_FALSE(fs::exists(dir.path / "sweep" / "a" / "curves.gp"));

  const ScopedVariable path("PATH", dir.path.string());
  CHECK_THROWS_AS(plot_command({a}), RunError);
  CHECK(fs::exists(dir.path / "sweep" / "a" / "curves.gp"));
  // A sweep's folder stands for its runs; equal names give way to the folders.
  CHECK_THROWS_AS(plot_command({(dir.path / "sweep").string(), "--out", (dir.path / "x.png").string()}),
                  RunError);
  const std::string script = read_whole_file(dir.path / "x.gp");
  CHECK_THAT(script, ContainsSubstring("sweep/a training") && ContainsSubstring("sweep/b training"));
}
