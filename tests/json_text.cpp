// Tests of src/json_text.cpp: what is refused of a text, with line and column, and that duplicate keys are.
#include "json_text.h"

#include <nlohmann/json.hpp>

#include "catch.h"
#include "config.h"
#include "error.h"

using namespace octavo;
using Json = nlohmann::ordered_json;

namespace {

/// The message that refuses `text`, or "" where it is accepted.
std::string refusal(const std::string& text) {
  try {
    parse_json_with_comments(text, "x.json");
    return "";
  } catch (const RequestError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("json text: values, order and comments are read", "[json_text]") {
  const Json tree = parse_json_with_comments(
      "// head\n{ \"b\": [1, -2, 2.5, true, null, \"\\u00e9\"], // tail\n \"a\": { \"b\": {} } } // end",
      "x.json");
  REQUIRE(tree.dump() == "{\"b\":[1,-2,2.5,true,null,\"\xC3\xA9\"],\"a\":{\"b\":{}}}");
  REQUIRE(parse_json_with_comments("\xEF\xBB\xBF{\"a\": 1}", "x.json")["a"] == 1);
  REQUIRE(parse_json_with_comments("7", "x.json") == 7);
}

TEST_CASE("json text: comments are refused where they are not asked for", "[json_text]") {
  std::vector<std::string> faults;
  REQUIRE_FALSE(parse_json_text("5 // five", "x.json", Comments::refused, faults));
  REQUIRE(faults.size() == 1);
  REQUIRE(parse_json_text("5 // five", "x.json", Comments::allowed, faults) == Json(5));
}

TEST_CASE("json text: faults name line, column, what was found and what is allowed", "[json_text]") {
  const auto [text, message] = GENERATE(table<std::string, std::string>({
      {"", "x.json: found no text; allowed: JSON"},
      {"\xEF\xBB\xBF", "x.json: found no text; allowed: JSON"},
      {" \n ", "x.json line 2, column 1: found end of input; allowed: '[', '{', or a literal"},
      {"{", "x.json line 1, column 1: found end of input; allowed: string literal"},
      {"{\n\"a\": 1,\n}", "x.json line 3, column 1: found '}'; allowed: string literal"},
      {"{\"a\": tru}", "x.json line 1, column 10: found \"a\": tru} (invalid literal); allowed: valid JSON"},
      {"{\"a\" 1}", "x.json line 1, column 7: found number literal; allowed: ':'"},
      {"[1 2]", "x.json line 1, column 5: found number literal; allowed: ']'"},
      {"[1e999]",
       "x.json line 1, column 7: found 1e999 (too large a number); allowed: numbers up to 1.79e308"},
      {"{} {}", "x.json line 1, column 4: found '{'; allowed: end of input"},
      {"\"abc",
       "x.json line 1, column 4: found \"abc (invalid string: missing closing quote); allowed: valid JSON"},
      {"[\"\xFF\"]",
       "x.json line 1, column 3: found \"? (invalid string: ill-formed UTF-8 byte); allowed: valid JSON"},
      {"[1]/*",
       "x.json line 1, column 5: found 1]/* (invalid comment; missing closing '*/'); allowed: valid JSON"},
      {std::string("{}\n\0{}", 6), "x.json line 2, column 1: found a zero byte; allowed: JSON in UTF-8"},
      {std::string("\xFF\xFE{\0}\0", 6),
       "x.json line 1, column 4: found a zero byte; allowed: JSON in UTF-8"},
  }));
  CHECK(refusal(text) == message);
}

TEST_CASE("json text: a long token is cut, in one line of ASCII", "[json_text]") {
  const std::string message = refusal("{\"a\": \"" + std::string(100000, '\xE9') + "\n");
  REQUIRE(message.size() < 300);
  for (const char c : message) REQUIRE((c >= ' ' && c <= '~'));
}

TEST_CASE("json text: a key that stands twice is refused with its path and line", "[json_text]") {
  REQUIRE(refusal("{\"a\": 1,\n \"b\": 2,\n \"a\": 3}") ==
          "a in x.json line 3: found a second time; allowed: each key once");
  REQUIRE(refusal("{\"runs\": [{}, {\"set\": {\"k\": 1, \"k\": 1}}]}") ==
          "runs[1].set.k in x.json line 1: found a second time; allowed: each key once");
  // Equal keys only after unescaping, and all of them together.
  REQUIRE(refusal("{\"a\": 1, \"\\u0061\": 1, \"a\": {\"x y\": 1, \"x y\": 1}}") ==
          "a in x.json line 1: found a second time; allowed: each key once\n"
          "a in x.json line 1: found a second time; allowed: each key once\n"
          "a.\"x y\" in x.json line 1: found a second time; allowed: each key once");
  REQUIRE(refusal("{\"a\": {\"k\": 1}, \"b\": {\"k\": 1}, \"c\": [{\"k\": 1}, {\"k\": 1}]}").empty());
}

TEST_CASE("json text: nesting has a limit, so that no depth exhausts the stack", "[json_text]") {
  const std::string open32(32, '['), close32(32, ']');
  REQUIRE(refusal(open32 + close32).empty());
  REQUIRE(refusal("[" + open32 + close32 + "]") ==
          "x.json line 1, column 33: found more than 32 levels of nesting; allowed: up to 32");
  REQUIRE_THAT(refusal(std::string(1000000, '[')), ContainsSubstring("levels of nesting"));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  REQUIRE_THAT(refusal(objects), ContainsSubstring("levels of nesting"));
}
