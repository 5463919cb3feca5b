// `octavo train` as a process: exit statuses, one-line errors, signals.
#include <algorithm>
#include <chrono>
#include <thread>

#include "catch.h"
#include "small_run.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

/// A wrong request: status 2, one line, nothing written.
void check_refused(const SmallRun& s, const std::vector<std::string>& arguments, const std::string& part) {
  const ProgramResult r = run_program(s.dir.path, arguments);
  INFO(r.err);
  CHECK(r.status == 2);
  CHECK(r.err.substr(0, 8) == "octavo: ");
  CHECK(lines(r.err) == 1);
  CHECK(r.err.find(part) != std::string::npos);
  CHECK(r.out.empty());
  CHECK_FALSE(std::filesystem::exists(s.dir.path / "run"));
}

}  // namespace

TEST_CASE("train, sweep, eval, generate, export, diff and plot work together") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 8;
  s.dir.file("small.json", config.dump());
  const ProgramResult trained = run_program(s.dir.path, {"train", "small.json"});
  INFO(trained.err);
  REQUIRE(trained.status == 0);
  CHECK(trained.out.empty());

  const ProgramResult eval = run_program(s.dir.path, {"eval", "run", "--json", "--tokens", "500"});
  REQUIRE(eval.status == 0);
  const double val = read_metrics(s.dir.path / "run" / "metrics.jsonl").back().val_loss.value();
  CHECK(nlohmann::json::parse(eval.out)["loss"].get<double>() == Approx(val).epsilon(1e-5));

  const ProgramResult text =
      run_program(s.dir.path, {"generate", "run", "--prompt", "the ", "--tokens", "90"});
  REQUIRE(text.status == 0);
  CHECK(text.out.substr(0, 4) == "the ");
  CHECK(run_program(s.dir.path, {"generate", "run", "--prompt", "the ", "--tokens", "90"}).out == text.out);
  CHECK(
      run_program(s.dir.path, {"generate", "run", "--prompt", "the ", "--tokens", "90", "--seed", "7"}).out !=
      text.out);

  REQUIRE(run_program(s.dir.path, {"export", "run", "exported"}).status == 0);
  CHECK(run_program(s.dir.path, {"generate", "exported", "--prompt", "the ", "--tokens", "90"}).out ==
        text.out);

  const ProgramResult sweep = run_program(s.dir.path, {"sweep", "small.json", "--set", "train.steps=3"});
  INFO(sweep.err);
  REQUIRE(sweep.status == 0);
  CHECK(sweep.out.find("bf16") != std::string::npos);
  CHECK(std::filesystem::exists(s.dir.path / "runs/small_sweep/comparison.json"));
  const ProgramResult diff =
      run_program(s.dir.path, {"diff", "runs/small_sweep/fp32", "runs/small_sweep/bf16"});
  CHECK(diff.status == 0);
  CHECK(diff.out.find("precision.mode") != std::string::npos);
  CHECK(run_program(s.dir.path, {"plot", "run", "--terminal"}).status == 0);
}

TEST_CASE("wrong requests: status 2, one line, no half-made folder") {
  const SmallRun s;
  s.dir.file("good.json", s.json("fp32").dump());
  check_refused(s, {"train", "missing.json"}, "missing.json");
  check_refused(s, {"train", "good.json", "--set", "model.leyers=3"}, "model.layers");
  check_refused(s, {"train", "good.json", "--set", "model.heads=5"}, "model.heads");
  check_refused(s,
                {"train", "good.json", "--set", "train.micro_batch=4", "--set", "train.accumulate=null",
                 "--set", "train.tokens_per_step=222"},
                "train.micro_batch: found 4");
  check_refused(
      s, {"train", "good.json", "--set", "train.accumulate=null", "--set", "train.tokens_per_step=100"},
      "74 or 111");
  check_refused(s, {"train", "good.json", "--set", "device=cuda"}, "device");
  check_refused(s, {"train", "good.json", "--set", "precision.mode=tf32"}, "\"mode\": \"fp32\"");
  check_refused(s, {"train", "good.json", "--set", "data.train=nothing*.txt"}, "nothing*.txt");
  check_refused(s, {"train", "good.json", "--set", "model.vocab=100"}, "vocab");
  check_refused(s, {"train", "good.json", "--set", "train.sequence=38"}, "sequence");
  check_refused(s, {"train", "good.json", "--frobnicate"}, "--frobnicate");
  check_refused(s, {"train"}, "found no CONFIG; allowed: CONFIG [--set KEY=VALUE]");
  check_refused(s, {"train", "good.json", "--set", "output.dir=."}, "output.dir=run");
  check_refused(s, {"tran", "good.json"}, "did you mean \"train\"?");
}

