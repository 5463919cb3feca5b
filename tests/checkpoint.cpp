// Checkpoints: the same bits come back; complete or absent, whatever kills the writer; which are kept, and
// found.
#include "checkpoint.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "captured_output.h"
#include "catch.h"
#include "commands/commands.h"
#include "crc32.h"
#include "error.h"
#include "file_size_limit.h"
#include "files.h"
#include "refusal.h"
#include "safetensors.h"
#include "temp_dir.h"

using namespace octavo;
using octavo::testing::captured_output;
using octavo::testing::FileSizeLimit;
using octavo::testing::refusal;
using octavo::testing::TempDir;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

// A model of odd sizes with arbitrary bits in every arena, and the content of its checkpoints.
struct Example {
  ModelShape shape;
  ParameterTable table;
  std::vector<float> masters, moment1, moment2;
  CheckpointState state;

  explicit Example(std::int64_t channels = 24) {
    shape.layers = 1, shape.channels = channels, shape.heads = shape.kv_heads = 3, shape.context = 7;
    shape.vocab = 257, shape.padded_vocab = 320;
    table = make_parameter_table(shape);
    masters = bits(1), moment1 = bits(2), moment2 = bits(3);
    state.samples = 160, state.tokens = 1120, state.updates = 18, state.skipped = 2, state.bad_in_row = 1;
    state.seconds = 0.1, state.train_loss = 2.0 / 3.0, state.best_val_loss = 1.1, state.sessions = 2;
    state.seed = -5, state.data_seed = std::numeric_limits<std::int64_t>::max(), state.sequence = 7;
    state.peak_memory_gib = 0.25, state.arithmetic = "kernels for AVX2";
    state.bit_equality_ends = {{.step = 5, .was = "kernels for AVX-512", .now = "kernels for AVX2"}};
    state.data_fingerprint = "abc", state.tokenizer_hash = "def", state.mode = "bf16";
  }

  std::vector<float> bits(std::uint32_t salt) const {
    std::vector<float> arena(static_cast<std::size_t>(table.arena_size), 0.0f);
    for (const Parameter& p : table.parameters)
      for (std::int64_t i = p.offset; i < p.offset + p.saved_rows * p.cols; ++i)
        arena[static_cast<std::size_t>(i)] =
            std::bit_cast<float>((static_cast<std::uint32_t>(i) + salt) * 2654435761u);
    return arena;
  }

  CheckpointContent content(std::int64_t step, std::optional<double> val_loss = {}) const {
    CheckpointContent c{.table = table,
                        .shape = shape,
                        .details = {.eot = 256},
                        .masters = masters.data(),
                        .moment1 = moment1.data(),
                        .moment2 = moment2.data(),
                        .state = state,
                        .tokenizer = bytes_tokenizer().get()};
    c.state.step = step;
    c.state.val_loss = val_loss;
    return c;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

std::vector<std::int64_t> steps_in(const fs::path& checkpoints) {
  std::vector<std::int64_t> steps;
  for (const Checkpoint& c : list_checkpoints(checkpoints)) steps.push_back(c.state.step);
  return steps;
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const RequestError& e) {
    return e.what();
  } catch (const RunError& e) {
    return e.what();
  }
  return "no error";
}

void change_json(const fs::path& file, const std::function<void(Json&)>& change) {
  Json json = Json::parse(read_whole_file(file));
  change(json);
  write_file_atomically(file, json.dump());
}

}  // namespace

