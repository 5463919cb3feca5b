// tokenizer.cpp - ids as Hugging Face's `tokenizers` gives them, and bytes that survive whatever they are.
#include "data/tokenizer.h"

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>

#include <nlohmann/json.hpp>

#include "catch.h"
#include "files.h"
#include "fixture.h"
#include "refusal.h"
#include "temp_dir.h"
#include "wrong_types.h"

using namespace octavo;
using nlohmann::ordered_json;
using testing::fixture;
using Ids = std::vector<std::int32_t>;

namespace {

void check_expected(const Tokenizer& tokenizer, const ordered_json& cases) {
  REQUIRE(cases.size() > 10);
  for (const ordered_json& c : cases) {
    const std::string text = c["text"].get<std::string>();
    CAPTURE(text);
    CHECK(tokenizer.encode(text) == c["ids"].get<Ids>());
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  }
}

// Random bytes, random pieces of UTF-8, broken in all ways.
std::vector<std::string> hostile_texts() {
  std::mt19937 random(1);
  const std::vector<std::string> pieces = {"é",
                                           "\xC3",
                                           "\xE2\x82",
                                           "€",
                                           "\xF0\x9F\x98",
                                           "\xF0\x9F\x98\x80",
                                           "\xED\xA0\x80",
                                           "\xC0\x80",
                                           "\xF4\x90\x80\x80",
                                           "\xFF",
                                           "\x80",
                                           " ",
                                           "\n",
                                           "'s",
                                           "abc",
                                           "12",
                                           "<|endoftext|>",
                                           "<|endof"};
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (int n = 0; n < 12; ++n) {
      if (i % 2 == 0) {
        text += pieces[random() % pieces.size()];
      } else {
        text += static_cast<char>(random());
      }
    }
    texts.push_back(text);
  }
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  texts.push_back(all);
  texts.push_back(all + all);
  return texts;
}

ordered_json gpt2_style() {
  return ordered_json::parse(read_whole_file(fixture("bpe/gpt2_style.json")));
}

}  // namespace

TEST_CASE("bytes tokenizer: ids are bytes, end-of-text is 256") {
  const TokenizerPtr tokenizer = bytes_tokenizer();
  CHECK(tokenizer->kind() == "bytes");
  CHECK(tokenizer->vocab() == 257);
  CHECK(tokenizer->eot() == 256);
  CHECK(tokenizer->encode("aé\n") == Ids{97, 0xC3, 0xA9, 10});
  CHECK(tokenizer->decode(Ids{256, 104, 105}) == "<|endoftext|>hi");
  CHECK(tokenizer->encode("<|endoftext|>").size() == 13);  // text is text
  CHECK(tokenizer->encode("").empty());
  for (const std::string& text : hostile_texts()) CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
  // The identity is written into every dataset and checkpoint: it must never change.
  CHECK(tokenizer->hash() == "61ecbfe4bfb3b594c928f4091ffb73d5ea84ad53d1137c0691175aac09fb8829");
  CHECK(load_tokenizer("bytes") == tokenizer);
  CHECK_THROWS_AS(tokenizer->bytes_of(257), std::logic_error);
  CHECK_THROWS_AS(tokenizer->bytes_of(-1), std::logic_error);
}

TEST_CASE("BPE: the ids of Hugging Face's tokenizers") {
  const ordered_json expected = ordered_json::parse(read_whole_file(fixture("bpe/expected.json")));
  for (const char* const name : {"gpt2_style.json", "llama3_style.json"}) {
    const TokenizerPtr tokenizer = load_tokenizer(fixture(std::string("bpe/") + name));
    CHECK(tokenizer->kind() == "bpe");
    check_expected(*tokenizer, expected[name]);
    check_expected(*tokenizer, expected[name]);  // again, from the cache
  }
}

