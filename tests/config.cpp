// Tests of src/config.cpp and src/commands/config.cpp: from a file to a Config and back, and every kind of
// fault.
#include "config.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "catch.h"
#include "commands/commands.h"
#include "environment.h"
#include "error.h"
#include "files.h"
#include "temp_dir.h"

using namespace octavo;
using namespace octavo::testing;
using Json = nlohmann::ordered_json;

namespace {

// Every field at a value that is not its default.
constexpr const char* kOther = R"({
  // A comment, and a key order of one's own.
  "output": { "dir": "out/{name}/x", "peak_tflops": 989.5 },
  "name": "other", "device": "cpu", "threads": 3,
  "model": { "init_from": "some/folder", "arch": "gpt2", "layers": 3, "channels": 48, "heads": 2, "context": 37,
             "vocab": 257, "tied": false, "dropout": 0.125, "norm_eps": 1e-6, "init_std": 0.1 },
  "precision": { "mode": "fp8", "fallback": "allow",
                 "fp8": { "recipe": "current", "format": "e4m3", "amax_history_len": 16,
                          "amax_compute_algo": "most_recent", "margin": 1, "calibrate": false,
                          "skip_first_layers": 1, "skip_last_layers": 1,
                          "fast_accum": { "fprop": false, "dgrad": true, "wgrad": true } } },
  "data": { "train": ["a/*.bin", "b.txt"], "val": "v.bin", "tokenizer": "bytes",
            "format": "text", "seed": 9 },
  "train": { "tokens": 1e9, "micro_batch": 4, "sequence": 32, "accumulate": 2,
             "eval_every": 0, "eval_tokens": -1, "checkpoint_every": 0, "keep_checkpoints": 1, "keep_best": true,
             "log_every": 10, "max_minutes": 0.5, "recompute": "block", "seed": 9007199254740991,
             "deterministic": false, "graph": false, "max_bad_steps": 1 },
  "optimizer": { "lr": 0.001, "min_lr": 0, "schedule": "wsd", "warmup_steps": 0, "decay_steps": 7,
                 "betas": [0.8, 0.999], "eps": 1e-10, "weight_decay": 0, "clip": 0 },
  "parallel": { "zero": 2, "transport": "mpi", "reduce": "bf16", "timeout_s": 60 } })";

Config parse(const std::string& text, const std::vector<Override>& overrides = {}) {
  return parse_config(text, "gpt.json", overrides);
}

/// The message that refuses `text`, or "" where it is accepted.
std::string refusal(const std::string& text, const std::vector<Override>& overrides = {}) {
  try {
    parse(text, overrides);
    return "";
  } catch (const RequestError& error) {
    return error.what();
  }
}

/// A file with the one required key and `rest`.
std::string with(const std::string& rest) {
  return R"({"data": {"train": "x.txt"}, )" + rest + "}";
}

std::string load_refusal(const std::string& file) {
  try {
    load_config(file);
    return "";
  } catch (const RequestError& error) {
    return error.what();
  }
}

/// Runs `octavo config ARGUMENTS`; what it prints, after its exit status.
std::string run_command(const std::vector<std::string>& arguments) {
  CLI::App app;
  Action action;
  register_config(app, action);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  reversed.push_back("config");
  app.parse(reversed);
  std::fflush(stdout);
  const int saved = ::dup(STDOUT_FILENO);
  std::FILE* capture = std::tmpfile();
  ::dup2(::fileno(capture), STDOUT_FILENO);
  int status = -1;
  std::string refused;
  try {
    status = action();
  } catch (const RequestError& error) {
    refused = error.what();
  }
  std::fflush(stdout);
  ::dup2(saved, STDOUT_FILENO);
  ::close(saved);
  std::rewind(capture);
  std::string printed;
  for (int c = std::fgetc(capture); c != EOF; c = std::fgetc(capture)) printed += static_cast<char>(c);
  std::fclose(capture);
  return status >= 0 ? std::to_string(status) + " " + printed : "refused " + refused + printed;
}

}  // namespace

