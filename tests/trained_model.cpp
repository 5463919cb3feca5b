// trained_model.cpp - a model is opened with its own tokenizer, and with no other.
#include "trained_model.h"

#include "catch.h"
#include "fixture.h"
#include "refusal.h"
#include "small_run.h"

using namespace octavo;
namespace fs = std::filesystem;

TEST_CASE("a trained model takes its own tokenizer, and no other by any way") {
  const testing::SmallRun small;
  nlohmann::json config = small.json("fp32");
  config["train"]["steps"] = 3;
  const fs::path run = small.train(config, "run");
  const fs::path checkpoint = newest_checkpoint(run / "checkpoints")->folder;
  const std::string bytes = bytes_tokenizer()->hash(), bpe = testing::fixture("bpe/gpt2_style.json");
  const auto open = [&](const fs::path& source, const std::string& tokenizer) {
    return open_trained_model({.source = source.string(), .tokenizer = tokenizer}).tokenizer;
  };
  CHECK(open(run, "")->hash() == bytes);
  CHECK(open(checkpoint, "bytes")->hash() == bytes);
  const std::string allowed = bytes + "; allowed: the model's own tokenizer";
  CHECK(testing::refusal([&] { open(run, bpe); }) == "tokenizer " + bpe + ": found hash " +
                                                         load_tokenizer(bpe)->hash() + ", but " +
                                                         run.string() + " was made with " + allowed);

  // A folder without a state knows its tokenizer from the file alone.
  const fs::path plain = small.dir.path / "plain";
  fs::create_directory(plain);
  for (const char* file : {"model.safetensors", "config.json", "tokenizer.json"})
    fs::copy(checkpoint / file, plain / file);
  CHECK_THAT(testing::refusal([&] { open(plain, bpe); }), ContainsSubstring("was made with " + allowed));
  fs::remove(plain / "tokenizer.json");
  CHECK(open(plain, "") == nullptr);
  CHECK(open(plain, bpe)->kind() == "bpe");

  // Lost: only the right one may take its place. (state.json lists the file, so the list is amended.)
  fs::copy_file(bpe, checkpoint / "tokenizer.json", fs::copy_options::overwrite_existing);
  nlohmann::ordered_json state = read_json_object(checkpoint / "state.json");
  state["files"]["tokenizer.json"] = fs::file_size(checkpoint / "tokenizer.json");
  write_json_atomically(checkpoint / "state.json", state);
  CHECK_THAT(testing::refusal([&] { open(run, ""); }),
             ContainsSubstring("tokenizer.json: found hash") && ContainsSubstring(allowed));
  CHECK(open(run, "bytes")->hash() == bytes);
}
