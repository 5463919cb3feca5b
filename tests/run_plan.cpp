// From config, data and device to the numbers of a run, and every request that cannot be met.
#include "run_plan.h"

#include "backends.h"
#include "catch.h"
#include "refusal.h"
#include "tiny_model.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

Backend& the_cpu() {
  return *backends()[0];
}

RunPlan plan_with(const std::vector<Override>& overrides, const Dataset& data = tiny_dataset()) {
  return make_run_plan(tiny_config(overrides), data, the_cpu(), {});
}

std::string refused(const std::vector<Override>& overrides, const Dataset& data = tiny_dataset()) {
  return refusal([&] { plan_with(overrides, data); });
}

const std::vector<Override> kByTokens = {{"train.accumulate", "null"}, {"train.tokens_per_step", "96"}};

std::vector<Override> by_tokens(std::vector<Override> more) {
  more.insert(more.end(), kByTokens.begin(), kByTokens.end());
  return more;
}

}  // namespace

TEST_CASE("plan: every auto is decided and written out in the config") {
  const RunPlan plan = plan_with(by_tokens({{"train.micro_batch", "auto"}}));
  CHECK(plan.steps == 20);
  CHECK(plan.sequences_per_step == 6);
  CHECK(plan.model.B == 6);
  CHECK(plan.accumulate == 1);
  CHECK(plan.tokens_per_step() == 96);
  CHECK(plan.config.train.micro_batch == 6);
  CHECK(plan.config.model.vocab == kTinyVocab);
  CHECK(plan.config.device == "cpu");
  CHECK(plan.model.shape.padded_vocab == 64);
  CHECK(plan.mode == "fp32");
  CHECK(plan.notes == std::vector<std::string>{"micro_batch auto: 6 of 6 sequences a step"});
  CHECK_FALSE(plan.paths.empty());
  CHECK(plan_with({{"train.sequence", "8"}}).model.T == 8);
}

TEST_CASE("plan: steps, tokens and epochs give the length; without data the last is not known") {
  CHECK(plan_with({{"train.steps", "null"}, {"train.tokens", "129"}}).steps == 3);  // 64 a step, rounded up
  // 1000 tokens are 62 windows of 16, 15 whole steps of 4.
  CHECK(plan_with({{"train.steps", "null"}}).steps == 15);
  CHECK(plan_with({{"train.steps", "null"}, {"train.epochs", "0.5"}}).steps == 7);
  CHECK(refused({{"train.steps", "null"}, {"train.epochs", "0.01"}}) ==
        "train.epochs: 0.01 of 62 windows are fewer than one step of 4 sequences; allowed: more epochs, a "
        "smaller train.tokens_per_step, or train.steps");
  CHECK_FALSE(refused({}, tiny_dataset(16)) == "NOT REFUSED");  // less than a window and its target

  Dataset absent;
  absent.vocab = kTinyVocab;
  absent.absent = "none.bin";
  CHECK(plan_with({}, absent).steps == 20);
  const RunPlan unknown = plan_with({{"train.steps", "null"}, {"optimizer.warmup_steps", "7"}}, absent);
  CHECK(unknown.steps == 0);
  CHECK_THAT(unknown.notes.back(), ContainsSubstring("the number of steps is not known"));
}

TEST_CASE("plan: a step that cannot be split as asked is refused with what can be") {
  CHECK_THAT(
      refused(by_tokens({{"train.micro_batch", "4"}})),
      ContainsSubstring("train.micro_batch: found 4, which does not divide the 6 sequences (96 tokens)") &&
          ContainsSubstring("divisors, such as 3 or 6"));
  CHECK_THAT(refused({{"train.accumulate", "null"}, {"train.tokens_per_step", "100"}}),
             ContainsSubstring("train.tokens_per_step: found 100") && ContainsSubstring("96 or 112"));
  CHECK_THAT(refused({{"train.accumulate", "null"}, {"train.tokens_per_step", "3"}}),
             ContainsSubstring("multiples, such as 16"));
  CHECK_THAT(refused({{"train.micro_batch", "auto"}, {"train.accumulate", "3"}}),
             ContainsSubstring("train.accumulate: found 3") && ContainsSubstring("2 or 4"));
  CHECK(plan_with({{"train.micro_batch", "auto"}, {"train.accumulate", "8192"}}).model.B == 4);
}

