// `octavo generate` as a process: what it writes, and what it cannot write with.
#include "catch.h"
#include "small_run.h"

using namespace octavo;
using namespace octavo::testing;

TEST_CASE("generate: the prompt, so many tokens, and a line end") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 3;
  s.train(config, "run");
  const auto text = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"generate", "run", "--ignore-eot"});
    const ProgramResult r = run_program(s.dir.path, arguments);
    INFO(r.err);
    CHECK(r.status == 0);
    return r.out;
  };
  CHECK(text({"--prompt", "niño ", "--tokens", "0"}) == "niño \n");
  CHECK(text({"--tokens", "0"}) == "\n");
  const std::string greedy = text({"--prompt", "the ", "--tokens", "60", "--temperature", "0"});
  CHECK(greedy == text({"--prompt", "the ", "--tokens", "60", "--top-k", "1", "--seed", "9"}));
  CHECK(greedy.substr(0, 25) ==
        text({"--prompt", "the ", "--tokens", "21", "--temperature", "0"}).substr(0, 25));
  CHECK(greedy.size() <= 4 + 60 + 1);
}

TEST_CASE("generate: a model without its tokenizer is refused with the way out") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 3;
  s.train(config, "run");
  REQUIRE(run_program(s.dir.path, {"export", "run", "model"}).status == 0);
  std::filesystem::remove(s.dir.path / "model" / "tokenizer.json");
  const ProgramResult r = run_program(s.dir.path, {"generate", "model", "--tokens", "3"});
  CHECK(r.status == 2);
  CHECK_THAT(r.err, ContainsSubstring("octavo: model: found no tokenizer.json beside the model; allowed: "
                                      "--tokenizer with \"bytes\" or a tokenizer.json"));
  CHECK(r.out.empty());
  CHECK(run_program(s.dir.path, {"generate", "model", "--tokens", "3", "--tokenizer", "bytes"}).status == 0);
}
