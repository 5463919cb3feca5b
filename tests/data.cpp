// data.cpp - the command line of `octavo data`: arguments reach the work, and results go to standard output.
#include <filesystem>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "captured_output.h"
#include "catch.h"
#include "commands/commands.h"
#include "data/dataset_json.h"
#include "refusal.h"
#include "temp_dir.h"

using namespace octavo;

namespace {

/// Runs `octavo data ARGUMENTS` and returns what it wrote to standard output.
std::string run(const std::string& arguments) {
  CLI::App app;
  Action action;
  register_data(app, action);
  app.parse("data " + arguments);
  REQUIRE(action);
  int status = -1;
  const std::string output = testing::captured_output([&] { status = action(); });
  CHECK(status == 0);
  return output;
}

}  // namespace

TEST_CASE("octavo data: pack, synth and info from the command line") {
  const testing::TempDir dir;
  const std::string root = dir.path.string() + "/";
  dir.file("in/a.txt", "the first");
  dir.file("in/b.txt", "the second, a longer one");
  const std::string packed = run("pack " + root + "in/*.txt --out " + root +
                                 "packed --tokenizer bytes --val-fraction 0.3 --shard-tokens 9");
  CHECK_THAT(packed,
             ContainsSubstring("25 training tokens in 3 shards, 10 validation tokens in 2, vocabulary 257"));
  CHECK_THAT(packed, ContainsSubstring("\"train\": \"" + root + "packed/train_*.bin\""));
  const auto info = nlohmann::json::parse(run("info --json " + root + "packed"));
  CHECK(info["tokens"] == 35);
  CHECK(info["files"].size() == 5);
  CHECK_THAT(run("info --format u16 " + root + "in/b.txt"),
             ContainsSubstring("raw u16, 24 bytes, 12 tokens"));

  const std::string made = run("synth --out " + root +
                               "synth --tokens 4000 --val-tokens 100 --vocab 8 --order 2 "
                               "--entropy 1.5 --seed 9 --shard-tokens 2500");
  CHECK_THAT(made,
             ContainsSubstring("4000 training tokens in 2 shards, 100 validation tokens in 1, vocabulary 8"));
  CHECK_THAT(made, ContainsSubstring("entropy rate 1.4999999"));
  const auto description = read_dataset_json(root + "synth/dataset.json");
  CHECK(description->made_by["order"] == 2);
  CHECK(description->made_by["seed"] == 9);
}

TEST_CASE("octavo data: the command line is checked before anything is made") {
  const testing::TempDir dir;
  for (const char* const arguments :
       {"", "pack", "pack a.txt", "synth --out x", "info", "mix", "pack a --out b --speed 3"}) {
    CLI::App app;
    Action action;
    register_data(app, action);
    CHECK_THROWS_AS(app.parse(std::string("data ") + arguments), CLI::ParseError);
  }
  CHECK_THAT(testing::refusal([&] { run("info " + dir.path.string() + "/none"); }),
             ContainsSubstring("none does not exist; allowed"));
  CHECK(std::filesystem::is_empty(dir.path));
}