TEST_CASE("plan: an automatic micro-batch divides the step and stays within what a CPU gains from") {
  ModelPlan model;
  model.shape = plan_with({}).model.shape;
  model.act = DType::f32;
  model.T = 16;
  CHECK(choose_micro_batch(model, 6, the_cpu()) == 6);
  CHECK(choose_micro_batch(model, 1024, the_cpu()) == 512);  // 8192 tokens
  CHECK(choose_micro_batch(model, 1021, the_cpu()) == 1);    // a prime
  model.shape.channels = 1 << 20;                            // nothing fits; one sequence is then tried
  model.shape.heads = model.shape.kv_heads = 1 << 17;
  CHECK(choose_micro_batch(model, 6, the_cpu()) == 1);
}

TEST_CASE("plan: a precision that the backend lacks is refused, or replaced and said") {
  PrecisionConfig precision{.mode = "tf32", .fallback = "error", .fp8 = {}};
  CHECK_THAT(refusal([&] { choose_precision(precision, the_cpu()); }),
             ContainsSubstring("precision.mode: found \"tf32\": a CPU has no TF32 products") &&
                 ContainsSubstring("\"mode\": \"fp32\""));
  precision.fallback = "allow";
  CHECK(choose_precision(precision, the_cpu()).mode == "fp32");
  precision.mode = "fp8";
  CHECK(choose_precision(precision, the_cpu()).mode == "fp8");
  const std::unique_ptr<Backend> ampere = make_cpu_backend(0, Capability{8, 0});
  const PrecisionChoice choice = choose_precision(precision, *ampere);
  CHECK(choice.mode == "bf16");
  CHECK(choice.act == DType::bf16);
  CHECK_FALSE(choice.reason.empty());
  precision.mode = "bf16";
  CHECK(choose_precision(precision, the_cpu()).reason.empty());

  const RunPlan plan = make_run_plan(
      tiny_config({{"precision.mode", "fp8"}, {"precision.fallback", "allow"}}), tiny_dataset(), *ampere, {});
  CHECK(plan.config.precision.mode == "fp8");  // as asked, so that a resume asks again
  CHECK(plan.mode == "bf16");
  CHECK_THAT(plan.notes.front(), ContainsSubstring("runs in bf16 (precision.fallback allow)"));
  for (const PathRow& row : plan.paths) CHECK_THAT(row.reason, ContainsSubstring("precision.mode fp8"));
}