TEST_CASE("config: values reach their members", "[config]") {
  const Config c = parse(kOther);
  CHECK(c.name == "other");
  CHECK(c.device == "cpu");
  CHECK(c.threads == 3);
  CHECK(c.model.init_from == "some/folder");
  CHECK(c.model.vocab == 257);
  CHECK_FALSE(c.model.tied);
  CHECK(c.model.dropout == 0.125);
  CHECK(c.precision.fp8.amax_history_len == 16);
  CHECK(c.precision.fp8.fast_accum.wgrad);
  CHECK_FALSE(c.precision.fp8.fast_accum.fprop);
  CHECK(c.data.train == std::vector<std::string>{"a/*.bin", "b.txt"});
  CHECK(c.data.val == std::vector<std::string>{"v.bin"});
  CHECK(c.data.seed == 9);
  CHECK_FALSE(c.train.steps.has_value());
  CHECK(c.train.tokens == 1000000000);
  CHECK(c.train.micro_batch == 4);
  CHECK(c.train.eval_tokens == -1);
  CHECK(c.train.max_minutes == 0.5);
  CHECK(c.train.seed == 9007199254740991);
  CHECK(c.optimizer.min_lr == 0.0);
  CHECK(c.optimizer.betas == std::array<double, 2>{0.8, 0.999});
  CHECK(c.output.dir == "out/other/x");
  CHECK(c.output.peak_tflops == 989.5);

  const Config d = parse(R"({"data": {"train": "x.txt"}})");
  CHECK(d.name == "gpt");
  CHECK(d.model.vocab == 0);
  CHECK(d.train.micro_batch == 0);
  CHECK(d.data.val.empty());
  CHECK_FALSE(d.model.init_from.has_value());
  CHECK_FALSE(d.optimizer.min_lr.has_value());
  CHECK(d.output.dir == "runs/gpt");
}

TEST_CASE("config: the dump reads back to the same config", "[config]") {
  for (const std::string& text : {std::string(kOther), std::string(R"({"data": {"train": ["x"]}})"),
                                  with(R"("optimizer": {"lr": 0.1234567890123456789, "eps": 3e-17})")}) {
    const Config config = parse(text);
    const Json dump = dump_config(config);
    const Config again = parse_config(dump.dump(2), "elsewhere.json");
    CHECK(compare_configs(config, again).empty());
    CHECK(dump_config(again) == dump);
  }
}

TEST_CASE("config: a run's resolved.json is a config", "[config]") {
  const TempDir dir;
  const Config config = parse(kOther);
  write_json_atomically(dir.path / "resolved.json", dump_config(config));
  CHECK(compare_configs(load_config((dir.path / "resolved.json").string()), config).empty());
  CHECK(refusal(with(R"("format_version": 2)")) == "format_version in gpt.json: found 2; allowed: 1");
}

TEST_CASE("config: an editor's $schema line is no unknown key", "[config]") {
  CHECK(refusal(with(R"("$schema": "octavo.schema.json")")).empty());
  CHECK(refusal(with(R"("$schema": 3)")) == "$schema in gpt.json: found 3; allowed: string");
}

