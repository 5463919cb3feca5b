// Wrong command lines: one line each, with what was found and what is allowed, and status 2.
#include <algorithm>
#include <string>
#include <vector>

#include "catch.h"
#include "program.h"

using namespace octavo::testing;

namespace {

std::string error_of(const std::vector<std::string>& arguments) {
  const TempDir dir;
  const ProgramResult r = run_program(dir.path, arguments);
  INFO(r.err);
  CHECK(r.status == 2);
  CHECK(r.out.empty());
  CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
  CHECK(std::filesystem::is_empty(dir.path));
  return r.err;
}

}  // namespace

TEST_CASE("usage: commands that are missing or misspelt") {
  const std::string all = "; allowed: train, sweep, eval, generate, export, plot, diff, data, info, config\n";
  CHECK(error_of({}) == "octavo: found no command" + all);
  CHECK(error_of({"--frobnicate"}) == "octavo: found \"--frobnicate\"" + all);
  CHECK(error_of({"evla", "x"}) == "octavo: found the command \"evla\", did you mean \"eval\"?" + all);
  CHECK(error_of({"data"}) == "octavo: data: found no command; allowed: pack, synth, info\n");
  CHECK(error_of({"data", "pck"}) ==
        "octavo: data: found the command \"pck\", did you mean \"pack\"?; allowed: pack, synth, info\n");
}

TEST_CASE("usage: words and options that are missing, unknown or too many") {
  const std::string train = "; allowed: CONFIG [--set KEY=VALUE] [--resume] [--overwrite] [--dry-run]\n";
  CHECK(error_of({"train"}) == "octavo: train: found no CONFIG" + train);
  CHECK(error_of({"train", "a", "b"}) == "octavo: train: found \"b\"" + train);
  CHECK(error_of({"train", "a", "--resum"}) ==
        "octavo: train: found \"--resum\", did you mean \"--resume\"?" + train);
  CHECK(error_of({"train", "a", "--set"}) == "octavo: train: --set: found no KEY=VALUE" + train);
  CHECK(error_of({"train", "a", "--resume", "--overwrite"}) ==
        "octavo: train: --resume excludes --overwrite; allowed: one of the two\n");
  CHECK(error_of({"diff", "a"}) == "octavo: diff: found no B; allowed: A B\n");
  CHECK(error_of({"plot"}) == "octavo: plot: found no RUN; allowed: RUN... [--out FILE] [--terminal]\n");
  CHECK_THAT(
      error_of({"data", "pack", "a"}),
      ContainsSubstring("octavo: data pack: found no --out; allowed: INPUTS... --out DIR [--tokenizer "));
  CHECK_THAT(error_of({"sweep", "a", "--modes", "fp32", "--modes", "bf16"}),
             ContainsSubstring("octavo: sweep: found --modes more than once; allowed: SWEEP [--modes A,B] "));
}

TEST_CASE("usage: values that an option does not take") {
  CHECK(error_of({"sweep", "a", "--repeats", "0"}) ==
        "octavo: sweep: --repeats: found \"0\"; allowed: integer from 1 to 1000\n");
  CHECK(error_of({"eval", "a", "--format", "bin"}) ==
        "octavo: eval: --format: found \"bin\"; allowed: \"auto\" | \"shard\" | \"u16\" | \"u32\" | "
        "\"text\"\n");
  CHECK(error_of({"eval", "a", "--tokens", "0"}) ==
        "octavo: eval: --tokens: found \"0\"; allowed: integer from 1 to 1000000000000000 | -1\n");
  for (const char* bad : {"nan", "0", "1.5", "-1", "x", ""})
    CHECK(error_of({"generate", "a", std::string("--top-p=") + bad}).find("--top-p: found ") !=
          std::string::npos);
  CHECK(error_of({"generate", "a", "--seed", "-1"}) ==
        "octavo: generate: --seed: found \"-1\"; allowed: integer from 0 to 9007199254740991\n");
  CHECK_THAT(error_of({"data", "synth", "--out", "x", "--tokens", "many"}),
             ContainsSubstring("data synth: --tokens: found \"many\"; allowed: integer from 0"));
  // Where the value is fine, the next fault is another one.
  CHECK_THAT(error_of({"generate", "a", "--tokens", "1e3", "--top-p", "1"}),
             ContainsSubstring("no such folder"));
}

TEST_CASE("usage: every command has help, its descriptions all in one style") {
  const TempDir dir;
  for (const char* command :
       {"train", "sweep", "eval", "generate", "export", "plot", "diff", "data", "info", "config"}) {
    const ProgramResult r = run_program(dir.path, {command, "--help"});
    INFO(r.out);
    CHECK(r.status == 0);
    REQUIRE_FALSE(r.out.empty());
    CHECK((r.out[0] >= 'A' && r.out[0] <= 'Z'));
    const std::string first = r.out.substr(0, r.out.find('\n'));
    CHECK(first.back() != '.');
    CHECK_THAT(r.out, ContainsSubstring(std::string("Usage: octavo ") + command));
  }
}
