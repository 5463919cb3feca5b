// Octavo beside Hugging Face's transformers: our folders open there and theirs here, with equal logits. The
// other side is scripts/check_transformers.py, run by $OCTAVO_PYTHON or python3; without torch and
// transformers the case is skipped.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <sys/wait.h>

#include "backend.h"
#include "catch.h"
#include "checkpoint.h"
#include "fixture.h"
#include "huggingface.h"
#include "model.h"
#include "parameters.h"
#include "rng.h"
#include "safetensors.h"
#include "temp_dir.h"

using namespace octavo;
using octavo::testing::TempDir;
namespace fs = std::filesystem;

namespace {

struct Finished {
  int status;
  std::string output;
};

std::string quoted(const fs::path& path) {
  return "'" + path.string() + "'";
}

Finished run_script(const std::string& arguments) {
  const char* python = std::getenv("OCTAVO_PYTHON");
  const fs::path script = testing::source_tree() / "scripts" / "check_transformers.py";
  const std::string command =
      quoted(python != nullptr ? python : "python3") + " " + quoted(script) + " " + arguments + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {127, "cannot run " + command};
  std::string output;
  std::array<char, 4096> piece{};
  for (std::size_t n; (n = fread(piece.data(), 1, piece.size(), pipe)) > 0;) output.append(piece.data(), n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, output};
}

// Says why a case cannot run here, in the form that CTest counts as skipped.
bool skipped(const Finished& finished) {
  if (finished.status == 77) std::cerr << finished.output;
  if (finished.status == 127) std::cerr << "SKIPPED: transformers tests: no Python; set OCTAVO_PYTHON\n";
  return finished.status == 77 || finished.status == 127;
}

// Writes logits.safetensors into a model's folder: 37 tokens and the logits that Octavo computes in fp32.
void write_logits(const fs::path& folder) {
  const ModelFolder opened = open_model(folder.string());
  ModelPlan plan;
  plan.shape = opened.shape;
  plan.act = DType::f32;
  plan.T = opened.shape.context;
  plan.training = false;
  const std::unique_ptr<Backend> backend = make_cpu_backend(0);
  Model model(*backend, plan);
  std::vector<float> weights(static_cast<std::size_t>(model.table().arena_size));
  read_weights(opened.folder, model.table(), weights.data());
  backend->copy_to_device(model.masters().data, weights.data(), weights.size() * sizeof(float));
  model.refresh_working(/*record=*/true);

  std::vector<std::int32_t> tokens(static_cast<std::size_t>(plan.T));
  std::vector<float> logits, row;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    tokens[t] = static_cast<std::int32_t>(mix64(t) % static_cast<std::uint64_t>(plan.shape.vocab));
    model.extend(&tokens[t], static_cast<std::int64_t>(t), 1, row);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  SafetensorsWriter writer(folder / "logits.safetensors",
                           {{"tokens", "I32", {plan.T}}, {"logits", "F32", {plan.T, plan.shape.vocab}}}, {});
  writer.write(tokens.data(), tokens.size() * sizeof(std::int32_t));
  writer.write(logits.data(), logits.size() * sizeof(float));
  writer.finish();
}

// A checkpoint of a model in which every parameter matters: wide weights, no bias at zero, no gain at one.
fs::path write_ours(const fs::path& checkpoints, bool tied) {
  ModelShape shape;
  shape.layers = 2, shape.channels = 48, shape.heads = shape.kv_heads = 3, shape.context = 37,
  shape.vocab = 257;
  shape.padded_vocab = 320;
  shape.tied = tied;
  shape.norm_eps = 1e-3;  // not the default: it must be taken from config.json
  ParameterTable table = make_parameter_table(shape);
  for (Parameter& p : table.parameters) p.init = Init::normal;
  std::vector<float> masters(static_cast<std::size_t>(table.arena_size));
  initialise_parameters(table, shape, 0.2, 1, masters.data());
  for (const Parameter& p : table.parameters) {
    const bool gain = p.norm && p.name.ends_with("gain");
    for (std::int64_t i = 0; gain && i < p.cols; ++i) masters[static_cast<std::size_t>(p.offset + i)] += 1.0f;
  }
  return write_checkpoint(checkpoints, {.table = table,
                                        .shape = shape,
                                        .details = {.eot = 256},
                                        .masters = masters.data(),
                                        .moment1 = masters.data(),
                                        .moment2 = masters.data(),
                                        .state = {},
                                        .tokenizer = bytes_tokenizer().get()});
}

}  // namespace

TEST_CASE("transformers opens our checkpoints and Octavo its models, with equal logits", "[slow]") {
  const TempDir dir;
  const Finished made = run_script("make " + quoted(dir.path / "theirs"));
  if (skipped(made)) return;
  INFO(made.output);
  REQUIRE(made.status == 0);
  std::vector<fs::path> folders{write_ours(dir.path / "tied", true), write_ours(dir.path / "untied", false)};
  for (const char* name : {"float32", "float16", "bfloat16", "untied", "unprefixed", "shards"})
    folders.push_back(dir.path / "theirs" / name);
  CHECK(fs::exists(dir.path / "theirs/shards/model.safetensors.index.json"));
  std::string list;
  for (const fs::path& folder : folders) {
    write_logits(folder);
    list += " " + quoted(folder);
  }
  const Finished checked = run_script("check" + list);
  INFO(checked.output);
  CHECK(checked.status == 0);

  // The check itself sees a model that is not the one of the logits: one element of one bias, moved a little.
  const ModelFolder ours = open_model(folders[0].string());
  const ParameterTable table = make_parameter_table(ours.shape);
  std::vector<float> weights(static_cast<std::size_t>(table.arena_size));
  read_weights(ours.folder, table, weights.data());
  weights[static_cast<std::size_t>(table[table.layers[1].fc_bias].offset)] += 1e-3f;
  write_model(folders[0], table, ours.shape, ours.details, weights.data());
  const Finished spoilt = run_script("check " + quoted(folders[0]));
  INFO(spoilt.output);
  CHECK(spoilt.status == 1);
  CHECK_THAT(spoilt.output, ContainsSubstring("FAILED: logits differ by"));
}