TEST_CASE("a checkpoint gives back the bits of masters, moments and counters") {
  const TempDir run;
  const fs::path checkpoints = run.path / "checkpoints";
  const Example e;
  const fs::path folder = write_checkpoint(checkpoints, e.content(20, 1.2));
  CHECK(folder == checkpoints / "step_00000020");
  CHECK(names_in(checkpoints) == std::set<std::string>{"step_00000020"});
  CHECK(names_in(folder) == std::set<std::string>{"config.json", "model.safetensors",
                                                  "optimizer_rank0000.safetensors", "state.json",
                                                  "tokenizer.json", "tokenizer_config.json"});

  const std::optional<Checkpoint> c = newest_checkpoint(checkpoints);
  REQUIRE(c.has_value());
  std::vector<float> masters(e.masters.size(), 7.0f), m(masters), v(masters);
  read_weights(c->folder, e.table, masters.data());
  read_moments(*c, e.table, m.data(), v.data());
  CHECK(same_bits(masters, e.masters));
  CHECK(same_bits(m, e.moment1));
  CHECK(same_bits(v, e.moment2));

  const CheckpointState& s = c->state;
  CHECK(s.step == 20);
  CHECK(s.samples == 160);
  CHECK(s.tokens == 1120);
  CHECK(s.updates == 18);
  CHECK(s.skipped == 2);
  CHECK(s.bad_in_row == 1);
  CHECK(s.seconds == 0.1);
  CHECK(s.train_loss == std::optional<double>(2.0 / 3.0));
  CHECK(s.val_loss == std::optional<double>(1.2));
  CHECK(s.best_val_loss == std::optional<double>(1.1));
  CHECK(s.sessions == 2);
  CHECK(s.peak_memory_gib == 0.25);
  CHECK(s.arithmetic == "kernels for AVX2");
  CHECK(s.bit_equality_ends == e.state.bit_equality_ends);
  CHECK(s.seed == -5);
  CHECK(s.data_seed == std::numeric_limits<std::int64_t>::max());
  CHECK(s.sequence == 7);
  CHECK(s.data_fingerprint == "abc");
  CHECK(s.tokenizer_hash == "def");
  CHECK(s.mode == "bf16");
  CHECK(Json::parse(read_whole_file(folder / "state.json"))["format_version"] == 1);
  CHECK(find_tokenizer(folder.string())->hash() == bytes_tokenizer()->hash());

  // The estimate is never too small, and close.
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) bytes += entry.file_size();
  CHECK(checkpoint_bytes(e.table, bytes_tokenizer().get()) >= bytes);
  CHECK(checkpoint_bytes(e.table, bytes_tokenizer().get()) <= bytes + 100000);
}

TEST_CASE("losses that are not measured or not finite, and a checkpoint without a tokenizer") {
  const TempDir run;
  const Example e;
  CheckpointContent content = e.content(3, std::nan(""));
  content.tokenizer = nullptr;
  content.state.train_loss = std::numeric_limits<double>::infinity();
  content.state.best_val_loss.reset();
  const fs::path folder = write_checkpoint(run.path, content);
  CHECK(!fs::exists(folder / "tokenizer.json"));
  const CheckpointState s = newest_checkpoint(run.path)->state;
  CHECK(!s.train_loss);
  CHECK(!s.val_loss);
  CHECK(!s.best_val_loss);
  CHECK(!best_checkpoint(run.path));
}

TEST_CASE("a checkpoint of the same step replaces the older one, complete or not") {
  const TempDir run;
  const Example e;
  write_checkpoint(run.path, e.content(5, 3.0));
  write_checkpoint(run.path, e.content(5, 2.0));
  CHECK(newest_checkpoint(run.path)->state.val_loss == std::optional<double>(2.0));
  fs::remove(run.path / "step_00000005" / "config.json");
  run.file("step_00000005/stranger", "");
  CHECK(steps_in(run.path).empty());
  write_checkpoint(run.path, e.content(5, 1.0));
  CHECK(newest_checkpoint(run.path)->state.val_loss == std::optional<double>(1.0));
  CHECK(!fs::exists(run.path / "step_00000005" / "stranger"));
  CHECK(names_in(run.path) == std::set<std::string>{"step_00000005"});
}

TEST_CASE("the newest complete checkpoint among broken ones") {
  const TempDir run;
  const Example e;
  for (std::int64_t step : {10, 20, 30, 40, 50, 60, 70}) write_checkpoint(run.path, e.content(step));
  fs::remove(run.path / "step_00000030" / "state.json");
  fs::resize_file(run.path / "step_00000040" / "model.safetensors", 1000);
  fs::remove(run.path / "step_00000050" / "tokenizer.json");
  change_json(run.path / "step_00000060" / "state.json", [](Json& json) { json["format_version"] = 2; });
  fs::rename(run.path / "step_00000070", run.path / "step_00000080");
  fs::create_directory(run.path / "step_00000090");
  run.file("step_00000100", "a file");
  run.file("step_110/state.json", "another name");
  run.file(".step_00000120.tmp99/state.json", "unfinished");
  std::vector<std::string> skipped;
  CHECK(newest_checkpoint(run.path, &skipped)->state.step == 20);
  CHECK(steps_in(run.path) == std::vector<std::int64_t>{10, 20});
  REQUIRE(skipped.size() == 6);
  CHECK_THAT(skipped[0], ContainsSubstring("step_00000030 is not complete: cannot read"));
  CHECK_THAT(skipped[1], ContainsSubstring("model.safetensors: found 1000 bytes; allowed: "));
  CHECK_THAT(skipped[2], ContainsSubstring("tokenizer.json: No such file"));
  CHECK_THAT(skipped[3], ContainsSubstring("found 2; allowed: 1"));
  CHECK_THAT(skipped[4], ContainsSubstring("found 70; allowed: 80, as its folder is named"));
  CHECK_THAT(skipped[5], ContainsSubstring("step_00000090 is not complete"));
}

