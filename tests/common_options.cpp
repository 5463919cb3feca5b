// What several commands take alike: --set, and values held to what is accepted.
#include "commands/common_options.h"

#include <CLI/CLI.hpp>

#include "catch.h"
#include "refusal.h"

using namespace octavo;

namespace {

/// The message that CLI11 gives for `--n=VALUE`, or the value as taken.
std::string taken(const Accepted& accepted, const std::string& value) {
  CLI::App app;
  std::string to;
  accept(*app.add_option("--n", to), accepted, "N");
  try {
    app.parse("--n=" + value);
    return to;
  } catch (const CLI::ParseError& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("options: a value is taken as a config would take it, or answered with what is allowed") {
  CHECK(taken(integer_from(1, 1000), "7") == "7");
  CHECK(taken(integer_from(1, 1000), "1e3") == "1000");
  CHECK(taken(integer_from(1, 1000), "1001") == "--n: found \"1001\"; allowed: integer from 1 to 1000");
  CHECK(taken(integer_from(1, 1000).or_minus_one(), "-1") == "-1");
  CHECK(taken(integer_from(1, 1000), "1.5") == "--n: found \"1.5\"; allowed: integer from 1 to 1000");
  CHECK(taken(integer_from(1, 1000), "[1]") == "--n: found \"[1]\"; allowed: integer from 1 to 1000");
  CHECK(taken(number_from(0, 1), "0.25") == "0.25");
  for (const char* bad : {"nan", "inf", "-0.1", "1.01", "x"})
    CHECK(taken(number_from(0, 1), bad) ==
          std::string("--n: found \"") + bad + "\"; allowed: number from 0 to 1");
  const Accepted& format = find_field("data.format")->accepted;
  CHECK(taken(format, "u16") == "u16");
  CHECK(taken(format, "u8") ==
        "--n: found \"u8\"; allowed: \"auto\" | \"shard\" | \"u16\" | \"u32\" | \"text\"");
}

TEST_CASE("options: --set may come several times, takes one value each, and needs an equals sign") {
  CLI::App app;
  std::vector<std::string> set;
  std::string file;
  app.add_option("FILE", file);
  add_set_option(app, set);
  app.parse("--set a.b=1 --set c=x=y f.json");
  CHECK(file == "f.json");
  const std::vector<Override> overrides = parse_overrides(set);
  REQUIRE(overrides.size() == 2);
  CHECK(overrides[0].path == "a.b");
  CHECK(overrides[1].path == "c");
  CHECK(overrides[1].value == "x=y");
  CHECK(testing::refusal([] { parse_overrides({"a"}); }) == "--set: found \"a\"; allowed: section.key=value");
}

TEST_CASE("options: the command line of this process begins with its program") {
  CHECK_THAT(command_line(), ContainsSubstring("octavo_tests"));
}
