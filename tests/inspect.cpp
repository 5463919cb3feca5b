// inspect.cpp - `octavo data info` counts rightly and finds what a dataset.json says wrongly.
#include "data/inspect.h"

#include <cmath>
#include <filesystem>

#include "catch.h"
#include "data/pack.h"
#include "data/synth.h"
#include "files.h"
#include "refusal.h"
#include "sha256.h"
#include "shard_bytes.h"
#include "temp_dir.h"

using namespace octavo;
using nlohmann::ordered_json;
using testing::refusal;

namespace {
void quiet(const std::string&) {}
}  // namespace

TEST_CASE("data info: files are counted wholly") {
  const testing::TempDir dir;
  const std::string shard = dir.file("a.bin", testing::shard16({0, 0, 9, 4}));
  const std::string text = dir.file("b.txt", "aab");
  const DataReport report = inspect_data({shard, text}, "auto");
  REQUIRE(report.files.size() == 2);
  const FileReport& a = report.files[0];
  CHECK(a.format == "16-bit shard");
  CHECK(a.tokens == 4);
  CHECK(a.bytes == 1032);
  CHECK(a.largest_id == 9);
  CHECK(a.distinct_ids == 3);
  CHECK(a.entropy == Approx(1.5 * std::log(2.0)));
  CHECK_FALSE(a.documents);
  CHECK(a.sha256 == sha256_hex(testing::shard16({0, 0, 9, 4})));
  CHECK_FALSE(a.split);
  CHECK(report.files[1].documents == 1);
  CHECK(report.tokens == 8);
  CHECK(report.largest_id == 256);
  CHECK_FALSE(report.dataset);
  const ordered_json json = to_json(report);
  CHECK(json["files"][0]["documents"].is_null());
  CHECK(json["files"][0]["largest_id"] == 9);
  CHECK_THAT(to_text(report),
             ContainsSubstring("4 tokens, 3 different ids up to 9, entropy 1.0397 nats/token"));
}

TEST_CASE("data info: a packed folder agrees with its description") {
  const testing::TempDir dir;
  const std::string out = (dir.path / "out").string();
  const auto made =
      pack_text({{dir.file("a", "first"), dir.file("b", "the second")}, out, "bytes", 4, 0.4}, quiet);
  const DataReport report = inspect_data({out}, "auto");
  CHECK(report.files.size() == made.train.size() + made.val.size());
  CHECK(report.files.front().split == "train");
  CHECK(report.files.back().split == "val");
  REQUIRE(report.dataset);
  CHECK((*report.dataset)["vocab"] == 257);
  CHECK_THAT(to_text(report), ContainsSubstring("dataset: tokenizer bytes"));

  SynthOptions synth;
  synth.out = (dir.path / "synth").string();
  synth.tokens = 3000;
  synthesise(synth, quiet);
  CHECK_THAT(to_text(inspect_data({synth.out}, "auto")),
             ContainsSubstring("entropy rate 2.079442 nats/token"));
  CHECK(inspect_data({out + "/train_*.bin", synth.out}, "auto").files.size() == made.train.size() + 2);
}

TEST_CASE("data info: what does not agree with dataset.json is refused") {
  const testing::TempDir dir;
  const std::string out = (dir.path / "out").string();
  pack_text({{dir.file("a", "first"), dir.file("b", "the second")}, out, "bytes", 100, 0}, quiet);
  const std::string shard = out + "/train_000000.bin", description = out + "/dataset.json";
  const std::string good_shard = read_whole_file(shard);
  const ordered_json good = ordered_json::parse(read_whole_file(description));
  const auto refused = [&](const std::function<void(std::string&, ordered_json&)>& change) {
    std::string bytes = good_shard;
    ordered_json json = good;
    change(bytes, json);
    dir.file("out/train_000000.bin", bytes);
    dir.file("out/dataset.json", json.dump());
    return refusal([&] { inspect_data({out}, "auto"); });
  };
  CHECK_THAT(refused([](auto& bytes, auto&) { bytes[1030] ^= 1; }),
             ContainsSubstring("as " + description + " says (the file has changed)"));
  CHECK_THAT(refused([](auto& bytes, auto&) { bytes[1031] = 2; }),
             ContainsSubstring(shard + ": token 626 at position 3; allowed: ids below the vocabulary's 257"));
  CHECK_THAT(refused([](auto& bytes, auto&) { bytes.pop_back(); }),
             ContainsSubstring("is the file truncated?"));
  CHECK_THAT(refused([](auto&, auto& json) {
               json["train"]["files"][0]["tokens"] = 4;
               json["train"]["tokens"] = 4;
             }),
             ContainsSubstring(shard + ": 17 tokens; allowed: 4, as"));
  CHECK(refused([](auto&, auto& json) { json["documents"] = 3; }) ==
        description + ": documents 3; allowed: 2, the end-of-text tokens in its shards");
  CHECK_THAT(refused([](auto&, auto& json) { json["unigram_entropy"] = 1.5; }),
             ContainsSubstring("unigram_entropy 1.5; allowed: "));
  CHECK_THAT(refused([](auto&, auto& json) { json["train"]["files"][0]["name"] = "other.bin"; }),
             ContainsSubstring("data info: " + out + "/other.bin does not exist"));
  CHECK(refused([](auto&, auto&) {}) == "NOT REFUSED");

  dir.file("out/stray.bin", testing::shard16({1}));
  CHECK_THAT(refusal([&] { inspect_data({out + "/*.bin"}, "auto"); }),
             ContainsSubstring("stray.bin: not named in " + description + "; allowed: one of its 1 shards"));
  CHECK_THAT(refusal([&] { inspect_data({dir.path.string()}, "auto"); }),
             ContainsSubstring("is a folder without a dataset.json; allowed"));
}
