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

// What a file with one change is refused for.
std::string refused(const std::function<void(ordered_json&)>& change) {
  ordered_json file = gpt2_style();
  change(file);
  return testing::refusal([&] { parse_tokenizer(file.dump(), "t.json"); });
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

TEST_CASE("tokenizer.json: what is not supported is refused by its name") {
  CHECK(refused([](auto& f) {
          f["normalizer"] = {{"type", "NFC"}};
        }) == "t.json: normalizer.type = NFC is not supported; allowed: null");
  CHECK(refused([](auto& f) { f["model"]["type"] = "WordPiece"; }) ==
        "t.json: model.type = WordPiece is not supported; allowed: BPE");
  CHECK(refused([](auto& f) {
          f["pre_tokenizer"] = {{"type", "Metaspace"}};
        }) ==
        "t.json: pre_tokenizer.type = Metaspace is not supported; allowed: ByteLevel, or a Sequence of Split "
        "and "
        "ByteLevel");
  CHECK_THAT(refused([](auto& f) { f["pre_tokenizer"] = nullptr; }),
             ContainsSubstring("pre_tokenizer.type = null"));
  CHECK_THAT(refused([](auto& f) { f["pre_tokenizer"]["add_prefix_space"] = true; }),
             ContainsSubstring("pre_tokenizer.add_prefix_space = true is not supported; allowed: false"));
  CHECK_THAT(refused([](auto& f) {
               f["decoder"] = {{"type", "WordPiece"}};
             }),
             ContainsSubstring("decoder.type = WordPiece"));
  CHECK_THAT(refused([](auto& f) { f["model"]["dropout"] = 0.1; }), ContainsSubstring("model.dropout = 0.1"));
  CHECK_THAT(refused([](auto& f) { f["model"]["end_of_word_suffix"] = "</w>"; }),
             ContainsSubstring("model.end_of_word_suffix = \"</w>\""));
  CHECK_THAT(refused([](auto& f) { f["added_tokens"][0]["lstrip"] = true; }),
             ContainsSubstring("added_tokens[0].lstrip = true is not supported; allowed: false"));
}

TEST_CASE("tokenizer.json: broken files are refused with what they lack") {
  CHECK_THAT(refused([](auto& f) { f["model"]["vocab"].erase("a"); }), ContainsSubstring("lacks"));
  CHECK_THAT(
      refused([](auto& f) {
        f["model"]["merges"] = ordered_json::array();
        f["model"]["vocab"].erase("~");
      }),
      ContainsSubstring("t.json: model.vocab lacks byte 0x7e ('~'); allowed: a byte-level vocabulary"));
  CHECK_THAT(refused([](auto& f) { f["model"]["merges"].push_back("z ~"); }),
             ContainsSubstring("needs \"z~\", which model.vocab lacks; allowed"));
  CHECK_THAT(refused([](auto& f) { f["model"]["merges"].push_back(7); }),
             ContainsSubstring("is 7; allowed: \"a b\" or [\"a\", \"b\"]"));
  CHECK_THAT(refused([](auto& f) { f["model"]["vocab"]["a"] = -4; }),
             ContainsSubstring("t.json: model.vocab[\"a\"] is -4; allowed: an integer from 0 to"));
  CHECK_THAT(refused([](auto& f) { f["model"]["vocab"]["a"] = f["model"]["vocab"]["b"]; }),
             ContainsSubstring("allowed: an id that no other token has"));
  CHECK_THAT(refused([](auto& f) { f["added_tokens"][0]["content"] = "<s>"; }),
             ContainsSubstring("added_tokens[0] gives \"<s>\" the id") &&
                 ContainsSubstring("which belongs to \"<|endoftext|>\"; allowed"));
  CHECK_THAT(refused([](auto& f) { f["added_tokens"] = nullptr; }),
             ContainsSubstring("added_tokens name no end-of-text token; allowed: one of <|endoftext|>"));
  CHECK_THAT(refused([](auto& f) { f.erase("model"); }), ContainsSubstring("has no \"model\""));
  CHECK(testing::refusal([] { parse_tokenizer("{", "t.json"); }) ==
        "t.json line 1, column 1: found end of input; allowed: string literal");
  CHECK(testing::refusal([] { parse_tokenizer("[\"model\"]", "t.json"); }) ==
        "t.json: has no \"model\"; allowed: a Hugging Face tokenizer.json");
  const testing::TempDir dir;
  CHECK_THAT(testing::refusal([&] { load_tokenizer((dir.path / "no.json").string()); }),
             ContainsSubstring("no.json: does not exist; allowed: bytes, or the path of a tokenizer.json"));
  CHECK_THAT(testing::refusal([&] { load_tokenizer(dir.path.string()); }),
             ContainsSubstring("the folder holds no tokenizer.json"));
  ordered_json file = ordered_json::parse(read_whole_file(fixture("bpe/llama3_style.json")));
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(";
  CHECK(testing::refusal([&] { Tokenizer t(parse_tokenizer(file.dump(), "t.json")); }) ==
        "t.json: pre_tokenizer.pretokenizers[0].pattern.Regex is \"(\": missing closing parenthesis at "
        "character "
        "1; allowed: a regular expression of PCRE2");
}

TEST_CASE("tokenizer.json: a wrong type is refused in one line wherever it has a meaning") {
  for (const char* const name : {"bpe/gpt2_style.json", "bpe/llama3_style.json"}) {
    ordered_json file = ordered_json::parse(read_whole_file(fixture(name)));
    testing::for_each_wrong_type(file, [&](const std::string& place) {
      const std::string message =
          testing::refusal([&] { Tokenizer t(parse_tokenizer(file.dump(), "t.json")); });
      INFO(name << " " << place << ": " << message);
      CHECK((message == "NOT REFUSED" || message.starts_with("t.json: ")));
    });
  }
  CHECK(refused([](auto& f) { f["model"]["ignore_merges"] = "no"; }) ==
        "t.json: model.ignore_merges is \"no\"; allowed: true or false");
  CHECK(refused([](auto& f) { f["pre_tokenizer"]["use_regex"] = 1; }) ==
        "t.json: pre_tokenizer.use_regex is 1; allowed: true or false");
  CHECK(refused([](auto& f) { f["added_tokens"][0]["special"] = 1; }) ==
        "t.json: added_tokens[0].special is 1; allowed: true or false");
  CHECK(refused([](auto& f) { f["added_tokens"][0]["content"] = 1; }) ==
        "t.json: added_tokens[0].content is 1; allowed: the token's text");
  CHECK_THAT(refused([](auto& f) { f["added_tokens"][0]["id"] = 1.5; }),
             ContainsSubstring("t.json: added_tokens[0].id is 1.5; allowed: an integer"));
  CHECK(refused([](auto& f) { f["model"]["vocab"] = 7; }) == "t.json: model.vocab is 7; allowed: an object");
  CHECK_THAT(refused([](auto& f) { f["model"]["dropout"] = "0"; }),
             ContainsSubstring("model.dropout = \"0\" is not supported; allowed: null"));
  CHECK(testing::refusal([&] {
          parse_tokenizer(R"({"model": {"vocab": {"a": 1,)"
                          "\n"
                          R"("a": 2}}})",
                          "t.json");
        }) == "model.vocab.a in t.json line 2: found a second time; allowed: each key once");
}