TEST_CASE("config: faults of values", "[config]") {
  const auto [rest, message] = GENERATE(table<std::string, std::string>({
      {R"("threads": "4")", R"(threads in gpt.json: found "4"; allowed: integer from 0 to 4096)"},
      {R"("threads": null)", "threads in gpt.json: found null; allowed: integer from 0 to 4096"},
      {R"("threads": [])", "threads in gpt.json: found []; allowed: integer from 0 to 4096"},
      {R"("model": {"layers": 0})", "model.layers in gpt.json: found 0; allowed: integer from 1 to 1024"},
      {R"("model": {"layers": 2.5})", "model.layers in gpt.json: found 2.5; allowed: integer from 1 to 1024"},
      {R"("model": {"layers": {}})", "model.layers in gpt.json: found {}; allowed: integer from 1 to 1024"},
      {R"("model": {"vocab": "all"})",
       R"(model.vocab in gpt.json: found "all"; allowed: integer from 1 to 16777216 | "auto")"},
      {R"("model": {"tied": 1})", "model.tied in gpt.json: found 1; allowed: true | false"},
      {R"("train": {"steps": 99999999999999999999})",
       "train.steps in gpt.json: found 1e+20; allowed: integer from 1 to 1000000000 | null"},
      {R"("train": {"seed": 18446744073709551615})",
       "train.seed in gpt.json: found 18446744073709551615; allowed: integer from 0 to 9007199254740991"},
      {R"("train": {"seed": -1})",
       "train.seed in gpt.json: found -1; allowed: integer from 0 to 9007199254740991"},
      {R"("optimizer": {"lr": -1e-3})",
       "optimizer.lr in gpt.json: found -0.001; allowed: number from 1e-30 to 1000"},
      {R"("optimizer": {"betas": [0.9]})",
       "optimizer.betas in gpt.json: found [0.9]; allowed: two numbers from 0 to 0.9999999"},
      {R"("precision": {"mode": "fp16"})",
       R"(precision.mode in gpt.json: found "fp16"; allowed: "fp32" | "tf32" | "bf16" | "fp8")"},
      {R"("precision": "bf16")",
       R"(precision in gpt.json: found "bf16"; allowed: an object with mode, fallback, fp8)"},
      {R"("output": {"dir": ""})", R"(output.dir in gpt.json: found ""; allowed: non-empty string)"},
      {R"("output": {"dir": "a\u0000b"})",
       R"(output.dir in gpt.json: found "a\u0000b"; allowed: non-empty string)"},
      {R"("name": "a/b")", R"(name in gpt.json: found "a/b"; allowed: the name of a folder, without / { })"},
      {R"("name": "..")", R"(name in gpt.json: found ".."; allowed: the name of a folder, without / { })"},
  }));
  CHECK(refusal(with(rest)) == message);
}

TEST_CASE("config: data.train and data.val take a string or a list", "[config]") {
  CHECK(parse(R"({"data": {"train": ["a", "b"], "val": ["c"]}})").data.val == std::vector<std::string>{"c"});
  const std::string allowed = "; allowed: non-empty string | list of non-empty strings";
  CHECK(refusal(R"({"data": {"train": []}})") == "data.train in gpt.json: found []" + allowed);
  CHECK(refusal(R"({"data": {"train": ["a", ""]}})") ==
        "data.train in gpt.json: found [\"a\",\"\"]" + allowed);
  CHECK(refusal(R"({"data": {"train": null}})") == "data.train in gpt.json: found null" + allowed);
  for (const char* text : {"{}", R"({"data": {}})"})
    CHECK(refusal(text) == "data.train in gpt.json: found nothing" + allowed +
                               " (Path, glob or list of them: shards or text to train on)");
  CHECK(refusal(R"({"data": "x.txt"})") ==
        "data in gpt.json: found \"x.txt\"; allowed: an object with train, val, val_fraction, tokenizer, "
        "format, seed");
}

