// The table of a sweep: means over repeats, gaps, speed-ups, in every form, also where numbers are missing or
// not finite.
#include "comparison.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "catch.h"
#include "environment.h"
#include "error.h"
#include "files.h"
#include "run_example.h"
#include "temp_dir.h"

using namespace octavo;
using octavo::testing::write_example_run;
namespace fs = std::filesystem;

namespace {

/// Three runs of constant losses and speeds: fp32 once, bf16 twice.
std::vector<SweptRun> example(const testing::TempDir& dir) {
  struct Case {
    const char *folder, *name;
    double loss, speed, memory;
  };
  std::vector<SweptRun> runs;
  for (const Case& c : {Case{"fp32", "fp32", 2.0, 1000, 1.0}, Case{"bf16", "bf16", 2.25, 2400, 0.5},
                        Case{"bf16-2", "bf16", 2.75, 2600, 0.75}}) {
    RunInfo info;
    info.unigram_entropy = 3.47;
    write_example_run(
        dir.path / c.folder, c.name, 30,
        [&](StepRecord& record) {
          if (record.val_loss) record.val_loss = c.loss + 0.5;
          record.loss = c.loss;
          record.memory_gib = c.loss == 2.75 ? 0.875 : 0.25;  // more than what the process that ended it took
          record.tokens_per_s = record.step <= 3 ? 1 : c.speed;  // a slow start does not count
        },
        info);
    runs.push_back({c.name, c.name, dir.path / c.folder, c.memory});
  }
  return runs;
}

}  // namespace

TEST_CASE("comparison: repeats are folded, gaps and speed-ups are against the first row") {
  const testing::TempDir dir;
  const Comparison comparison = compare_runs(example(dir), true);
  REQUIRE(comparison.rows.size() == 2);
  const ComparisonRow &first = comparison.rows[0], &second = comparison.rows[1];
  CHECK(first.repeats == 1);
  CHECK_FALSE(first.train_loss.standard_error);
  CHECK(first.gap == 0.0);
  CHECK(first.speedup == 1);
  CHECK(second.name == "bf16");
  CHECK(second.repeats == 2);
  CHECK(second.train_loss.mean == Approx(2.5));
  CHECK(*second.train_loss.standard_error == Approx(0.25));  // deviation 0.5/sqrt(2), over sqrt(2)
  CHECK(second.val_loss->mean == Approx(3.0));
  CHECK(*second.gap == Approx(0.5));
  CHECK(second.tokens_per_s.mean == Approx(2500));
  CHECK(*second.tokens_per_s.standard_error == Approx(100));
  CHECK(second.speedup == Approx(2.5));
  CHECK(second.peak_memory_gib == 0.875);
  REQUIRE(comparison.curves.size() == 3);
  CHECK(comparison.curves[2].name == "bf16 #2");
}

TEST_CASE("comparison: the text table is aligned, and says on a CPU what its speeds are worth") {
  const testing::TempDir dir;
  Comparison comparison = compare_runs(example(dir), true);
  CHECK(comparison_text(comparison) ==
        "mode   repeats        train loss          val loss       gap      tokens/s     speed-up   peak "
        "memory\n"
        "                                                                (CPU: says   (CPU: says         "
        "(GiB)\n"
        "                                                                nothing of   nothing of\n"
        "                                                                     GPUs)        GPUs)\n"
        "----------------------------------------------------------------------------------------------------"
        "-\n"
        "fp32         1            2.0000            2.5000         -         1,000       1.00 x          "
        "1.00\n"
        "bf16         2   2.5000 ± 0.2500   3.0000 ± 0.2500   +0.5000   2,500 ± 100       2.50 x          "
        "0.88\n"
        "unigram entropy 3.4700 nats per token\n"
        "losses in nats per token; train loss: mean of the last 20 logged steps; gap: loss less that of the "
        "first row; "
        "tokens/s: median over steps\n"
        "± is the standard error over repeats\n");
  comparison.on_cpu = false;
  CHECK_THAT(comparison_text(comparison), !ContainsSubstring("GPUs"));
}

TEST_CASE("comparison: Markdown and CSV") {
  const testing::TempDir dir;
  auto runs = example(dir);
  runs[1].name = runs[2].name = "b|f,\"16\"";
  const Comparison comparison = compare_runs(runs, true);
  CHECK_THAT(
      comparison_markdown(comparison),
      ContainsSubstring(
          "| run | mode | repeats | train loss | val loss | gap | tokens/s (CPU: says nothing of GPUs) "
          "| speed-up (CPU: says nothing of GPUs) | peak memory (GiB) |\n"
          "|---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
          "| fp32 | fp32 | 1 | 2.0000 | 2.5000 | - | 1,000 | 1.00 x | 1.00 |\n"
          "| b\\|f,\"16\" | bf16 | 2 |"));
  CHECK(comparison_csv(comparison) ==
        "name,mode,repeats,train_loss,train_loss_se,val_loss,val_loss_se,gap,tokens_per_s,tokens_per_s_se,"
        "speedup,"
        "speed_note,peak_memory_gib,failure,format_version\n"
        "fp32,fp32,1,2.0,,2.5,,0.0,1000.0,,1.0,CPU: says nothing of GPUs,1.0,,1\n"
        "\"b|f,\"\"16\"\"\",bf16,2,2.5,0.25,3.0,0.25,0.5,2500.0,100.0,2.5,CPU: says nothing of "
        "GPUs,0.875,,1\n");
}

