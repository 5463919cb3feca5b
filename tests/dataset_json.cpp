// dataset_json.cpp - written and read back, and every wrong key by its message.
#include "data/dataset_json.h"

#include "catch.h"
#include "files.h"
#include "refusal.h"
#include "temp_dir.h"
#include "wrong_types.h"

using namespace octavo;
using nlohmann::ordered_json;

namespace {

DatasetDescription example() {
  DatasetDescription d;
  d.tokenizer_kind = "bytes";
  d.tokenizer_hash = "abc";
  d.vocab = 257;
  d.eot = 256;
  d.documents = 5;
  d.train = {{"train_000000.bin", 10, "f00"}, {"train_000001.bin", 4, "f01"}};
  d.val = {{"val_000000.bin", 3, "f02"}};
  d.unigram_entropy = 3.25;
  d.made_by = {{"command", "test"}};
  return d;
}

}  // namespace

TEST_CASE("dataset.json: what is written is read") {
  const testing::TempDir dir;
  const std::string file = (dir.path / "dataset.json").string();
  write_dataset_json(example(), file);
  const auto d = read_dataset_json(file);
  REQUIRE(d);
  CHECK(d->tokenizer_kind == "bytes");
  CHECK(d->tokenizer_hash == "abc");
  CHECK(d->vocab == 257);
  CHECK(d->eot == 256);
  CHECK(d->documents == 5);
  CHECK_FALSE(d->entropy_rate);
  CHECK(d->unigram_entropy == 3.25);
  CHECK(d->made_by["command"] == "test");
  REQUIRE(d->find("train_000001.bin") != nullptr);
  CHECK(d->find("train_000001.bin")->tokens == 4);
  CHECK(d->find("val_000000.bin") == &d->val[0]);
  CHECK(d->find("none") == nullptr);
  CHECK(ordered_json::parse(read_whole_file(file))["train"]["tokens"] == 14);

  DatasetDescription ids = example();
  ids.tokenizer_kind = "none";
  ids.eot = -1;
  ids.entropy_rate = 1.0 / 3;
  write_dataset_json(ids, file);
  const auto again = read_dataset_json(file);
  CHECK(again->tokenizer_hash.empty());
  CHECK(again->eot == -1);
  CHECK(again->entropy_rate == 1.0 / 3);
}

TEST_CASE("dataset.json: absent, or somebody else's") {
  const testing::TempDir dir;
  CHECK_FALSE(read_dataset_json((dir.path / "dataset.json").string()));
  CHECK_FALSE(read_dataset_json(dir.file("dataset.json", R"({"labels": [1, 2]})")));
  CHECK_FALSE(read_dataset_json(dir.file("dataset.json", "[]")));
}

TEST_CASE("dataset.json: wrong keys are named with what is allowed") {
  const testing::TempDir dir;
  const std::string file = (dir.path / "dataset.json").string();
  write_dataset_json(example(), file);
  const ordered_json good = ordered_json::parse(read_whole_file(file));
  const auto refused = [&](const std::function<void(ordered_json&)>& change) {
    ordered_json bad = good;
    change(bad);
    dir.file("dataset.json", bad.dump());
    const std::string message = testing::refusal([&] { read_dataset_json(file); });
    return message.starts_with(file + ": ") ? message.substr(file.size() + 2) : "NO FILE NAMED: " + message;
  };
  CHECK(refused([](auto& j) { j["format_version"] = 2; }) ==
        "format_version is 2; allowed: an integer from 1 to 1");
  CHECK(refused([](auto& j) { j.erase("vocab"); }) == "vocab is missing; allowed: what octavo data writes");
  CHECK(refused([](auto& j) { j["vocab"] = 0; }) == "vocab is 0; allowed: an integer from 1 to 16777216");
  CHECK(refused([](auto& j) { j["eot"] = 257; }) == "eot is 257; allowed: an integer from 0 to 256");
  CHECK(refused([](auto& j) { j["tokenizer"]["kind"] = "words"; }) ==
        "tokenizer.kind is \"words\"; allowed: \"bytes\", \"bpe\", \"none\"");
  CHECK(refused([](auto& j) { j["entropy_rate"] = "low"; }) ==
        "entropy_rate is \"low\"; allowed: a number from 0 on, or null");
  CHECK(refused([](auto& j) { j["train"]["files"][1]["tokens"] = -4; }) ==
        "train.files[1].tokens is -4; allowed: an integer from 1 to 2147483647");
  CHECK(refused([](auto& j) { j["train"]["files"][1]["name"] = "a/b"; }) ==
        "train.files[1].name is \"a/b\"; allowed: a file's name");
  CHECK(refused([](auto& j) { j["tokenizer"]["sha256"] = "f\n"; }) ==
        "tokenizer.sha256 is \"f\\n\"; allowed: hexadecimal digits");
  CHECK(refused([](auto& j) { j["train"]["files"] = {1}; }) == "train.files[0] is 1; allowed: an object");
  CHECK(refused([](auto& j) { j["train"]["tokens"] = 15; }) ==
        "train.tokens is 15; allowed: 14, the sum over its files");
  CHECK(refused([](auto& j) { j["val"] = 3; }) == "val is 3; allowed: an object");
  dir.file("dataset.json", "{\"octavo\"");
  CHECK(testing::refusal([&] { read_dataset_json(file); }) ==
        file + " line 1, column 9: found end of input; allowed: ':'");
  dir.file("dataset.json", "{\"octavo\": 1, \"vocab\": 1,\n\"vocab\": 2}");
  CHECK(testing::refusal([&] { read_dataset_json(file); }) ==
        "vocab in " + file + " line 2: found a second time; allowed: each key once");
}

TEST_CASE("dataset.json: a wrong type anywhere is refused in one line, but in what is for the reader") {
  const testing::TempDir dir;
  const std::string file = (dir.path / "dataset.json").string();
  write_dataset_json(example(), file);
  ordered_json json = ordered_json::parse(read_whole_file(file));
  testing::for_each_wrong_type(json, [&](const std::string& place) {
    dir.file("dataset.json", json.dump());
    const std::string message = testing::refusal([&] { read_dataset_json(file); });
    INFO(place << ": " << message);
    if (message == "NOT REFUSED")
      CHECK((place.starts_with(".made_by") || place.starts_with(".octavo") || place.ends_with("= null") ||
             place.starts_with(" =") || place.ends_with("entropy = number") ||
             place.ends_with("entropy_rate = number")));
    else
      CHECK(message.starts_with(file + ": "));
  });
}