TEST_CASE("state.json with a fault is refused by key") {
  const TempDir run;
  const Example e;
  const fs::path state = write_checkpoint(run.path, e.content(4)) / "state.json";
  const std::string good = read_whole_file(state);
  struct Case {
    const char* key;
    Json value;
    const char* message;
  };
  for (const Case& c :
       {Case{"step", "4", "step in "}, Case{"step", -4, "step in "},
        Case{"samples", 1.5, "found 1.5; allowed: an integer"}, Case{"updates", -1, "updates in "},
        Case{"val_loss", "low", "val_loss in "}, Case{"seconds", nullptr, "seconds in "},
        Case{"data_fingerprint", 3, "found 3; allowed: a text"}, Case{"precision", "bf16", "mode in "},
        Case{"files", Json::object(), "model.safetensors is missing"}, Case{"files", 1, "files in "}}) {
    change_json(state, [&](Json& json) { json[c.key] = c.value; });
    std::vector<std::string> skipped;
    CHECK(list_checkpoints(run.path, &skipped).empty());
    REQUIRE(skipped.size() == 1);
    CHECK_THAT(skipped[0], ContainsSubstring(c.message));
    CHECK(skipped[0].find('\n') == std::string::npos);
    write_file_atomically(state, good);
  }
  for (const char* key : {"step", "seed", "tokenizer_hash", "train_loss", "precision"}) {
    change_json(state, [&](Json& json) { json.erase(key); });
    CHECK(list_checkpoints(run.path).empty());
    write_file_atomically(state, good);
  }
  write_file_atomically(state, "{\"step\": 4");
  CHECK(list_checkpoints(run.path).empty());
  write_file_atomically(state, good);
  CHECK(steps_in(run.path) == std::vector<std::int64_t>{4});
}

TEST_CASE("one flipped byte in any file of a checkpoint is refused, with file, found and recorded sum") {
  const TempDir run;
  const Example e;
  const fs::path folder = write_checkpoint(run.path, e.content(10, 1.0));
  std::vector<float> m(e.masters.size()), v(m);
  const auto use = [&] {
    open_model(folder.string());
    read_moments(newest_checkpoint(run.path).value(), e.table, m.data(), v.data());
  };
  REQUIRE_NOTHROW(use());
  for (const std::string& name : names_in(folder)) {
    const std::string good = read_whole_file(folder / name);
    // All of the state, whose sum lies in itself; of the others the ends and the middle.
    const std::size_t stride = name == "state.json" ? 1 : std::max<std::size_t>(1, (good.size() - 1) / 2);
    for (std::size_t i = 0; i < good.size(); i += stride) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 1);
      run.file("step_00000010/" + name, bad);
      const std::string message = refusal(use);
      INFO(name << " byte " << i << ": " << message);
      CHECK_THAT(message, ContainsSubstring((folder / name).string()));
      if (name != "state.json")
        CHECK_THAT(message, ContainsSubstring("found CRC-32 ") && ContainsSubstring("as state.json says"));
    }
    write_file_atomically(folder / name, good);
  }
  CHECK_NOTHROW(use());
  // A checkpoint without sums is none of this version.
  change_json(folder / "state.json", [](Json& json) { json["files"]["config.json"] = 700; });
  CHECK_THAT(refusal(use), ContainsSubstring("bytes in "));
}

