// metrics.jsonl and metrics.csv: valid whatever the numbers, each step once, a torn line repaired, damage
// named.
#include "metrics.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "catch.h"
#include "error.h"
#include "file_size_limit.h"
#include "files.h"
#include "temp_dir.h"

using namespace octavo;
using Json = nlohmann::ordered_json;

namespace {

StepRecord record(std::int64_t step, double loss = 2.5) {
  StepRecord r;
  r.step = step;
  r.updates = step;
  r.tokens = step * 4096;
  r.loss = loss;
  r.lr = 6e-4 / 3;
  r.grad_norm = 0.1 * static_cast<double>(step);
  r.step_ms = 12.5;
  r.tokens_per_s = 1000.0 + static_cast<double>(step);
  r.tflops = 0.25;
  r.memory_gib = 1.5;
  return r;
}

std::vector<std::string> lines_of(const std::filesystem::path& file) {
  std::vector<std::string> lines(1);
  for (const char c : read_whole_file(file)) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  REQUIRE(lines.back().empty());  // every line ends
  lines.pop_back();
  return lines;
}

}  // namespace

TEST_CASE("metrics: a row holds the documented keys, in order, and reads back to the same bits") {
  const testing::TempDir dir;
  StepRecord full = record(3, 1.0 / 3.0);
  full.skipped = 1;
  full.val_loss = 0.1 + 0.2;
  full.mfu = 0.4;
  {
    MetricsLog log(dir.path, 0);
    log.append(record(1));
    log.append(full);
  }
  const auto lines = lines_of(dir.path / "metrics.jsonl");
  REQUIRE(lines.size() == 2);
  std::string keys;
  const Json row = Json::parse(lines[1]);
  for (const auto& [key, value] : row.items()) keys += key + " ";
  CHECK(keys ==
        "step updates skipped tokens loss val_loss lr grad_norm step_ms tokens_per_s tflops mfu memory_gib "
        "finite "
        "format_version ");
  CHECK_FALSE(Json::parse(lines[0]).contains("val_loss"));
  CHECK_FALSE(Json::parse(lines[0]).contains("mfu"));

  const auto read = read_metrics(dir.path / "metrics.jsonl");
  REQUIRE(read.size() == 2);
  CHECK(read[1].loss == 1.0 / 3.0);
  CHECK(read[1].val_loss == 0.1 + 0.2);
  CHECK(read[1].mfu == 0.4);
  CHECK(read[1].lr == 6e-4 / 3);
  CHECK(read[1].skipped == 1);
  CHECK(read[1].tokens == 3 * 4096);
  CHECK(read[1].finite);
  CHECK_FALSE(read[0].val_loss);
  CHECK_FALSE(read[0].mfu);
}

TEST_CASE("metrics: numbers that are not finite are null in JSON, empty in CSV, and said") {
  StepRecord bad = record(1, std::nan(""));
  bad.grad_norm = std::numeric_limits<double>::infinity();
  const Json row = Json::parse(metrics_json(bad));
  CHECK(row["loss"].is_null());
  CHECK(row["grad_norm"].is_null());
  CHECK(row["finite"] == false);
  CHECK(metrics_csv(bad) == "1,1,0,4096,,,0.00019999999999999998,,12.5,1001.0,0.25,,1.5,false,,,,,,,1");
  CHECK(metrics_csv_header() ==
        "step,updates,skipped,tokens,loss,val_loss,lr,grad_norm,step_ms,tokens_per_s,tflops,mfu,memory_gib,"
        "finite,fp8_scale_min,fp8_scale_max,fp8_amax_min,fp8_amax_max,fp8_saturated,fp8_underflowed,"
        "format_version");

  StepRecord bad_val = record(2);
  bad_val.val_loss = -std::numeric_limits<double>::infinity();
  CHECK(Json::parse(metrics_json(bad_val))["val_loss"].is_null());
  CHECK(Json::parse(metrics_json(bad_val))["finite"] == false);

  StepRecord skipped = record(3);  // finite numbers, but the update was skipped (a gradient overflowed)
  skipped.finite = false;
  CHECK(Json::parse(metrics_json(skipped))["finite"] == false);

  const testing::TempDir dir;
  {
    MetricsLog log(dir.path, 0);
    log.append(bad);
    log.append(bad_val);
  }
  const auto read = read_metrics(dir.path / "metrics.jsonl");
  REQUIRE(read.size() == 2);
  CHECK(std::isnan(read[0].loss));
  CHECK_FALSE(read[0].finite);
  REQUIRE(read[1].val_loss);
  CHECK(std::isnan(*read[1].val_loss));
}