TEST_CASE("config: an unknown key names the nearest known one", "[config]") {
  const std::string top = "name, device, threads, model, precision, data, train, optimizer, parallel, output";
  CHECK(refusal(with(R"("parallel": {"zeor": 1})")) ==
        "parallel.zeor in gpt.json: unknown key, did you mean \"parallel.zero\"?; allowed: zero, transport, "
        "reduce, timeout_s");
  CHECK(refusal(with(R"("treads": 1)")) ==
        "treads in gpt.json: unknown key, did you mean \"threads\"?; allowed: " + top);
  // The right key in the wrong place, a misspelt one in the wrong place, and a path as a key.
  CHECK(refusal(with(R"("parallel": {"lr": 1})")) ==
        "parallel.lr in gpt.json: unknown key, did you mean \"optimizer.lr\"?; allowed: zero, transport, "
        "reduce, timeout_s");
  CHECK(refusal(with(R"("learning_rate": 1)")) == "learning_rate in gpt.json: unknown key; allowed: " + top);
  CHECK(refusal(with(R"("chanels": 1)")) ==
        "chanels in gpt.json: unknown key, did you mean \"model.channels\"?; allowed: " + top);
  CHECK(refusal(with(R"("model.layers": 1)")) ==
        "\"model.layers\" in gpt.json: unknown key, did you mean \"layers\" inside \"model\"?; allowed: " +
            top);
  CHECK(refusal(with(R"("a\nb": 1)")) == "\"a\\nb\" in gpt.json: unknown key; allowed: " + top);
}

TEST_CASE("config: checks across fields", "[config]") {
  const auto [rest, message] = GENERATE(table<std::string, std::string>({
      {R"("model": {"heads": 7})",
       "model.heads in gpt.json: found 7, which does not divide model.channels = 768; allowed: a divisor of "
       "it"},
      {R"("model": {"heads": 64})",
       "model.heads in gpt.json: found 64, so a head of 768 / 64 = 12; allowed: heads whose size is a "
       "multiple "
       "of 8 up to 256"},
      {R"("model": {"heads": 2})",
       "model.heads in gpt.json: found 2, so a head of 768 / 2 = 384; allowed: heads whose size is a "
       "multiple "
       "of 8 up to 256"},
      {R"("train": {"steps": 1, "epochs": 1})",
       "train in gpt.json: found steps and epochs; allowed: at most one of steps, tokens, epochs"},
      {R"("train": {"tokens_per_step": 1, "accumulate": 1})",
       "train in gpt.json: found tokens_per_step and accumulate; allowed: at most one of them"},
      {R"("train": {"sequence": 1025})",
       "train.sequence in gpt.json: found 1025; allowed: up to model.context, 1024"},
      {R"("train": {"accumulate": 65536, "micro_batch": 65536})",
       "train.micro_batch in gpt.json: found 65536; with 65536 micro-batches a step and 1024 tokens a "
       "sequence "
       "allowed: steps of up to 4294967296 tokens"},
      {R"("optimizer": {"min_lr": 0.1})",
       "optimizer.min_lr in gpt.json: found 0.1; allowed: at most optimizer.lr, 0.0006"},
      {R"("precision": {"fp8": {"skip_first_layers": 6, "skip_last_layers": 6}})",
       "precision.fp8.skip_first_layers in gpt.json: found 6, with skip_last_layers 6; allowed: together "
       "less "
       "than model.layers, 12"},
  }));
  CHECK(refusal(with(rest)) == message);
  CHECK(refusal(R"({"data": {"train": "x", "val": "y", "val_fraction": 0.1}})") ==
        "data in gpt.json: found val and val_fraction; allowed: at most one of them");
}

TEST_CASE("config: what single precision or the masks round away is refused", "[config]") {
  const auto at = [](const char* section, const char* key, const char* value) {
    return refusal(with(fmt::format(R"("{}": {{"{}": {}}})", section, key, value)));
  };
  CHECK(at("optimizer", "betas", "[0.9, 0.99999999]") ==
        "optimizer.betas in gpt.json: found [0.9,0.99999999]; allowed: two numbers from 0 to 0.9999999");
  CHECK(at("optimizer", "betas", "[0.9999999, 0]").empty());
  CHECK(static_cast<float>(0.9999999) < 1);
  CHECK(at("optimizer", "clip", "1e-40") ==
        "optimizer.clip in gpt.json: found 1e-40; allowed: 0, or from 1e-30 to 1e+30");
  CHECK_FALSE(at("optimizer", "lr", "1e-46").empty());
  CHECK_FALSE(at("model", "norm_eps", "1e-46").empty());
  CHECK_FALSE(at("model", "norm_eps", "0.99999999").empty());
  CHECK(at("model", "dropout", "0.0019") ==
        "model.dropout in gpt.json: found 0.0019, of which steps of 1/256 leave nothing; allowed: 0, or from "
        "1/512 (0.001953125) to 0.99");
  CHECK(at("model", "dropout", "0.001953125").empty());
  CHECK(at("model", "dropout", "0").empty());
}