TEST_CASE("a writer killed at any moment leaves the older checkpoint and nothing that counts") {
  const TempDir run;
  const Example small, e(96);
  write_checkpoint(run.path, small.content(10));
  for (const int microseconds : {0, 100, 300, 1000, 3000, 10000}) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      try {
        for (std::int64_t step = 20;; step += 10) write_checkpoint(run.path, e.content(step));
      } catch (...) {
        _exit(1);  // never back into the test's runner
      }
    }
    usleep(static_cast<useconds_t>(microseconds));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
    std::vector<std::string> skipped;
    const std::vector<Checkpoint> found = list_checkpoints(run.path, &skipped);
    CHECK(skipped.empty());
    REQUIRE(!found.empty());
    CHECK(found.front().state.step == 10);
    for (std::size_t i = 1; i < found.size(); ++i) {
      std::vector<float> m(e.masters.size()), v(m), masters(m);
      read_moments(found[i], e.table, m.data(), v.data());
      read_weights(found[i].folder, e.table, masters.data());
      CHECK(same_bits(masters, e.masters));
      CHECK(same_bits(v, e.moment2));
      fs::remove_all(found[i].folder);
    }
  }
  // What the killed ones left goes with the next checkpoint.
  run.file(".step_00000020.tmp1/model.safetensors", "half");
  run.file(".step_00000030.old/model.safetensors", "half removed");
  write_checkpoint(run.path, small.content(11));
  CHECK(names_in(run.path) == std::set<std::string>{"step_00000010", "step_00000011"});
}

TEST_CASE("a full disk: the error names file and reason, and nothing is left behind") {
  const TempDir run;
  const Example e;
  write_checkpoint(run.path, e.content(10));
  const std::uintmax_t model = fs::file_size(run.path / "step_00000010" / "model.safetensors");
  // Full in the model, in the moments (twice as large).
  for (const std::uintmax_t limit : {std::uintmax_t{1000}, model / 2, model + 5000}) {
    const FileSizeLimit full(limit);
    const std::string message = message_of([&] { write_checkpoint(run.path, e.content(20)); });
    CHECK_THAT(message, ContainsSubstring("cannot write"));
    CHECK_THAT(message, ContainsSubstring("File too large"));
    CHECK_THAT(message,
               ContainsSubstring(limit <= model ? "model.safetensors" : "optimizer_rank0000.safetensors"));
    CHECK_THROWS_AS(write_checkpoint(run.path, e.content(20)), RunError);
  }
  CHECK(names_in(run.path) == std::set<std::string>{"step_00000010"});
  CHECK(steps_in(run.path) == std::vector<std::int64_t>{10});
}

TEST_CASE("too little free space is refused before anything is written, with both numbers") {
  const TempDir run;
  const Example e;
  // A model that no disk holds: nothing of its arenas is read before the check.
  ModelShape huge = e.shape;
  huge.vocab = huge.padded_vocab = std::int64_t{1} << 50;
  const ParameterTable table = make_parameter_table(huge);
  const CheckpointContent content{.table = table,
                                  .shape = huge,
                                  .details = {},
                                  .masters = nullptr,
                                  .moment1 = nullptr,
                                  .moment2 = nullptr,
                                  .state = {}};
  const std::string message = message_of([&] { write_checkpoint(run.path / "checkpoints", content); });
  CHECK_THAT(message, ContainsSubstring("checkpoints/step_00000000: it needs 3092376453"));
  CHECK_THAT(message, ContainsSubstring("MiB free; nothing was written"));
  CHECK(names_in(run.path / "checkpoints").empty());
}

TEST_CASE("a place that cannot be written") {
  const TempDir run;
  const Example e;
  run.file("checkpoints", "a file");
  CHECK_THAT(message_of([&] { write_checkpoint(run.path / "checkpoints", e.content(1)); }),
             ContainsSubstring("cannot create"));
  CHECK_THROWS_AS(write_checkpoint(run.path / "checkpoints", e.content(1)), RunError);
  CHECK_THROWS_AS(list_checkpoints(run.path / "checkpoints"), RequestError);
  CHECK(list_checkpoints(run.path / "none").empty());
  CHECK(!newest_checkpoint(run.path / "none"));
}