TEST_CASE("metrics: on resume rows past the checkpoint vanish, from both files") {
  const testing::TempDir dir;
  {
    MetricsLog log(dir.path, 0);
    for (int step = 1; step <= 8; ++step) log.append(record(step, 100 + step));
  }
  const auto before = lines_of(dir.path / "metrics.jsonl");
  {
    MetricsLog log(dir.path, 5);
    for (int step = 6; step <= 7; ++step) log.append(record(step, 200 + step));
    log.sync();
  }
  const auto after = lines_of(dir.path / "metrics.jsonl");
  REQUIRE(after.size() == 7);
  for (std::size_t i = 0; i < 5; ++i) CHECK(after[i] == before[i]);
  CHECK(Json::parse(after[5])["loss"] == 206);
  const auto csv = lines_of(dir.path / "metrics.csv");
  REQUIRE(csv.size() == 8);
  CHECK(csv[0] == metrics_csv_header());
  CHECK(csv[5] == metrics_csv(record(5, 105)));
  CHECK(csv[7] == metrics_csv(record(7, 207)));

  { const MetricsLog afresh(dir.path, 0); }
  CHECK(read_metrics(dir.path / "metrics.jsonl").empty());
  CHECK(lines_of(dir.path / "metrics.csv").size() == 1);
}

TEST_CASE("metrics: what another version wrote into a row survives a resume") {
  const testing::TempDir dir;
  Json row = Json::parse(metrics_json(record(1)));
  row["later"] = {{"amax", 3.5}};
  dir.file("metrics.jsonl", row.dump() + "\n");
  { const MetricsLog log(dir.path, 1); }
  CHECK(lines_of(dir.path / "metrics.jsonl")[0] == row.dump());
}

TEST_CASE("metrics: an FP8 step's health is an object of its own, and reads back") {
  const testing::TempDir dir;
  StepRecord r = record(1);
  r.fp8 = Fp8Record{.scale_min = 0.5,
                    .scale_max = 448,
                    .amax_min = 1e-6,
                    .amax_max = 900,
                    .saturated = 0.25,
                    .underflowed = 0.125};
  const Json row = Json::parse(metrics_json(r));
  CHECK(row["fp8"]["scale_max"] == 448);
  CHECK(row["fp8"].size() == 6);
  CHECK(metrics_csv(r).ends_with(",true,0.5,448.0,1e-06,900.0,0.25,0.125,1"));
  const std::string file = dir.file("metrics.jsonl", row.dump() + "\n");
  const StepRecord read = read_metrics(file).at(0);
  REQUIRE(read.fp8.has_value());
  CHECK(read.fp8->underflowed == 0.125);
  CHECK(read.fp8->amax_min == 1e-6);
  r.fp8->amax_max = std::nan("");
  CHECK(Json::parse(metrics_json(r))["finite"] == false);
  Json bad = row;
  bad["fp8"].erase("saturated");
  dir.file("metrics.jsonl", bad.dump() + "\n");
  CHECK_THROWS_WITH(read_metrics(file), ContainsSubstring("line 1: key \"fp8.saturated\" is missing"));
}

TEST_CASE("metrics: the torn last line of a killed run is passed over and repaired") {
  const testing::TempDir dir;
  const std::string whole = metrics_json(record(1)) + "\n" + metrics_json(record(2)) + "\n";
  const std::string third = metrics_json(record(3));
  for (const std::size_t length : {std::size_t{1}, third.size() / 2, third.size() - 1}) {
    const std::string file = dir.file("metrics.jsonl", whole + third.substr(0, length));
    CHECK(read_metrics(file).size() == 2);
    {
      MetricsLog log(dir.path, 10);
      log.append(record(3, 9.0));
    }
    const auto read = read_metrics(file);
    REQUIRE(read.size() == 3);
    CHECK(read[2].loss == 9.0);
    CHECK(lines_of(file).size() == 3);
    CHECK(lines_of(dir.path / "metrics.csv").size() == 4);
  }
  // Only the line's end is missing: the row is whole.
  CHECK(read_metrics(dir.file("metrics.jsonl", whole + third)).size() == 3);
  CHECK(read_metrics(dir.file("metrics.jsonl", "")).empty());
}

