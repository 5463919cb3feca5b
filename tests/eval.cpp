// `octavo eval` as a process: which data, how much of it, and what it cannot judge.
#include <cmath>

#include "catch.h"
#include "small_run.h"

using namespace octavo;
using namespace octavo::testing;

TEST_CASE("eval: the run's validation data, or other data, up to so many tokens") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 3;
  s.train(config, "run");
  const auto json = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"eval", "run", "--json"});
    const ProgramResult r = run_program(s.dir.path, arguments);
    INFO(r.err);
    REQUIRE(r.status == 0);
    return nlohmann::json::parse(r.out);
  };
  const nlohmann::json own = json({});
  CHECK(own["tokens"] == 3999);  // a tenth of the text, the first of them never predicted
  CHECK(own["mode"] == "fp32");
  CHECK(own["perplexity"].get<double>() == Approx(std::exp(own["loss"].get<double>())));
  CHECK(json({"--batch", "7"})["loss"].get<double>() == Approx(own["loss"].get<double>()).epsilon(1e-6));
  CHECK(json({"--data", s.text, "--tokens", "300"})["tokens"] == 300);
  CHECK(json({"--set", "precision.mode=bf16", "--tokens", "300"})["mode"] == "bf16");

  const ProgramResult text = run_program(s.dir.path, {"eval", "run", "--tokens", "300"});
  CHECK_THAT(text.out, ContainsSubstring("precision   fp32\ntokens      300\nloss        ") &&
                           ContainsSubstring(" nats per token\nperplexity  "));
}

TEST_CASE("eval: a model without a run needs data, and data must exist") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 3;
  s.train(config, "run");
  REQUIRE(run_program(s.dir.path, {"export", "run", "model"}).status == 0);
  const ProgramResult bare = run_program(s.dir.path, {"eval", "model"});
  CHECK(bare.status == 2);
  CHECK(bare.err ==
        "octavo: model: found a model without a run's config; allowed: --data with text or shards\n");
  CHECK(run_program(s.dir.path, {"eval", "model", "--data", s.text, "--tokens", "100"}).status == 0);
  const ProgramResult missing = run_program(s.dir.path, {"eval", "run", "--data", "none.txt"});
  CHECK(missing.status == 2);
  CHECK_THAT(missing.err, ContainsSubstring("none.txt does not exist"));
}