TEST_CASE("comparison: all four files are written; without gnuplot three and a message") {
  const testing::TempDir dir;
  const Comparison comparison = compare_runs(example(dir), true);
  const testing::ScopedVariable path("PATH", dir.path.string());
  const PlotResult plot = write_comparison(comparison, dir.path);
  CHECK_FALSE(plot.drawn);
  CHECK_THAT(plot.message, ContainsSubstring("comparison.png: gnuplot is not installed"));
  CHECK(plot.picture == dir.path / "comparison.png");
  CHECK(read_whole_file(dir.path / "comparison.md") == comparison_markdown(comparison));
  CHECK(read_whole_file(dir.path / "comparison.csv") == comparison_csv(comparison));
  const nlohmann::ordered_json json = read_json_object(dir.path / "comparison.json");
  CHECK(json["speed_note"] == "CPU: says nothing of GPUs");
  CHECK(json["references"]["unigram entropy"] == 3.47);
  CHECK(json["rows"][1]["val_loss"]["standard_error"] == 0.25);
  CHECK(json["rows"][0]["val_loss"]["standard_error"].is_null());
  CHECK(json["rows"][1]["speedup"] == 2.5);
}

TEST_CASE("comparison: runs without validation or with losses that are not finite keep their row") {
  const testing::TempDir dir;
  write_example_run(dir.path / "a", "a", 30, [](StepRecord& record) {
    record.val_loss.reset();
    record.loss = 2;
  });
  write_example_run(dir.path / "b", "b", 30, [](StepRecord& record) {
    record.val_loss.reset();
    record.loss = record.tokens_per_s = std::nan("");
  });
  write_example_run(dir.path / "c", "c", 30, [](StepRecord& record) {
    record.val_loss.reset();
    record.loss = 2.5;
  });
  const Comparison comparison = compare_runs(
      {{"a", "fp32", dir.path / "a", 1}, {"b", "bf16", dir.path / "b", 1}, {"c", "bf16", dir.path / "c", 1}},
      true);
  CHECK_FALSE(comparison.rows[0].val_loss);
  CHECK(*comparison.rows[2].gap == Approx(0.5));  // of the training loss
  CHECK_THAT(comparison_markdown(comparison),
             ContainsSubstring("| b | bf16 | not finite | - | n/a | not finite | n/a | 1.00 |\n"
                               "| c | bf16 | 2.5000 | - | +0.5000 | 1,000 | 1.00 x | 1.00 |"));
  CHECK_THAT(comparison_csv(comparison), ContainsSubstring("\nb,bf16,1,,,,,,,,,"));
  write_comparison(comparison, dir.path);
  const nlohmann::ordered_json json = read_json_object(dir.path / "comparison.json");
  CHECK(json["rows"][1]["train_loss"]["mean"].is_null());
  CHECK(json["rows"][1]["gap"].is_null());
}

TEST_CASE("comparison: a run that failed is listed with its reason, the others are compared without it") {
  const testing::TempDir dir;
  auto runs = example(dir);
  runs[0].failure = "step 3: \"x\" | y";
  runs[2].failure = "disk full";  // the second repeat of bf16
  fs::remove_all(dir.path / "fp32");
  Comparison comparison = compare_runs(runs, false);
  REQUIRE(comparison.rows.size() == 2);
  CHECK(comparison.rows[0].repeats == 0);
  CHECK(comparison.rows[0].failures == std::vector<std::string>{"step 3: \"x\" | y"});
  CHECK(comparison.rows[1].repeats == 1);
  CHECK(*comparison.rows[1].gap == 0);
  CHECK(comparison.rows[1].speedup == 1);
  CHECK(comparison.curves.size() == 1);
  const std::string text = comparison_text(comparison);
  CHECK_THAT(text, ContainsSubstring("fp32         0       failed ") &&
                       ContainsSubstring("fp32 failed: step 3: ") &&
                       ContainsSubstring("\nbf16 failed: disk full\n"));
  CHECK_THAT(text, !ContainsSubstring("nan"));
  CHECK_THAT(comparison_markdown(comparison), ContainsSubstring("| fp32 | 0 | failed | - | - | - | - | - |"));
  CHECK_THAT(comparison_csv(comparison),
             ContainsSubstring("\nfp32,fp32,0,,,,,,,,,,,\"step 3: \"\"x\"\" | y\",1\n"));
  const std::string csv = comparison_csv(comparison);
  const std::string head = csv.substr(0, csv.find('\n'));
  CHECK(std::count(head.begin(), head.end(), ',') == 14);
  const PlotResult plot = write_comparison(comparison, dir.path);
  const nlohmann::ordered_json json = read_json_object(dir.path / "comparison.json");
  CHECK(json["rows"][0]["failures"][0] == "step 3: \"x\" | y");
  CHECK(json["rows"][0]["train_loss"].is_null());
  CHECK(json["rows"][1]["failures"][0] == "disk full");

  for (auto& run : runs) run.failure = "no";
  comparison = compare_runs(runs, true);
  CHECK(write_comparison(comparison, dir.path).message == "no run finished");
  CHECK_THAT(comparison_text(comparison), ContainsSubstring("bf16         0   "));
}

TEST_CASE("comparison: a run without metrics is refused, and nothing is written") {
  const testing::TempDir dir;
  auto runs = example(dir);
  fs::remove(dir.path / "bf16" / "metrics.jsonl");
  CHECK_THROWS_AS(compare_runs(runs, true), RequestError);
  CHECK_THROWS_WITH(compare_runs(runs, true), ContainsSubstring("bf16: no metrics.jsonl there"));
}
