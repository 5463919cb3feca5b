// The tables of a sweep: repeats folded, gaps paired by seed, speeds and what they buy, in every form, also
// where numbers are missing or not finite.
#include "comparison.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include "catch.h"
#include "console.h"
#include "environment.h"
#include "error.h"
#include "files.h"
#include "run_example.h"
#include "temp_dir.h"

using namespace octavo;
using octavo::testing::write_example_run;
namespace fs = std::filesystem;

namespace {

/// A run of 30 steps with a constant loss, its validation losses 0.5 above.
SweptRun constant_run(const testing::TempDir& dir, const std::string& name, std::int64_t seed, double loss,
                      double step_ms, double memory = 0.25) {
  const fs::path folder = dir.path / fmt::format("{}_{}", name, seed);
  RunInfo info;
  info.unigram_entropy = 3.47;
  write_example_run(
      folder, name, 30,
      [&](StepRecord& r) {
        r.loss = loss;
        if (r.val_loss) r.val_loss = loss + 0.5;
        r.step_ms = step_ms;
        // A slow start does not count; of the other 25 steps a quarter each is slower and faster by 10 %.
        r.tokens_per_s = (r.step <= 5 ? 0.001 : r.step <= 12 ? 0.9 : r.step <= 23 ? 1 : 1.1) * 1e6 / step_ms;
        r.memory_gib = memory;
      },
      info);
  return {name, name, folder, seed, 0.125, "", ""};
}

/// Three seeds each: bf16 0.1 % above fp32 on average and twice as fast, fp8 1 % above it.
std::vector<SweptRun> three_modes(const testing::TempDir& dir) {
  std::vector<SweptRun> runs;
  const double fp32[] = {2.0, 2.1, 2.2}, bf16[] = {0.002, 0.003, 0.001};
  for (int s = 0; s < 3; ++s) {
    runs.push_back(constant_run(dir, "fp32", s + 1, fp32[s], 100, 0.5));
    runs.push_back(constant_run(dir, "bf16", s + 1, fp32[s] + bf16[s], 50));
    runs.push_back(constant_run(dir, "fp8", s + 1, fp32[s] * 1.01, 40));
  }
  return runs;
}

/// A run whose loss falls by 0.1 a step from 4.
SweptRun falling_run(const testing::TempDir& dir, const std::string& name, double step_ms, int steps = 30) {
  write_example_run(dir.path / name, name, steps, [&](StepRecord& r) {
    r.loss = 4 - 0.1 * static_cast<double>(r.step);
    r.step_ms = step_ms;
  });
  return {name, "fp32", dir.path / name, 1, 0, "", ""};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("comparison: repeats are folded, and gaps are paired by seed") {
  const testing::TempDir dir;
  const Comparison c = compare_runs(three_modes(dir), {});
  REQUIRE(c.rows.size() == 3);
  CHECK(c.baseline == 0);
  const ComparisonRow &fp32 = c.rows[0], &bf16 = c.rows[1], &fp8 = c.rows[2];
  CHECK(fp32.runs.size() == 3);
  CHECK(fp32.train.loss.mean == Approx(2.1));
  CHECK(*fp32.train.noise == Approx(0.1));  // far more than the gap below, which it does not touch
  CHECK_FALSE(fp32.train.gap);
  CHECK(bf16.train.loss.mean == Approx(2.102));
  CHECK(bf16.train.gap->nats.mean == Approx(0.002));
  CHECK(*bf16.train.gap->nats.standard_error == Approx(0.001 / std::sqrt(3.0)));
  CHECK(bf16.train.gap->percent.mean == Approx((0.1 + 0.3 / 2.1 + 0.1 / 2.2) / 3));
  CHECK(bf16.val->loss.mean == Approx(2.602));
  CHECK(bf16.val->gap->nats.mean == Approx(0.002));
  CHECK(bf16.judgement->verdict == Verdict::inside);
  CHECK(fp8.train.gap->percent.mean == Approx(1));
  CHECK(fp8.judgement->verdict == Verdict::outside);
  CHECK(bf16.tokens_per_s.median == Approx(20000));
  CHECK(bf16.tokens_per_s.low == Approx(18000));
  CHECK(bf16.tokens_per_s.high == Approx(22000));
  CHECK(bf16.speedup == Approx(2));
  CHECK(fp8.speedup == Approx(2.5));
  CHECK(fp32.peak_memory_gib == 0.5);  // as logged: more than the last session took
  CHECK(c.equal_seconds == Approx(1.2));
  CHECK(c.target_loss == Approx(2.1 * 1.01));
  REQUIRE(c.curves.size() == 9);
  CHECK(c.curves[3].name == "fp32 #2");
  CHECK(c.curves[3].series == c.curves[0].series);
}

TEST_CASE("comparison: another baseline, and a target loss of one's own") {
  const testing::TempDir dir;
  const Comparison c =
      compare_runs(three_modes(dir), {.on_cpu = true, .baseline = "bf16", .target_loss = 2.05});
  CHECK(c.baseline == 1);
  CHECK(c.rows[0].train.gap->nats.mean == Approx(-0.002));
  CHECK(c.rows[0].speedup == Approx(0.5));
  CHECK(c.rows[0].judgement->verdict == Verdict::inside);
  CHECK_FALSE(c.rows[1].train.gap);
  CHECK(c.target_loss == 2.05);
  CHECK_FALSE(c.rows[0].seconds_to_target);  // two of its seeds are never there
  CHECK(c.rows[0].runs[0].seconds_to_target.has_value());
  CHECK_THAT(comparison_text(c), ContainsSubstring("not reached") && ContainsSubstring("less bf16's"));
}

TEST_CASE("comparison: the loss at equal time and the time to a loss follow the trailing mean") {
  const testing::TempDir dir;
  // 30 steps: the trailing mean covers 3, so after step i it is 4 - 0.1 (i - 1).
  const Comparison c = compare_runs({falling_run(dir, "slow", 200), falling_run(dir, "fast", 50)},
                                    {.on_cpu = false, .baseline = "", .target_loss = 2.55});
  CHECK(c.equal_seconds == Approx(1.5));  // 30 steps of 50 ms
  CHECK(c.rows[0].loss_at_equal_time.mean == Approx(4 - 0.1 * (7.5 - 1)));
  CHECK(c.rows[1].loss_at_equal_time.mean == Approx(4 - 0.1 * 29));
  CHECK(c.rows[0].seconds_to_target->mean == Approx(15.5 * 0.2));
  CHECK(c.rows[1].seconds_to_target->mean == Approx(15.5 * 0.05));
  CHECK(compare_runs({falling_run(dir, "only", 1)}, {}).target_loss == Approx(1.01 * 1.1));
}

TEST_CASE("comparison: a verdict is for runs of one length, and needs three seeds") {
  const testing::TempDir dir;
  const Comparison c = compare_runs(
      {falling_run(dir, "a", 50), falling_run(dir, "short", 50, 20), falling_run(dir, "b", 50)}, {});
  CHECK_FALSE(c.rows[1].judgement);
  CHECK(c.rows[2].judgement->verdict == Verdict::unresolved);
  const std::string text = comparison_text(c);
  CHECK_THAT(text, ContainsSubstring("short and a did not train on the same steps and tokens: no verdict"));
  CHECK_THAT(text, ContainsSubstring("b: not resolved with 1 seed; --repeats 3 adds the others\n"));
  std::vector<SweptRun> apart{falling_run(dir, "a", 50), falling_run(dir, "b", 50)};
  apart[1].seed = 2;
  CHECK_THAT(comparison_text(compare_runs(apart, {})), ContainsSubstring("b has no seed in common with a"));
}

TEST_CASE("comparison: the terminal's tables fit 110 columns, and say on a CPU what their speeds are worth") {
  const testing::TempDir dir;
  Comparison c = compare_runs(three_modes(dir), {});
  const std::string text = comparison_text(c);
  const std::string losses =
      R"(mode  seeds   train  validation         gap in train loss    gap in validation loss    inside
               loss        loss            in nats (in %)            in nats (in %)    0.25 %
---------------------------------------------------------------------------------------------
fp32      3  2.1000      2.6000     noise 0.1000 (4.76 %)     noise 0.1000 (3.85 %)  baseline
bf16      3  2.1020      2.6020  +0.0020 (+0.10 ± 0.03 %)  +0.0020 (+0.08 ± 0.02 %)    inside
fp8       3  2.1210      2.6210  +0.0210 (+1.00 ± 0.00 %)  +0.0210 (+0.81 ± 0.00 %)   outside
)";
  CHECK(text.substr(0, losses.size()) == losses);
  for (const char* part :
       {"mode  seeds    tokens/s      middle half    speed-up          loss at      time to   time for  peak "
        "memory\n",
        "(CPU: says     of the steps  (CPU: says            1.2 s  loss 2.1210  all steps        (GiB)\n",
        "unigram entropy 3.4700 nats per token\n",
        "±: standard error over seeds; noise: standard deviation from seed to seed\n"})
    CHECK_THAT(text, ContainsSubstring(part));
  for (const std::string& line : lines_of(text)) CHECK(text_columns(line) <= 110);
  c.on_cpu = false;
  CHECK_THAT(comparison_text(c), !ContainsSubstring("GPUs"));
}

TEST_CASE("comparison: Markdown, CSV and JSON hold every number") {
  const testing::TempDir dir;
  auto runs = three_modes(dir);
  for (SweptRun& run : runs)
    if (run.name == "fp8") run.name = "f|p,\"8\"";
  const Comparison c = compare_runs(runs, {});
  CHECK_THAT(comparison_markdown(c),
             ContainsSubstring("| bf16 | bf16 | 3 | 2.1020 | 2.6020 | +0.0020 (+0.10 ± 0.03 %) |") &&
                 ContainsSubstring("| f\\|p,\"8\" | fp8 | 3 |") &&
                 ContainsSubstring("| tokens/s (CPU: says nothing of GPUs) | middle half of the steps |"));
  const std::vector<std::string> csv = lines_of(comparison_csv(c));
  REQUIRE(csv.size() == 4);
  CHECK(csv[0].substr(0, 43) == "name,mode,status,repeats,baseline,train_los");
  CHECK(csv[3].substr(0, 36) == "\"f|p,\"\"8\"\"\",fp8,finished,3,false,2.1");
  CHECK(std::count(csv[0].begin(), csv[0].end(), ',') == std::count(csv[2].begin(), csv[2].end(), ','));
  write_comparison(c, dir.path);
  const nlohmann::ordered_json json = read_json_object(dir.path / "comparison.json");
  CHECK(json["baseline"] == "fp32");
  const auto& row = json["rows"][1];
  CHECK(row["train_gap_percent"].get<double>() == Approx((0.1 + 0.3 / 2.1 + 0.1 / 2.2) / 3));
  CHECK(row["verdict"] == "inside");
  CHECK(row["tokens_per_s_q1"].get<double>() == Approx(18000));
  CHECK(row["runs"][2]["seed"] == 3);
  CHECK(row["runs"][2]["val_loss"].get<double>() == Approx(2.701));
  CHECK(json["rows"][0]["train_noise"].get<double>() == Approx(0.1));
  CHECK(json["rows"][0]["train_gap"].is_null());
}

TEST_CASE("comparison: all four files are written; without gnuplot three and a message") {
  const testing::TempDir dir;
  const Comparison c = compare_runs(three_modes(dir), {});
  const testing::ScopedVariable path("PATH", dir.path.string());
  const PlotResult plot = write_comparison(c, dir.path);
  CHECK_FALSE(plot.drawn);
  CHECK_THAT(plot.message, ContainsSubstring("comparison.png: gnuplot is not installed"));
  CHECK(read_whole_file(dir.path / "comparison.md") == comparison_markdown(c));
  CHECK(read_whole_file(dir.path / "comparison.csv") == comparison_csv(c));
  CHECK(read_json_object(dir.path / "comparison.json")["references"]["unigram entropy"] == 3.47);
  const std::string script = read_whole_file(dir.path / "comparison.gp");
  CHECK_THAT(script, ContainsSubstring("set xlabel 'step'") && ContainsSubstring("layout 1,2") &&
                         ContainsSubstring("set xlabel 'training time, seconds'"));
  // Repeats have the colour of the first, which stands for them in the legend.
  CHECK_THAT(script, !ContainsSubstring("#2"));
  remove_comparison(dir.path);
  for (const char* ending : {"md", "csv", "json", "gp", "dat"})
    CHECK_FALSE(fs::exists(dir.path / (std::string("comparison.") + ending)));
}

TEST_CASE("comparison: runs without validation or with losses that are not finite keep their row") {
  const testing::TempDir dir;
  std::vector<SweptRun> runs;
  for (const char* name : {"a", "b", "c"}) {
    write_example_run(dir.path / name, name, 30, [&](StepRecord& r) {
      r.val_loss.reset();
      r.loss = name[0] == 'a' ? 2 : name[0] == 'b' ? std::nan("") : 2.5;
      if (name[0] == 'b') r.tokens_per_s = r.step_ms = std::nan("");
    });
    runs.push_back({name, "fp32", dir.path / name, 1, 1, "", ""});
  }
  const Comparison c = compare_runs(runs, {});
  CHECK_FALSE(c.rows[0].val);
  CHECK(c.rows[1].judgement->verdict == Verdict::outside);
  CHECK(c.rows[2].train.gap->nats.mean == Approx(0.5));
  CHECK_THAT(comparison_markdown(c),
             ContainsSubstring("| b | fp32 | not finite | - | not finite | - | outside |\n"
                               "| c | fp32 | 2.5000 | - | +0.5000 (+25.00 %) | - | not resolved |"));
  CHECK_THAT(comparison_text(c), !ContainsSubstring("nan"));
  write_comparison(c, dir.path);
  const nlohmann::ordered_json json = read_json_object(dir.path / "comparison.json");
  CHECK(json["rows"][1]["train_loss"].is_null());
  CHECK(json["rows"][1]["train_gap"].is_null());
  // Against a baseline that is not finite there is no gap.
  CHECK_FALSE(compare_runs(runs, {.on_cpu = true, .baseline = "b", .target_loss = {}}).rows[0].train.gap);
}

TEST_CASE("comparison: what failed or is unsupported is listed with its reason, and the rest is compared") {
  const testing::TempDir dir;
  auto runs = three_modes(dir);
  for (SweptRun& run : runs) {
    if (run.name == "fp32") run.failure = "step 3: \"x\" | y";
    if (run.name == "fp8") run.unsupported = "no FP8 here";
    if (run.name != "bf16") fs::remove_all(run.folder);
  }
  runs[7].failure = "disk full";  // the third seed of bf16
  Comparison c = compare_runs(runs, {});
  REQUIRE(c.rows.size() == 3);
  CHECK(c.rows[0].failures.size() == 3);
  CHECK(c.baseline == 1);
  CHECK(c.rows[1].runs.size() == 2);
  CHECK(c.rows[1].speedup == 1);
  CHECK(c.curves.size() == 2);
  const std::string text = comparison_text(c);
  for (const char* part :
       {"fp32      0       failed  ", "fp8       0  unsupported ", "\nfp8 unsupported: no FP8 here\n",
        "fp32 failed: step 3: ", "\nbf16 failed: disk full\n", "fp32 has no result: bf16 is the baseline\n"})
    CHECK_THAT(text, ContainsSubstring(part));
  CHECK_THAT(text, !ContainsSubstring("nan"));
  CHECK_THAT(comparison_csv(c),
             ContainsSubstring("\nfp8,fp8,unsupported,0,false,,,,") && ContainsSubstring(",no FP8 here,1\n"));
  write_comparison(c, dir.path);
  const nlohmann::ordered_json json = read_json_object(dir.path / "comparison.json");
  CHECK(json["rows"][0]["failures"][0] == "step 3: \"x\" | y");
  CHECK(json["rows"][0]["train_loss"].is_null());
  CHECK(json["rows"][2]["status"] == "unsupported");
  CHECK(json["rows"][2]["unsupported"] == "no FP8 here");

  for (auto& run : runs) run.failure = "no";
  c = compare_runs(runs, {});
  CHECK(write_comparison(c, dir.path).message == "no run finished");
  CHECK_THAT(comparison_text(c), ContainsSubstring("bf16      0       failed"));
}

TEST_CASE("comparison: a run without metrics is refused, and nothing is written") {
  const testing::TempDir dir;
  auto runs = three_modes(dir);
  fs::remove(runs[1].folder / "metrics.jsonl");
  CHECK_THROWS_AS(compare_runs(runs, {}), RequestError);
  CHECK_THROWS_WITH(compare_runs(runs, {}), ContainsSubstring("bf16_1: no metrics.jsonl there"));
}
