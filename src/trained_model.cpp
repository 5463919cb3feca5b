#include "trained_model.h"

#include <algorithm>
#include <cstdio>
#include <system_error>

#include <nlohmann/json.hpp>

#include "error.h"
#include "run_folder.h"
#include "run_plan.h"

namespace octavo {
namespace {

/// The config of the run that a checkpoint lies in, or of the run's folder itself.
std::optional<std::filesystem::path> run_of(const std::string& source, const ModelFolder& folder) {
  const std::filesystem::path given = source, outer = folder.folder / ".." / "..";
  std::error_code ignored;  // what cannot be looked into is no run that the model belongs to
  for (const std::filesystem::path& candidate : {given, outer})
    if (std::filesystem::exists(candidate / kResolvedFile, ignored)) return candidate.lexically_normal();
  return {};
}

/// A folder that belongs to no run: defaults, in the precision it was trained in where that is known, else
/// fp32.
Config standalone_config(const std::string& source, const ModelFolder& folder,
                         const std::vector<Override>& overrides) {
  const std::string mode = folder.state && !folder.state->mode.empty() ? folder.state->mode : "fp32";
  const nlohmann::ordered_json json = {{"precision", {{"mode", mode}}}, {"data", {{"train", "none"}}}};
  return parse_config(json.dump(), source, overrides);
}

/// The tokenizer that is asked for, else the one that lies beside the model. Another than the model was made
/// with would give its ids another meaning.
TokenizerPtr model_tokenizer(const TrainedModelRequest& request, const ModelFolder& folder) {
  const TokenizerPtr beside = find_tokenizer(folder.folder.string());
  const TokenizerPtr chosen = request.tokenizer.empty() ? beside : load_tokenizer(request.tokenizer);
  const std::string own = folder.state && !folder.state->tokenizer_hash.empty() ? folder.state->tokenizer_hash
                          : beside                                              ? beside->hash()
                                                                                : "";
  if (chosen && !own.empty() && chosen->hash() != own)
    refuse("tokenizer {}: found hash {}, but {} was made with {}; allowed: the model's own tokenizer",
           request.tokenizer.empty() ? (folder.folder / "tokenizer.json").string() : request.tokenizer,
           chosen->hash(), request.source, own);
  return chosen;
}

}  // namespace

TrainedModel open_trained_model(const TrainedModelRequest& request) {
  TrainedModel out;
  out.folder = open_model(request.source, request.choice);
  std::vector<std::string> incomplete;
  list_checkpoints(std::filesystem::path(request.source) / kCheckpoints, &incomplete);
  for (const std::string& line : incomplete) std::fprintf(stderr, "octavo: warning: %s\n", line.c_str());
  const std::optional<std::filesystem::path> run = run_of(request.source, out.folder);
  const Config config = run ? read_resolved_config(*run, request.overrides)
                            : standalone_config(request.source, out.folder, request.overrides);
  if (run) out.config = config;
  out.tokenizer = model_tokenizer(request, out.folder);

  // A run trained on a GPU is opened on what there is here.
  Config device = config;
  if (run && std::none_of(request.overrides.begin(), request.overrides.end(),
                          [](const Override& o) { return o.path == "device"; }))
    device.device = "auto";
  out.backend = make_backend(device);
  const PrecisionChoice precision = choose_precision(config.precision, *out.backend);
  out.mode = precision.mode;

  ModelPlan plan;
  plan.shape = out.folder.shape;
  plan.act = precision.act;
  plan.B = request.B;
  plan.T = request.T > 0 ? request.T : config.train.sequence.value_or(plan.shape.context);
  plan.T = std::min(plan.T, plan.shape.context);
  plan.training = false;
  std::optional<SavedFp8> scales;
  if (out.mode == "fp8") {
    plan.fp8 = plan_fp8(config.precision.fp8, plan.shape, 0, *out.backend);
    scales = find_fp8_state(out.folder.folder);
    if (!scales && plan.fp8.recipe.scaling == Fp8Scaling::delayed)
      refuse(
          "{}: precision.mode \"fp8\", but it holds no {}; allowed: --set precision.mode=bf16, or --set "
          "precision.fp8.recipe=current",
          out.folder.folder.string(), kFp8File);
  }
  out.model = std::make_unique<Model>(*out.backend, plan);

  std::vector<float> weights(static_cast<std::size_t>(out.model->table().arena_size));
  read_weights(out.folder.folder, out.model->table(), weights.data());
  out.backend->copy_to_device(out.model->masters().data, weights.data(), weights.size() * sizeof(float));
  if (scales) {
    const std::vector<std::string> missing = out.model->fp8().load(scales->slots);
    if (!missing.empty())
      refuse(
          "{}: holds no scale of {}; allowed: the skipped layers it was trained with, or --set "
          "precision.mode=bf16",
          (out.folder.folder / kFp8File).string(), missing.front());
  }
  out.model->refresh_working(/*record=*/false);
  return out;
}

}  // namespace octavo