TEST_CASE(
    "plan: each product runs in FP8 where capability and shape allow it, else in bf16 with the reason") {
  const auto plan = [](Capability capability, const std::vector<Override>& overrides) {
    std::vector<Override> all{{"precision.mode", "fp8"}, {"model.layers", "3"}};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const std::unique_ptr<Backend> backend = make_cpu_backend(0, capability);
    return make_run_plan(tiny_config(all), tiny_dataset(), *backend, {});
  };
  const auto rows_of = [](const RunPlan& p, const std::string& what) {
    std::vector<std::string> rows;
    for (const PathRow& row : p.paths)
      if (row.what.starts_with(what))
        rows.push_back(row.what + ": " + row.path.substr(0, 3) + ": " + row.reason);
    return rows;
  };
  for (const Capability able : {Capability{8, 9}, Capability{9, 0}}) {
    const RunPlan p = plan(able, {});  // 16 channels, 2 x 16 tokens
    CHECK(p.mode == "fp8");
    for (const char* gemm : {"fprop", "dgrad", "wgrad"})
      CHECK(rows_of(p, std::string("fc ") + gemm) ==
            std::vector<std::string>{std::string("fc ") + gemm + ": fp8: "});
    CHECK_FALSE(rows_of(p, "head fprop")[0].find("fp8") != std::string::npos);
  }
  CHECK_THAT(refusal([&] {
               plan({8, 0}, {});
             }),
             ContainsSubstring("FP8 products need compute capability 8.9, this device has 8.0") &&
                 ContainsSubstring("\"mode\": \"bf16\""));

  // 2 x 15 tokens are the inner dimension of weight gradients alone.
  const std::vector<Override> odd{{"train.sequence", "15"}};
  CHECK_THAT(refusal([&] {
               plan({9, 0}, odd);
             }),
             ContainsSubstring(
                 "qkv wgrad of 48x16x30: FP8 products need an inner dimension that is a multiple of 16, "
                 "not 30") &&
                 ContainsSubstring("\"fallback\": \"allow\""));
  std::vector<Override> allowed = odd;
  allowed.push_back({"precision.fallback", "allow"});
  const RunPlan mixed = plan({9, 0}, allowed);
  CHECK(mixed.mode == "fp8");
  CHECK(rows_of(mixed, "out dgrad") == std::vector<std::string>{"out dgrad: fp8: "});
  CHECK_THAT(rows_of(mixed, "out wgrad")[0], ContainsSubstring("not 30"));
  CHECK(mixed.model.fp8.paths(0, Linear::out).fprop);
  CHECK_FALSE(mixed.model.fp8.paths(0, Linear::out).wgrad);

  const RunPlan skipped =
      plan({9, 0}, {{"precision.fp8.skip_first_layers", "1"}, {"precision.fp8.skip_last_layers", "1"}});
  CHECK(rows_of(skipped, "proj fprop")[0] == "proj fprop in layer 1: fp8: ");
  CHECK_THAT(rows_of(skipped, "proj fprop")[1],
             ContainsSubstring("in layers 0, 2") && ContainsSubstring("skip_first"));
  CHECK_THAT(refusal([&] {
               plan({9, 0}, {{"precision.fp8.skip_first_layers", "3"}});
             }),
             ContainsSubstring("together less than model.layers, 3"));

  // Where nothing can run in FP8 the run is one in bf16, and says so.
  const RunPlan none = plan({9, 0}, {{"model.channels", "24"},
                                     {"model.heads", "3"},
                                     {"train.sequence", "15"},
                                     {"precision.fallback", "allow"}});
  CHECK(none.mode == "bf16");
  CHECK_THAT(none.notes.back(), ContainsSubstring("no product of this model can run in FP8"));
}

TEST_CASE("plan: vocabulary and shape come from the data, the config, or the model to start from") {
  CHECK(choose_vocab(tiny_config({{"model.vocab", "100"}}), tiny_dataset()) == 100);
  CHECK(choose_vocab(tiny_config(), tiny_dataset()) == kTinyVocab);
  CHECK_THAT(refused({{"model.vocab", "39"}}), ContainsSubstring("model.vocab: found 39, the data has 40"));

  ModelShape initial = choose_shape(tiny_config(), 64, {});
  CHECK(initial.head_size() == 8);
  initial.layers = 5;
  CHECK_THAT(refusal([&] { choose_shape(tiny_config(), kTinyVocab, initial); }),
             ContainsSubstring("model.layers: found 1, the model of model.init_from has 5"));
  const Config silent = parse_config(R"({"data": {"train": "none"}})", "silent.json");
  CHECK(choose_shape(silent, kTinyVocab, initial).layers == 5);
  CHECK_THAT(refusal([&] { choose_shape(silent, 65, initial); }),
             ContainsSubstring("vocabulary has 65 tokens"));
}

TEST_CASE("plan: a dropout between the steps of 1/256 is told as what it becomes") {
  CHECK(plan_with({{"model.dropout", "0.125"}}).notes.empty());
  CHECK(plan_with({{"model.dropout", "0.1"}}).notes ==
        std::vector<std::string>{"model.dropout 0.1: in steps of 1/256, 0.1016 are dropped"});
}

TEST_CASE("plan: a device that this build lacks is refused") {
  CHECK_THAT(refusal([] {
               make_backend(tiny_config({{"device", "cuda"}}));
             }),
             ContainsSubstring("device: found \"cuda\""));
  CHECK(make_backend(tiny_config({{"threads", "1"}}))->threads() == 1);
}