TEST_CASE("metrics: damage is named by file, line and fault; a resume drops it and says so in one line") {
  const testing::TempDir dir;
  const auto refused = [&](const std::string& second, const std::string& fault) {
    const std::string content =
        metrics_json(record(1)) + "\n" + second + "\n" + metrics_json(record(3)) + "\n";
    const std::string file = dir.file("metrics.jsonl", content);
    CHECK_THROWS_AS(read_metrics(file), RequestError);
    CHECK_THROWS_WITH(read_metrics(file), ContainsSubstring(file + " line 2: ") && ContainsSubstring(fault));
    CHECK(read_whole_file(file) == content);
    const MetricsLog log(dir.path, 10);
    CHECK_THAT(log.warning(),
               ContainsSubstring(file + ": dropped 1 line that is no row, the first at line 2: " + fault));
    CHECK(log.warning().find('\n') == std::string::npos);
    CHECK(read_metrics(file).size() == 2);
    CHECK(lines_of(dir.path / "metrics.csv").size() == 3);
  };
  refused("{\"step\": 2, \"upd", R"(not valid JSON: "{\"step\": 2, \"upd")");
  refused("", "not valid JSON: \"\"");
  refused(std::string(3, '\0') + "\r\x1b[31m\xff", R"(not valid JSON: "\u0000\u0000\u0000\r\u001b[31m)");
  refused(std::string(9000, '[') + std::string(9000, ']'), "found array; allowed: one JSON object a line");
  refused("[2]", "found array; allowed: one JSON object a line");
  refused(metrics_json(record(1)), "step 1 follows step 1; allowed: steps that increase");
  Json row = Json::parse(metrics_json(record(2)));
  row["loss"] = "2.5";
  refused(row.dump(), "loss: found \"2.5\"; allowed: a number or null");
  row["loss"] = 2.5;
  row["step"] = 1.5;
  refused(row.dump(), "step: found 1.5; allowed: an integer");
  row["step"] = 2;
  row.erase("lr");
  refused(row.dump(), "key \"lr\" is missing");
  row["format_version"] = 2;
  refused(row.dump(), "format_version: found 2; allowed: 1");
  CHECK_THROWS_AS(read_metrics(dir.path / "none.jsonl"), RequestError);
}

TEST_CASE("metrics: a resume without its log says so, and goes on") {
  const testing::TempDir dir;
  {
    CHECK_THAT(MetricsLog(dir.path, 7).warning(),
               ContainsSubstring("metrics.jsonl: is missing; the log begins after step 7"));
  }
  {
    CHECK_THAT(MetricsLog(dir.path, 7).warning(),
               ContainsSubstring("metrics.jsonl: has no row; the log begins after step 7"));
  }
  { CHECK(MetricsLog(dir.path, 0).warning().empty()); }
  const std::string junk = dir.file("metrics.jsonl", "junk\nmore\n" + metrics_json(record(8)) + "\n");
  MetricsLog log(dir.path, 7);
  CHECK_THAT(log.warning(),
             ContainsSubstring(
                 junk + ": dropped 2 lines that are no rows, the first at line 1: not valid JSON: \"junk\""));
  log.append(record(8));
  CHECK(read_metrics(junk).size() == 1);
  std::filesystem::remove(junk);
  std::filesystem::create_directory(junk);
  CHECK_THROWS_AS(MetricsLog(dir.path, 7), RequestError);
}

TEST_CASE("metrics: a full disk is one error with the path, and leaves whole lines") {
  const testing::TempDir dir;
  MetricsLog log(dir.path, 0);
  log.append(record(1));
  const std::string before = read_whole_file(dir.path / "metrics.jsonl");
  {
    const testing::FileSizeLimit limit(before.size() + 20);  // room for a part of the second row
    CHECK_THROWS_WITH(log.append(record(2)),
                      ContainsSubstring("cannot write " + (dir.path / "metrics.jsonl").string() + ": "));
  }
  CHECK(read_whole_file(dir.path / "metrics.jsonl") == before);
  CHECK_NOTHROW(log.append(record(3)));  // once only; nothing more is written
  CHECK_NOTHROW(log.sync());
  CHECK(read_whole_file(dir.path / "metrics.jsonl") == before);
  CHECK_THROWS_AS(MetricsLog(dir.path / "none", 0), RunError);
}

TEST_CASE("metrics: summaries pass over what is not finite") {
  std::vector<StepRecord> records;
  CHECK(std::isnan(trailing_loss(records)));
  CHECK(std::isnan(median_tokens_per_s(records)));
  CHECK_FALSE(last_val_loss(records));
  for (int step = 1; step <= 10; ++step) records.push_back(record(step, step));
  records[9].loss = std::nan("");
  CHECK(trailing_loss(records, 3) == 8.0);        // 9, 8, 7
  CHECK(trailing_loss(records, 100) == 5.0);      // 1 .. 9
  CHECK(median_tokens_per_s(records) == 1008.0);  // of 1006 .. 1010
  records.resize(4);
  CHECK(median_tokens_per_s(records) == 1003.5);  // the first half of a short log is left out
  records[1].val_loss = 4.0;
  records[2].val_loss = 3.0;
  CHECK(last_val_loss(records) == 3.0);
}