TEST_CASE("the newest N are kept, and the best where that is asked for") {
  const Example e;
  const auto fill = [&](const fs::path& folder) {
    const std::vector<std::pair<std::int64_t, std::optional<double>>> losses{
        {10, 3.0}, {20, 1.5}, {30, 1.5}, {40, {}}, {50, 2.0}, {60, std::nan("")}};
    for (const auto& [step, loss] : losses) write_checkpoint(folder, e.content(step, loss));
  };
  struct Case {
    std::int64_t keep;
    bool best;
    std::vector<std::int64_t> left;
  };
  for (const Case& c :
       {Case{2, false, {50, 60}}, Case{2, true, {20, 50, 60}}, Case{1, true, {20, 60}}, Case{0, false, {60}},
        Case{5, true, {20, 30, 40, 50, 60}}, Case{9, false, {10, 20, 30, 40, 50, 60}}}) {
    const TempDir run;
    fill(run.path);
    CHECK(best_checkpoint(run.path)->state.step == 20);
    prune_checkpoints(run.path, c.keep, c.best);
    CHECK(steps_in(run.path) == c.left);
    CHECK(names_in(run.path).size() == c.left.size());
  }
  // A broken one does not count for the N, and is nobody's to remove.
  const TempDir run;
  fill(run.path);
  fs::remove(run.path / "step_00000060" / "model.safetensors");
  prune_checkpoints(run.path, 1, false);
  CHECK(steps_in(run.path) == std::vector<std::int64_t>{50});
  CHECK(fs::exists(run.path / "step_00000060"));
}

TEST_CASE("moments that do not fit the model are refused with every name") {
  const TempDir run;
  const Example e;
  write_checkpoint(run.path, e.content(10));
  const Checkpoint c = *newest_checkpoint(run.path);
  std::vector<float> m(100000), v(m);

  ModelShape wider = e.shape;
  wider.context = 8;
  const std::string message =
      message_of([&] { read_moments(c, make_parameter_table(wider), m.data(), v.data()); });
  CHECK_THAT(message,
             ContainsSubstring("wpe.weight.m is [7,24] F32 (allowed: [8,24] F32); wpe.weight.v is [7,24]"));
  CHECK_THAT(message, ContainsSubstring("optimizer_rank0000.safetensors"));

  ModelShape deeper = e.shape;
  deeper.layers = 2;
  CHECK_THAT(message_of([&] { read_moments(c, make_parameter_table(deeper), m.data(), v.data()); }),
             ContainsSubstring("layer1.qkv.weight.m is missing"));
  ModelShape untied = e.shape;
  untied.tied = false;
  CHECK_THAT(message_of([&] { read_moments(c, make_parameter_table(untied), m.data(), v.data()); }),
             ContainsSubstring("head.weight.m is missing; head.weight.v is missing"));
  CHECK(message_of([&] { read_moments(c, e.table, m.data(), v.data()); }) == "no error");

  Checkpoint other = c;
  other.state.updates = 19;
  CHECK_THAT(message_of([&] { read_moments(other, e.table, m.data(), v.data()); }),
             ContainsSubstring("updates in the metadata of"));
  SafetensorsWriter writer(c.folder / "optimizer_rank0000.safetensors", {{"x", "F32", {1}}},
                           {{"format_version", "1"}, {"rank", "0"}, {"ranks", "2"}, {"updates", "18"}});
  writer.write("1234", 4);
  writer.finish();
  const fs::path file = c.folder / "optimizer_rank0000.safetensors";
  other.state.files[file.filename()] = {.bytes = static_cast<std::int64_t>(fs::file_size(file)),
                                        .crc32 = crc32_file(file)};
  CHECK_THAT(message_of([&] { read_moments(other, e.table, m.data(), v.data()); }),
             ContainsSubstring("ranks in the metadata of"));
}

TEST_CASE("what may not change on resume is refused by name, all at once") {
  const CheckpointState saved = Example().state;
  CHECK_NOTHROW(check_resumable(saved, saved, "run"));
  CheckpointState now = saved;
  now.mode = "fp32",
  now.tokenizer_hash = "";  // another precision may go on; an unknown tokenizer cannot be compared
  CHECK_NOTHROW(check_resumable(saved, now, "run"));
  now.seed = 6, now.data_seed = 1, now.sequence = 8, now.data_fingerprint = "abd", now.tokenizer_hash = "deg";
  const std::string message =
      message_of([&] { check_resumable(saved, now, "runs/x/checkpoints/step_00000020"); });
  for (const char* part :
       {"cannot resume from runs/x/checkpoints/step_00000020", "train.seed was -5, now 6",
        "data.seed was 9223372036854775807, now 1", "train.sequence was 7, now 8",
        "fingerprint was abc, now abd", "tokenizer's hash was def, now deg", "model.init_from"})
    CHECK_THAT(message, ContainsSubstring(part));
  CHECK_THROWS_AS(check_resumable(saved, now, "run"), RequestError);
}

