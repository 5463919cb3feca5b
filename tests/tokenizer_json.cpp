// tokenizer_json.cpp - what a tokenizer.json may say, and what it is refused for.
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "catch.h"
#include "data/tokenizer.h"
#include "files.h"
#include "fixture.h"
#include "refusal.h"
#include "temp_dir.h"
#include "wrong_types.h"

using namespace octavo;
using nlohmann::ordered_json;
using testing::fixture;

namespace {

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