TEST_CASE("a run that was moved goes on where it lies now") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 4;
  s.dir.file("c.json", config.dump());
  REQUIRE(run_program(s.dir.path, {"train", "c.json"}).status == 0);
  std::filesystem::copy(s.dir.path / "run", s.dir.path / "copy", std::filesystem::copy_options::recursive);
  const ProgramResult r = run_program(s.dir.path, {"train", "copy", "--resume", "--set", "train.steps=6"});
  INFO(r.err);
  REQUIRE(r.status == 0);
  CHECK(read_metrics(s.dir.path / "copy" / "metrics.jsonl").size() == 6);
  CHECK(read_metrics(s.dir.path / "run" / "metrics.jsonl").size() == 4);
}

TEST_CASE("damaged starting weights are refused before a folder is made or emptied") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 4;
  s.dir.file("c.json", config.dump());
  REQUIRE(run_program(s.dir.path, {"train", "c.json", "--set", "output.dir=first"}).status == 0);
  REQUIRE(run_program(s.dir.path, {"export", "first", "model"}).status == 0);
  std::filesystem::resize_file(s.dir.path / "model" / "model.safetensors", 1000);
  config["model"] = {{"init_from", (s.dir.path / "model").string()}};
  s.dir.file("from.json", config.dump());
  check_refused(s, {"train", "from.json"}, "model.safetensors");
}

TEST_CASE("a flipped byte in a checkpoint is refused by every command that uses it") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 4;
  s.dir.file("c.json", config.dump());
  REQUIRE(run_program(s.dir.path, {"train", "c.json", "--set", "output.dir=first"}).status == 0);
  const std::filesystem::path checkpoint = s.dir.path / "first/checkpoints/step_00000004";
  const auto with_flipped_byte = [&](const char* file,
                                     const std::vector<std::vector<std::string>>& commands) {
    const std::string good = slurp(checkpoint / file);
    std::string bad = good;
    bad[bad.size() / 2] ^= 4;
    std::ofstream(checkpoint / file) << bad;
    for (const std::vector<std::string>& arguments : commands)
      check_refused(s, arguments, std::string("step_00000004/") + file + ": found CRC-32 ");
    std::ofstream(checkpoint / file) << good;
  };
  const std::vector<std::string> resume = {"train", "first", "--resume", "--set", "train.steps=6"};
  with_flipped_byte("model.safetensors", {resume,
                                          {"eval", "first"},
                                          {"generate", "first", "--prompt", "the"},
                                          {"export", "first", "run"},
                                          {"train", "c.json", "--set", "model.init_from=first"}});
  with_flipped_byte("optimizer_rank0000.safetensors", {resume});
  REQUIRE(run_program(s.dir.path, resume).status == 0);
}

TEST_CASE("paths that cannot be: status 2 and one line, never an internal error") {
  const SmallRun s;
  s.dir.file("good.json", s.json("fp32").dump());
  s.dir.file("file", "");
  const std::string below = "file/below", loop = "loop";
  std::filesystem::create_symlink("loop", s.dir.path / loop);
  for (const std::string& path : {std::string(300, 'n'), below, loop}) {
    for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
             {"train", path},
             {"train", "good.json", "--resume", "--set", "output.dir=" + path},
             {"train", "good.json", "--set", "data.train=" + path},
             {"train", "good.json", "--set", "data.tokenizer=" + path},
             {"train", "good.json", "--set", "model.init_from=" + path},
             {"sweep", path},
             {"eval", path},
             {"generate", path, "--prompt", "a"},
             {"export", path, "run"},
             {"diff", path, path},
             {"plot", path},
             {"data", "info", path},
             {"data", "pack", "corpus.txt", "--out", path},
             {"config", "--check", path}})
      check_refused(s, arguments, path.substr(0, 20));
  }
}