TEST_CASE("BPE: GPT-2's own tokenizer") {
  const char* const path = std::getenv("OCTAVO_TEST_GPT2_TOKENIZER");
  if (path == nullptr) {
    std::cerr << "SKIPPED: GPT-2's tokenizer; OCTAVO_TEST_GPT2_TOKENIZER is not set (see "
                 "tests/fixtures/bpe/make_bpe_fixtures.py)\n";
    return;
  }
  const TokenizerPtr tokenizer = load_tokenizer(path);
  CHECK(tokenizer->vocab() == 50257);
  CHECK(tokenizer->eot() == 50256);
  CHECK(tokenizer->encode("Hello world") == Ids{15496, 995});
  const auto beside = std::filesystem::path(path).parent_path() / "expected.json";
  check_expected(*tokenizer, ordered_json::parse(read_whole_file(beside))["tokenizer.json"]);
  for (const std::string& text : hostile_texts()) CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
}

TEST_CASE("BPE: any bytes survive, and bad UTF-8 does not disturb what is around it") {
  for (const char* const name : {"bpe/gpt2_style.json", "bpe/llama3_style.json"}) {
    const TokenizerPtr tokenizer = load_tokenizer(fixture(name));
    for (const std::string& text : hostile_texts()) {
      const Ids ids = tokenizer->encode(text);
      CHECK(tokenizer->decode(ids) == text);
      std::string streamed;
      for (const std::int32_t id : ids) streamed += tokenizer->bytes_of(id);
      CHECK(streamed == text);
    }
    Ids joined = tokenizer->encode("octavo");
    const Ids bad = tokenizer->encode("\xFF\xC3");
    const Ids after = tokenizer->encode(" sheet");
    joined.insert(joined.end(), bad.begin(), bad.end());
    joined.insert(joined.end(), after.begin(), after.end());
    CHECK(tokenizer->encode("octavo\xFF\xC3 sheet") == joined);
  }
}

TEST_CASE("BPE: a long piece takes time in proportion, not its square") {
  const TokenizerPtr tokenizer = load_tokenizer(fixture("bpe/gpt2_style.json"));
  const std::string text(2'000'000, 't');
  CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
}

TEST_CASE("tokenizers travel: saved, loaded, the same identity and ids") {
  for (const TokenizerPtr& tokenizer : {bytes_tokenizer(), load_tokenizer(fixture("bpe/gpt2_style.json")),
                                        load_tokenizer(fixture("bpe/llama3_style.json"))}) {
    const testing::TempDir dir;
    CHECK(find_tokenizer(dir.path.string()) == nullptr);
    tokenizer->save(dir.path.string());
    const TokenizerPtr again = find_tokenizer(dir.path.string());
    REQUIRE(again != nullptr);
    CHECK(again->hash() == tokenizer->hash());
    CHECK(again->kind() == tokenizer->kind());
    CHECK(again->encode("El niño <|x") == tokenizer->encode("El niño <|x"));
    const ordered_json config = ordered_json::parse(read_whole_file(dir.path / "tokenizer_config.json"));
    CHECK(config["tokenizer_class"] == "PreTrainedTokenizerFast");
    CHECK(config["eos_token"] == "<|endoftext|>");
  }
}

TEST_CASE("tokenizer identity: spelling does not matter, meaning does") {
  const auto hash = [](const ordered_json& file) {
    return Tokenizer(parse_tokenizer(file.dump(), "t")).hash();
  };
  const std::string same = hash(gpt2_style());
  ordered_json file = gpt2_style();
  file["truncation"] = {{"max_length", 5}};
  file["post_processor"] = {{"type", "ByteLevel"}};
  for (ordered_json& merge : file["model"]["merges"]) {
    const std::string text = merge.get<std::string>();
    merge = {text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)};
  }
  CHECK(hash(file) == same);
  ordered_json fewer = gpt2_style();
  fewer["model"]["merges"].erase(fewer["model"]["merges"].size() - 1);
  CHECK(hash(fewer) != same);
  ordered_json swapped = gpt2_style();
  std::swap(swapped["model"]["merges"][0], swapped["model"]["merges"][1]);
  CHECK(hash(swapped) != same);
  ordered_json unsplit = gpt2_style();
  unsplit["pre_tokenizer"]["use_regex"] = false;
  CHECK(hash(unsplit) != same);
}