TEST_CASE("config: bounds across fields are themselves allowed", "[config]") {
  for (const char* rest : {R"("model": {"heads": 3})", R"("model": {"heads": 96})",
                           R"("train": {"sequence": 1024})", R"("optimizer": {"min_lr": 6e-4})",
                           R"("train": {"tokens_per_step": null, "accumulate": 2, "steps": 3})",
                           R"("precision": {"fp8": {"skip_first_layers": 5, "skip_last_layers": 6}})"})
    CHECK(refusal(with(rest)).empty());
  CHECK(refusal(with(R"("model": {"init_from": 3, "heads": 7})")) ==
        "model.init_from in gpt.json: found 3; allowed: non-empty string | null");
  // Of a model to start from only that model knows the shape.
  CHECK(refusal(with(R"("model": {"init_from": "m", "heads": 7}, "train": {"sequence": 2048})")).empty());
}

TEST_CASE("config: all faults of a file are reported together", "[config]") {
  CHECK(
      refusal(R"({ "data": {"val": 3, "trian": "x"},
                     "model": {"layers": 0, "layers": 1, "heads": 7},
                     "train": {"steps": "many", "tokens": 5, "epochs": 1, "sequence": 2000},
                     "threads": -1 })") ==
      "model.layers in gpt.json line 2: found a second time; allowed: each key once\n"
      "data.trian in gpt.json: unknown key, did you mean \"data.train\"?; allowed: train, val, val_fraction, "
      "tokenizer, format, seed\n"
      "threads in gpt.json: found -1; allowed: integer from 0 to 4096\n"
      "model.layers in gpt.json: found 0; allowed: integer from 1 to 1024\n"
      "data.train in gpt.json: found nothing; allowed: non-empty string | list of non-empty strings (Path, "
      "glob or list of them: "
      "shards or text to train on)\n"
      "data.val in gpt.json: found 3; allowed: non-empty string | list of non-empty strings | null\n"
      "train.steps in gpt.json: found \"many\"; allowed: integer from 1 to 1000000000 | null\n"
      "model.heads in gpt.json: found 7, which does not divide model.channels = 768; allowed: a divisor of "
      "it\n"
      "train.sequence in gpt.json: found 2000; allowed: up to model.context, 1024");
  // A file of another kind does not flood the terminal.
  std::string strange = "{";
  for (int i = 0; i < 2000; ++i) strange += "\"unknown_" + std::to_string(i) + "\": 1,";
  const std::string message = refusal(strange + "\"x\": 1}");
  CHECK(std::count(message.begin(), message.end(), '\n') == 50);
  CHECK_THAT(message, ContainsSubstring("\ngpt.json: and 1952 faults more"));
}