TEST_CASE("fallback allow runs what the processor has, and says so") {
  const SmallRun s;
  nlohmann::json config = s.json("tf32");
  config["precision"]["fallback"] = "allow";
  config["train"]["steps"] = 4;
  s.dir.file("c.json", config.dump());
  const ProgramResult r = run_program(s.dir.path, {"train", "c.json"});
  CHECK(r.status == 0);
  CHECK(r.err.find("runs in fp32") != std::string::npos);
  // What ran is what is recorded.
  CHECK(nlohmann::json::parse(slurp(s.dir.path / "run" / "run.json")).dump().find("\"fp32\"") !=
        std::string::npos);
  CHECK(slurp(s.dir.path / "run" / "receipt.md").find("| precision | fp32 |") != std::string::npos);
}

TEST_CASE("dry-run prints the plan and writes nothing") {
  const SmallRun s;
  s.dir.file("c.json", s.json("bf16").dump());
  const ProgramResult r = run_program(s.dir.path, {"train", "c.json", "--dry-run"});
  REQUIRE(r.status == 0);
  for (const char* part : {"\"layers\": 2", "parameters", "tokens per step", "222 = 6 sequences of 37",
                           "memory: total", "disk: checkpoints", "estimated time", "attention"})
    CHECK(r.out.find(part) != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(s.dir.path / "run"));
}

TEST_CASE("dry-run plans a run whose data does not exist, and says what it assumed") {
  const SmallRun s;
  nlohmann::json config = s.json("bf16");
  config["data"] = {{"train", "nowhere/train_*.bin"}, {"val", "nowhere/val.bin"}};
  s.dir.file("c.json", config.dump());
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"train", "c.json", "--dry-run"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult r = run_program(s.dir.path, arguments);
    INFO(r.err);
    CHECK(r.status == 0);
    CHECK(std::filesystem::is_empty(s.dir.path / "none"));
    return r.out;
  };
  std::filesystem::create_directory(s.dir.path / "none");
  const std::string assumed = plan({});
  for (const char* part :
       {"nowhere/train_*.bin does not exist: a vocabulary of 50257 is assumed (GPT-2's)", "\"vocab\": 50257",
        "20 (4,440 tokens)", "train tokens                     not known", "operators' scratch",
        "memory: total"})
    CHECK_THAT(assumed, ContainsSubstring(part));
  CHECK_THAT(assumed, !ContainsSubstring("estimated time                   not known"));
  CHECK_THAT(plan({"--set", "data.tokenizer=bytes"}), ContainsSubstring("257 is assumed (data.tokenizer)"));
  CHECK_THAT(plan({"--set", "model.vocab=500"}), ContainsSubstring("500 is assumed (model.vocab)"));
  const std::string epochs = plan({"--set", "train.steps=null", "--set", "model.vocab=500"});
  CHECK_THAT(epochs, ContainsSubstring("steps                            not known") &&
                         ContainsSubstring("estimated time                   not known") &&
                         ContainsSubstring("without the data the number of steps is not known"));
  // Without --dry-run, and where the data is there but bad, it is refused as ever.
  check_refused(s, {"train", "c.json"}, "nowhere/train_*.bin");
  s.dir.file("bad.bin", "no shard");
  check_refused(s, {"train", "c.json", "--dry-run", "--set", "data.train=bad.bin", "--set", "data.val=null"},
                "bad.bin: magic");
}

TEST_CASE("signals lead to a checkpoint and their own status; the run goes on from there") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 1000000;
  config["train"]["eval_every"] = 0;
  s.dir.file("c.json", config.dump());
  const std::vector<std::pair<int, int>> expected = {{SIGTERM, 143}, {SIGINT, 130}, {SIGUSR1, 3}};
  std::int64_t step = 0;
  for (const auto& [signal, status] : expected) {
    const ProgramResult r =
        run_program(s.dir.path, {"train", "c.json", "--resume"}, [&, signal = signal](pid_t child) {
          const std::filesystem::path metrics = s.dir.path / "run" / "metrics.jsonl";
          // Wait until this start has made a step of its own.
          for (int i = 0; i < 600; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            if (std::filesystem::exists(metrics) &&
                lines(slurp(metrics)) > static_cast<std::size_t>(step) + 2)
              break;
          }
          kill(child, signal);
        });
    INFO(r.err);
    CHECK(r.status == status);
    const auto checkpoint = newest_checkpoint(s.dir.path / "run" / "checkpoints");
    REQUIRE(checkpoint.has_value());
    CHECK(checkpoint->state.step > step);
    step = checkpoint->state.step;
    CHECK(read_metrics(s.dir.path / "run" / "metrics.jsonl").back().step == step);
  }
}