TEST_CASE("a model is found in a run, its checkpoints, one checkpoint, and a Hugging Face folder") {
  const TempDir run;
  const Example e;
  const fs::path checkpoints = run.path / "checkpoints";
  write_checkpoint(checkpoints, e.content(10, 1.0));
  write_checkpoint(checkpoints, e.content(20, 2.0));
  const ModelFolder newest = open_model(run.path.string());
  CHECK(newest.folder == checkpoints / "step_00000020");
  CHECK(newest.shape.channels == 24);
  CHECK(newest.details.eot == 256);
  CHECK(newest.state->step == 20);
  CHECK(open_model(run.path.string() + "/").state->step == 20);
  CHECK(open_model(run.path.string(), CheckpointChoice::best).state->step == 10);
  CHECK(open_model(checkpoints.string()).state->step == 20);
  CHECK(open_model(checkpoints.string() + "/").state->step == 20);
  CHECK(open_model((checkpoints / "step_00000010").string()).state->step == 10);
  fs::remove(checkpoints / "step_00000010" / "optimizer_rank0000.safetensors");
  CHECK(open_model((checkpoints / "step_00000010").string()).state->step == 10);
  fs::remove(checkpoints / "step_00000010" / "state.json");
  CHECK(!open_model((checkpoints / "step_00000010").string()).state);

  CHECK_THAT(message_of([&] { open_model((run.path / "none").string()); }),
             ContainsSubstring("none: no such folder"));
  CHECK_THAT(message_of([&] { open_model(run.file("file", "")); }), ContainsSubstring("found a file"));
  const TempDir empty;
  CHECK_THAT(message_of([&] { open_model(empty.path.string()); }),
             ContainsSubstring("found no config.json and no complete checkpoint; allowed: a run's folder"));
  fs::create_directories(empty.path / "checkpoints/step_00000001");
  CHECK_THAT(message_of([&] { open_model(empty.path.string()); }),
             ContainsSubstring("no complete checkpoint: "));
  write_checkpoint(empty.path / "checkpoints", e.content(2));
  CHECK_THAT(message_of([&] { open_model(empty.path.string(), CheckpointChoice::best); }),
             ContainsSubstring("has a validation loss"));
}

TEST_CASE("octavo export writes a clean Hugging Face folder, and refuses a used one") {
  const TempDir run;
  const Example e;
  write_checkpoint(run.path / "checkpoints", e.content(10, 1.0));
  write_checkpoint(run.path / "checkpoints", e.content(20, 2.0));
  const auto exported = [](const std::vector<std::string>& arguments) {
    CLI::App app;
    Action action;
    register_export(app, action);
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    reversed.push_back("export");
    app.parse(reversed);
    return action();
  };
  const fs::path out = run.path / "out" / "model";
  int status = -1;
  const std::string text = captured_output([&] {
    status = exported({"--best", run.path.string(), out.string()});
  });
  CHECK(status == 0);
  CHECK_THAT(text, ContainsSubstring(out.string() + ": 13608 parameters of "));
  CHECK_THAT(text, ContainsSubstring("step_00000010 (step 10): model.safetensors, config.json"));
  CHECK(names_in(out) == std::set<std::string>{"config.json", "generation_config.json", "model.safetensors",
                                               "tokenizer.json", "tokenizer_config.json"});
  std::vector<float> masters(e.masters.size());
  read_weights(out, e.table, masters.data());
  CHECK(same_bits(masters, e.masters));
  CHECK(Json::parse(read_whole_file(out / "generation_config.json"))["eos_token_id"] == 256);
  CHECK(open_model(out.string()).shape.layers == 1);
  CHECK(names_in(run.path / "out").size() == 1);

  CHECK_THROWS_AS(exported({run.path.string(), out.string()}), RequestError);
  CHECK_THROWS_AS(exported({(run.path / "none").string(), (run.path / "new").string()}), RequestError);
  fs::resize_file(run.path / "checkpoints/step_00000010/model.safetensors", 100);
  CHECK_THROWS_AS(exported({(run.path / "checkpoints/step_00000010").string(), (run.path / "new").string()}),
                  RequestError);
  {
    const FileSizeLimit full(2000);
    CHECK_THROWS_AS(exported({run.path.string(), (run.path / "new").string()}), RunError);
  }
  CHECK(names_in(run.path) == std::set<std::string>{"checkpoints", "out"});
}