TEST_CASE("config: overrides take JSON, else a string, and win over the file", "[config]") {
  const Config c =
      parse(R"({"data": {"train": "x"}, "train": {"steps": 5}})", {{"train.steps", "7"},
                                                                   {"precision.mode", "fp32"},
                                                                   {"precision.fp8.fast_accum.dgrad", "true"},
                                                                   {"data.train", R"(["a", "b"])"},
                                                                   {"data.val", "//server/share"},
                                                                   {"name", "\"007\""},
                                                                   {"optimizer.lr", "1e-3"},
                                                                   {"optimizer.lr", "2e-3"},
                                                                   {"train.max_minutes", "null"}});
  CHECK(c.train.steps == 7);
  CHECK(c.precision.mode == "fp32");
  CHECK(c.precision.fp8.fast_accum.dgrad);
  CHECK(c.data.train == std::vector<std::string>{"a", "b"});
  CHECK(c.data.val == std::vector<std::string>{"//server/share"});
  CHECK(c.name == "007");
  CHECK(c.output.dir == "runs/007");
  CHECK(c.optimizer.lr == 2e-3);
  // One can repair what the file lacks or has wrong.
  CHECK(refusal("{}", {{"data.train", "x"}}).empty());
  CHECK(refusal(with(R"("threads": "many")"), {{"threads", "2"}}).empty());
  CHECK(refusal(with(R"("train": 3)"), {{"train.steps", "2"}}) ==
        refusal(with(R"("train": 3)"), {{"train.seed", "2"}}));
}

TEST_CASE("config: faults of overrides", "[config]") {
  const std::string text = R"({"data": {"train": "x"}})";
  CHECK(refusal(text, {{"train.steps", "many"}}) ==
        "train.steps in the override of gpt.json: found \"many\"; allowed: integer from 1 to 1000000000 | "
        "null");
  CHECK(refusal(text, {{"train.steps", ""}}) ==
        "train.steps in the override of gpt.json: found \"\"; allowed: integer from 1 to 1000000000 | null");
  CHECK(refusal(text, {{"model.heads", "5"}}) ==
        "model.heads in the override of gpt.json: found 5, which does not divide model.channels = 768; "
        "allowed: "
        "a divisor of it");
  CHECK(refusal(text, {{"parallel.zeor", "1"}}) ==
        "parallel.zeor in the override of gpt.json: unknown key, did you mean \"parallel.zero\"?; allowed: "
        "zero, "
        "transport, reduce, timeout_s");
  CHECK_THAT(refusal(text, {{"seed", "1"}}),
             ContainsSubstring("did you mean \"data.seed\" or \"train.seed\"?"));
  CHECK_THAT(refusal(text, {{"modle.layers", "1"}}), ContainsSubstring("did you mean \"model.layers\"?"));
  CHECK_THAT(refusal(text, {{"output", "x"}}),
             ContainsSubstring("output in the override of gpt.json: found a section; allowed: output.dir, "
                               "output.peak_tflops"));
  CHECK_FALSE(refusal(text, {{"", "x"}}).empty());
  CHECK_FALSE(refusal(text, {{".", "x"}}).empty());
  CHECK_FALSE(refusal(text, {{"name.x", "x"}}).empty());
  CHECK_THAT(refusal(text, {{"threads", std::string(100000, '[')}}), ContainsSubstring("allowed: integer"));
  CHECK_THAT(refusal(text, {{"output.dir", "\xFF"}}), ContainsSubstring("allowed: a string in UTF-8"));

  CHECK(parse_override("a.b=c=d").path == "a.b");
  CHECK(parse_override("a.b=c=d").value == "c=d");
  CHECK(parse_override("a.b=").value.empty());
  for (const char* wrong : {"a.b", "=5", ""}) CHECK_THROWS_AS(parse_override(wrong), RequestError);
}