TEST_CASE("stopped by signals at whatever steps and resumed, a run has the bits of one that is not") {
  for (const char* mode : {"fp32", "bf16"}) {
    const SmallRun s;
    nlohmann::json config = s.json(mode);
    config["model"]["dropout"] = 0.1;
    config["train"]["steps"] = 150;
    config["train"]["checkpoint_every"] = 50;
    const auto whole = s.train(config, "whole");
    s.dir.file("c.json", config.dump());
    std::vector<std::int64_t> stops;
    int status = -1;
    for (const int signal : {SIGTERM, SIGUSR1, SIGTERM, 0}) {
      const std::size_t before = stops.empty() ? 0 : static_cast<std::size_t>(stops.back());
      const ProgramResult r = run_program(s.dir.path, {"train", "c.json", "--resume"}, [&](pid_t child) {
        if (signal == 0) return;
        for (int i = 0; i < 3000; ++i) {  // until this start has made some steps of its own
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          const auto metrics = s.dir.path / "run" / "metrics.jsonl";
          if (std::filesystem::exists(metrics) && lines(slurp(metrics)) > before + 11) break;
        }
        kill(child, signal);
      });
      INFO(r.err);
      status = r.status;
      if (status == 0) break;  // the machine was so quick that it was through before the signal
      CHECK(status == (signal == SIGTERM ? 143 : 3));
      stops.push_back(newest_checkpoint(s.dir.path / "run" / "checkpoints")->state.step);
    }
    CHECK(status == 0);
    CHECK(std::any_of(stops.begin(), stops.end(), [](std::int64_t step) { return step % 50 != 0; }));
    CHECK(training_bits(s.dir.path / "run") == training_bits(whole));
  }
}

TEST_CASE("max_minutes: a checkpoint and status 3") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 1000000;
  config["train"]["max_minutes"] = 0.01;
  s.dir.file("c.json", config.dump());
  const ProgramResult r = run_program(s.dir.path, {"train", "c.json"});
  CHECK(r.status == 3);
  CHECK(newest_checkpoint(s.dir.path / "run" / "checkpoints").has_value());
}

TEST_CASE("50 steps in each mode with oneDNN held to AVX2, where it has no BF16 product") {
  const SmallRun s;
  std::vector<double> losses;
  for (const char* mode : {"fp32", "bf16"}) {
    nlohmann::json config = s.json(mode);
    config["train"]["steps"] = 50;
    config["output"]["dir"] = (s.dir.path / mode).string();
    s.dir.file("c.json", config.dump());
    const ProgramResult r =
        run_program(s.dir.path, {"train", "c.json"}, {}, {{"ONEDNN_MAX_CPU_ISA", "AVX2"}});
    INFO(r.err);
    REQUIRE(r.status == 0);
    losses.push_back(read_metrics(s.dir.path / mode / "metrics.jsonl").back().loss);
  }
  CHECK(losses[0] < 2.9);
  CHECK(losses[1] == Approx(losses[0]).epsilon(0.02));
  const std::string described = slurp(s.dir.path / "bf16" / "run.json");
  CHECK(described.find("bf16 operands widened, onednn f32") != std::string::npos);
}

TEST_CASE("bytes of any language go through pack, train and generate") {
  const SmallRun s;
  std::string spanish;
  while (spanish.size() < 6000)
    spanish += "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia, ¡qué año! ";
  s.dir.file("es.txt", spanish);
  REQUIRE(run_program(s.dir.path, {"data", "pack", "es.txt", "--out", "packed"}).status == 0);
  nlohmann::json config = s.json("fp32");
  config["data"] = {{"train", (s.dir.path / "packed" / "*.bin").string()}};
  config["train"]["steps"] = 150;
  config["train"]["micro_batch"] = 8;
  config["train"]["eval_every"] = 0;
  s.dir.file("c.json", config.dump());
  REQUIRE(run_program(s.dir.path, {"train", "c.json"}).status == 0);
  const ProgramResult r = run_program(
      s.dir.path, {"generate", "run", "--prompt", "El ping", "--tokens", "20", "--temperature", "0"});
  REQUIRE(r.status == 0);
  CHECK(r.out.find("El pingüino Wenceslao") != std::string::npos);
}
