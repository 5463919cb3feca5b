// A model opened for use: from a run, from a checkpoint, from a bare folder.
#include "trained_model.h"

#include <filesystem>

#include "catch.h"
#include "crc32.h"
#include "files.h"
#include "fixture.h"
#include "refusal.h"
#include "small_run.h"

using namespace octavo;
using namespace octavo::testing;

TEST_CASE("a run's model opens in its precision, with its config, tokenizer and newest weights") {
  const SmallRun s;
  nlohmann::json config = s.json("bf16");
  config["train"]["steps"] = 3;
  config["train"]["sequence"] = 20;
  const auto run = s.train(config, "run");
  const auto checkpoint = run / "checkpoints" / "step_00000003";
  for (const auto& source : {run, checkpoint}) {
    const TrainedModel trained = open_trained_model({.source = source.string()});
    CHECK(trained.mode == "bf16");
    REQUIRE(trained.config.has_value());
    CHECK(trained.config->name == "small");
    REQUIRE(trained.tokenizer != nullptr);
    CHECK(trained.tokenizer->is_bytes());
    CHECK(trained.model->plan().T == 20);  // as it trained
    CHECK_FALSE(trained.model->plan().training);
    const HostCopy masters(*trained.backend, trained.model->masters());
    std::vector<float> saved(static_cast<std::size_t>(trained.model->masters().numel()));
    read_weights(checkpoint, trained.model->table(), saved.data());
    CHECK(std::vector<float>(masters.data(), masters.data() + saved.size()) == saved);
  }
}

TEST_CASE("overrides change precision and sequence, never beyond the context") {
  const SmallRun s;
  nlohmann::json config = s.json("bf16");
  config["train"]["steps"] = 3;
  const std::string run = s.train(config, "run").string();
  const TrainedModel trained =
      open_trained_model({.source = run, .overrides = {{"precision.mode", "fp32"}}, .B = 2, .T = 1000});
  CHECK(trained.mode == "fp32");
  CHECK(trained.model->plan().act == DType::f32);
  CHECK(trained.model->plan().B == 2);
  CHECK(trained.model->plan().T == 37);
}

TEST_CASE("a folder outside any run opens in what it was trained in, else in fp32") {
  const SmallRun s;
  nlohmann::json config = s.json("bf16");
  config["train"]["steps"] = 3;
  const auto run = s.train(config, "run");
  std::filesystem::copy(run / "checkpoints" / "step_00000003", s.dir.path / "alone");
  const std::string alone = (s.dir.path / "alone").string();
  CHECK(open_trained_model({.source = alone}).mode == "bf16");
  CHECK_FALSE(open_trained_model({.source = alone}).config.has_value());
  std::filesystem::remove(s.dir.path / "alone" / "state.json");
  CHECK(open_trained_model({.source = alone}).mode == "fp32");
  CHECK(open_trained_model({.source = alone, .tokenizer = "bytes"}).tokenizer->is_bytes());
  CHECK_THAT(refusal([&] { open_trained_model({.source = (s.dir.path / "none").string()}); }),
             ContainsSubstring("no such folder"));
}

TEST_CASE("a trained model takes its own tokenizer, and no other by any way") {
  const SmallRun small;
  nlohmann::json config = small.json("fp32");
  config["train"]["steps"] = 3;
  const std::filesystem::path run = small.train(config, "run");
  const std::filesystem::path checkpoint = newest_checkpoint(run / "checkpoints")->folder;
  const std::string bytes = bytes_tokenizer()->hash(), bpe = fixture("bpe/gpt2_style.json");
  const auto open = [&](const std::filesystem::path& source, const std::string& tokenizer) {
    return open_trained_model({.source = source.string(), .tokenizer = tokenizer}).tokenizer;
  };
  CHECK(open(run, "")->hash() == bytes);
  CHECK(open(checkpoint, "bytes")->hash() == bytes);
  const std::string allowed = bytes + "; allowed: the model's own tokenizer";
  CHECK(refusal([&] { open(run, bpe); }) == "tokenizer " + bpe + ": found hash " +
                                                load_tokenizer(bpe)->hash() + ", but " + run.string() +
                                                " was made with " + allowed);

  // A folder without a state knows its tokenizer from the file alone.
  const std::filesystem::path plain = small.dir.path / "plain";
  std::filesystem::create_directory(plain);
  for (const char* file : {"model.safetensors", "config.json", "tokenizer.json"})
    std::filesystem::copy(checkpoint / file, plain / file);
  CHECK_THAT(refusal([&] { open(plain, bpe); }), ContainsSubstring("was made with " + allowed));
  std::filesystem::remove(plain / "tokenizer.json");
  CHECK(open(plain, "") == nullptr);
  CHECK(open(plain, bpe)->kind() == "bpe");

  // Lost: only the right one may take its place. (state.json lists the file, so the list is amended.)
  std::filesystem::copy_file(bpe, checkpoint / "tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  nlohmann::ordered_json state = read_json_object(checkpoint / "state.json");
  state["files"]["tokenizer.json"] = {{"bytes", std::filesystem::file_size(checkpoint / "tokenizer.json")},
                                      {"crc32", crc32_file(checkpoint / "tokenizer.json")}};
  state.erase("format_version");
  state.erase("crc32");
  state["crc32"] = crc32_hex(state.dump());
  write_json_atomically(checkpoint / "state.json", state);
  CHECK_THAT(refusal([&] { open(run, ""); }),
             ContainsSubstring("tokenizer.json: found hash") && ContainsSubstring(allowed));
  CHECK(open(run, "bytes")->hash() == bytes);
}