TEST_CASE("config: variables of the environment are expanded", "[config]") {
  const ScopedVariable corpus("OCTAVO_TEST_CORPUS", "/big/disk");
  const ScopedVariable empty("OCTAVO_TEST_EMPTY", "");
  const ScopedVariable bytes("OCTAVO_TEST_BYTES", "\xFF");
  const auto dir = [](const std::string& text) {
    return parse(with(R"("output": {"dir": ")" + text + "\"}")).output.dir;
  };
  CHECK(dir("${OCTAVO_TEST_CORPUS}/a${OCTAVO_TEST_EMPTY}${OCTAVO_TEST_CORPUS}") == "/big/disk/a/big/disk");
  CHECK(dir("$HOME $ $$ {x} $") == "$HOME $ $$ {x} $");
  CHECK(dir("$${OCTAVO_TEST_CORPUS}") == "${OCTAVO_TEST_CORPUS}");
  CHECK(parse(R"({"data": {"train": ["${OCTAVO_TEST_CORPUS}/*.bin", "b"]}})").data.train[0] ==
        "/big/disk/*.bin");
  CHECK(parse("{}", {{"data.train", "${OCTAVO_TEST_CORPUS}/x"}}).data.train[0] == "/big/disk/x");

  const auto message = [](const std::string& text) {
    return refusal(with(R"("output": {"dir": ")" + text + "\"}"));
  };
  CHECK(
      message("${OCTAVO_TEST_NOT_SET}/x") ==
      "output.dir in gpt.json: found ${OCTAVO_TEST_NOT_SET}, which the environment does not have; allowed: a "
      "variable that is set");
  CHECK(message("a${1x}") ==
        "output.dir in gpt.json: found \"${1x}\"; allowed: ${NAME}, or $${ for ${ itself");
  CHECK_THAT(message("${OPEN"), ContainsSubstring("found \"${OPEN\"; allowed: ${NAME}"));
  CHECK_THAT(message("${}"), ContainsSubstring("allowed: ${NAME}"));
  CHECK_THAT(message("${OCTAVO_TEST_EMPTY}"), ContainsSubstring("found \"\"; allowed: non-empty string"));
  CHECK_THAT(message("${OCTAVO_TEST_BYTES}"), ContainsSubstring("allowed: a string in UTF-8"));
}

TEST_CASE("config: text that looks like a variable survives dump and reading", "[config]") {
  for (const char* text : {"$${A}", "$$${A}", "$${$${", "$$"}) {
    const Config config = parse("{}", {{"data.train", text}, {"data.val", "[\"$${B}\", \"c\"]"}});
    CHECK(config.data.val[0] == "${B}");
    CHECK(compare_configs(parse(dump_config(config).dump()), config).size() == 0);
  }
}

TEST_CASE("config: differences are listed by path", "[config]") {
  const Config left = parse(R"({"data": {"train": "x"}})");
  const Config right = parse(R"({"data": {"train": ["x", "y"]}, "train": {"steps": 3, "micro_batch": 2}})");
  const std::vector<ConfigDifference> differences = compare_configs(left, right);
  REQUIRE(differences.size() == 3);
  CHECK(differences[0].path == "data.train");
  CHECK(differences[0].left == "\"x\"");
  CHECK(differences[0].right == "[\"x\",\"y\"]");
  CHECK(differences[1].path == "train.steps");
  CHECK(differences[1].left == "null");
  CHECK(differences[1].right == "3");
  CHECK(differences[2].left == "\"auto\"");
  CHECK(compare_configs(right, right).empty());
}

TEST_CASE("config: the nearest word, and none where none is near", "[config]") {
  const std::vector<std::string> words{"layers", "lr", "eps", "min_lr", "steps", "max_minutes"};
  CHECK(nearest_word("layesr", words) == "layers");
  CHECK(nearest_word("layer", words) == "layers");
  CHECK(nearest_word("Layers", words) == "layers");
  CHECK(nearest_word("l", words) == "lr");
  CHECK(nearest_word("step", words) == "steps");
  CHECK(nearest_word("min-lr", words) == "min_lr");
  CHECK(nearest_word("max_minute", words) == "max_minutes");
  CHECK(nearest_word("wd", words).empty());
  CHECK(nearest_word("zzzzzz", words).empty());
  CHECK(nearest_word("", words).empty());
  CHECK(nearest_word("x", {}).empty());
  CHECK(nearest_word(std::string(1000000, 'x'), words).empty());
}

TEST_CASE("config: files that are none", "[config]") {
  const TempDir dir;
  const std::string missing = (dir.path / "none.json").string();
  CHECK(load_refusal(missing) ==
        missing + ": cannot be read (No such file or directory); allowed: a config file");
  CHECK(load_refusal(dir.path.string()) == dir.path.string() + ": found a folder; allowed: a config file");
  CHECK(load_refusal("/dev/zero") ==
        "/dev/zero: found more than 1048576 bytes; allowed: a config file of up to 1048576");
  const std::string empty = dir.file("empty.json", "");
  CHECK(load_refusal(empty) == empty + ": found no text; allowed: JSON");
  const std::string list = dir.file("list.json", "[1]");
  CHECK(load_refusal(list) == list + ": found [1]; allowed: an object { \"data\": { \"train\": ... } }");
  const std::string good = dir.file("gpt 2.x.json", "\xEF\xBB\xBF{\"data\": {\"train\": \"x\"}}\r\n");
  CHECK(load_config(good).name == "gpt 2.x");
  const std::string braces = dir.file("a{b}.json", "{\"data\": {\"train\": \"x\"}}");
  CHECK_THAT(load_refusal(braces), ContainsSubstring("found \"a{b}\", from the file's name; allowed:"));
}

TEST_CASE("config: every beginning of a file is refused, cleanly", "[config]") {
  const std::string whole = kOther;
  REQUIRE(refusal(whole).empty());
  for (std::size_t n = 0; n < whole.size(); ++n) {
    INFO("first " << n << " bytes");
    const std::string message = refusal(whole.substr(0, n));
    REQUIRE(message.starts_with("gpt.json"));
    REQUIRE(message.find('\n') == std::string::npos);
    REQUIRE_THAT(message, ContainsSubstring("; allowed: "));
  }
}

TEST_CASE("config: damaged files are read or refused, nothing else", "[config]") {
  const std::string whole = kOther;
  std::uint32_t state = 1;
  const auto next = [&state] { return state = state * 1664525u + 1013904223u; };
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = whole;
    for (int edits = 0; edits < 3; ++edits) {
      const std::size_t at = (next() >> 8) % text.size();
      switch ((next() >> 8) % 3) {
        case 0:
          text[at] = static_cast<char>(next() >> 24);
          break;
        case 1:
          text.erase(at, 1 + (next() >> 8) % 20);
          break;
        default:
          text.insert(at, text.substr((next() >> 8) % text.size(), 10));
      }
    }
    try {
      const Config config = parse(text);
      REQUIRE(compare_configs(parse(dump_config(config).dump()), config).empty());
    } catch (const RequestError&) {
      ++refused;
    }
  }
  CHECK(refused > 1500);
  CHECK(refused < 3000);
}

TEST_CASE("config: the command prints dump, verdict, schema and table", "[config]") {
  const TempDir dir;
  const std::string file = dir.file("small.json", R"({"data": {"train": "x"}, "model": {"layers": 2}})");
  CHECK(run_command({file}) == "0 " + dump_config(load_config(file)).dump(2) + "\n");
  CHECK(run_command({"--check", file}) == "0 ok\n");
  CHECK(run_command({"--schema"}) == "0 " + config_schema().dump(2) + "\n");
  CHECK(run_command({"--explain"}) == "0 " + explain_config());
  CHECK(run_command({}) ==
        "refused octavo config: found no file; allowed: a config file, --schema or --explain");
  CHECK_THAT(run_command({"--schema", file}), ContainsSubstring("refused octavo config: found " + file));
  CHECK_THROWS_AS(run_command({"--schema", "--check"}), CLI::ParseError);
  const std::string bad = dir.file("bad.json", R"({"data": {"train": "x"}, "threads": -1})");
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{bad}, {"--check", bad}})
    CHECK(run_command(arguments) ==
          "refused threads in " + bad + ": found -1; allowed: integer from 0 to 4096");
}
