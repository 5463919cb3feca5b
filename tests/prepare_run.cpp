// Everything that can be wrong with a run is found before it writes; and what is planned of one.
#include <filesystem>

#include "catch.h"
#include "refusal.h"
#include "small_run.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

RunRequest request(const SmallRun& s, nlohmann::json config, FolderUse use = FolderUse::fresh) {
  config["output"]["dir"] = (s.dir.path / "run").string();
  RunRequest r;
  r.config = parse_config(config.dump(), "small.json");
  r.use = use;
  return r;
}

}  // namespace

TEST_CASE("prepare: data, device and plan are there, and nothing has been written") {
  const SmallRun s;
  RunRequest r = request(s, s.json("fp32"));
  r.now = [] { return 7.0; };
  const PreparedRun run = prepare_run(std::move(r));
  CHECK(run.started == 7.0);
  CHECK(run.plan.steps == 20);
  CHECK(run.data.val.size() > 1000);
  CHECK(run.weights.empty());
  CHECK_FALSE(run.checkpoint.has_value());
  const CheckpointState state = checkpoint_state(run);
  CHECK(state.seed == 1);
  CHECK(state.data_seed == 1);
  CHECK(state.sequence == 37);
  CHECK(state.data_fingerprint == run.data.fingerprint);
  CHECK_FALSE(std::filesystem::exists(s.dir.path / "run"));
}

TEST_CASE("prepare: a resumed run brings weights, moments and what differs") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["train"]["steps"] = 4;
  config["train"]["accumulate"] = nullptr;
  config["train"]["tokens_per_step"] = 222;
  config["train"]["micro_batch"] = 2;
  s.train(config, "run");
  config["train"]["steps"] = 8;
  config["train"]["micro_batch"] = "auto";
  const PreparedRun run = prepare_run(request(s, config, FolderUse::resume));
  REQUIRE(run.checkpoint.has_value());
  CHECK(run.checkpoint->state.step == 4);
  CHECK_FALSE(run.weights.empty());
  CHECK(run.moment1.size() == run.weights.size());
  CHECK(run.moment2.size() == run.weights.size());
  CHECK(run.plan.model.B == 2);  // what was chosen, or written, before
  CHECK(run.resume_notes == std::vector<std::string>{"train.steps: was 4, now 8"});

  std::filesystem::resize_file(run.checkpoint->folder / "model.safetensors", 1000);
  CHECK_THAT(refusal([&] { prepare_run(request(s, config, FolderUse::resume)); }),
             ContainsSubstring("step_00000004 is not complete") && ContainsSubstring("--overwrite"));
}

TEST_CASE("prepare: more memory than there is is refused with what needs less") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  config["model"]["channels"] = 48 * 4096;
  CHECK_THAT(refusal([&] { prepare_run(request(s, config)); }),
             ContainsSubstring("heads of a multiple of 8") || ContainsSubstring("model.heads"));
  config["model"]["heads"] = 4096;
  CHECK_THAT(refusal([&] { prepare_run(request(s, config)); }),
             ContainsSubstring("memory on cpu: the model needs"));
}

TEST_CASE("prepare: only a run that is to be planned may lack its data, also one that is resumed") {
  const SmallRun s;
  nlohmann::json config = s.json("fp32");
  s.train(config, "run");
  std::filesystem::remove(s.text);
  config["train"]["steps"] = 30;
  CHECK_THAT(refusal([&] { prepare_run(request(s, config, FolderUse::resume)); }),
             ContainsSubstring("corpus.txt does not exist"));
  RunRequest r = request(s, config, FolderUse::resume);
  r.dry_run = true;
  PreparedRun run = prepare_run(std::move(r));
  CHECK(run.data.vocab == 257);  // the model's
  CHECK(run.checkpoint->state.step == 20);
  const RunEstimate estimate = estimate_run(run);
  CHECK(estimate.measured_sequences == 3);
  CHECK(estimate.workspace_bytes > 0);
  REQUIRE(estimate.seconds.has_value());
  CHECK(*estimate.seconds >= 10 * estimate.step_seconds);
  CHECK_THAT(plan_text(run, estimate), ContainsSubstring("257 is assumed (" + (s.dir.path / "run").string()));
}

TEST_CASE("prepare: the plan as text adds up") {
  const SmallRun s;
  nlohmann::json config = s.json("bf16");
  config["model"]["dropout"] = 0.1;
  const PreparedRun run = prepare_run(request(s, config));
  const RunEstimate estimate{
      .step_seconds = 0.5, .seconds = 90, .measured_sequences = 1, .workspace_bytes = 1 << 20};
  const std::string text = plan_text(run, estimate);
  for (const char* part : {"222 = 6 sequences of 37, 3 at once, 2 times", "20 (4,440 tokens, 0.12 epochs)",
                           "1.0 MiB, measured in a step of 1 sequence\n", "1 min 30 s", "0.5 s",
                           "model.dropout 0.1: in steps of 1/256, 0.1016 are dropped"})
    CHECK_THAT(text, ContainsSubstring(part));
  const double total =
      static_cast<double>(total_bytes(plan_memory(run.plan.model)) + estimate.workspace_bytes) / 0x1p20;
  CHECK_THAT(text, ContainsSubstring(fmt::format("memory: total                    {:.1f} MiB of", total)));
}
