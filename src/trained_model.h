// trained_model.h - a model opened for use: by generate and eval.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend.h"
#include "checkpoint.h"
#include "config.h"
#include "data/tokenizer.h"
#include "model.h"

namespace octavo {

struct TrainedModelRequest {
  std::string source;  // run, checkpoint or Hugging Face folder
  CheckpointChoice choice = CheckpointChoice::newest;
  std::string tokenizer;            // "bytes" or a tokenizer.json; empty: the model's own
  std::vector<Override> overrides;  // "precision.mode", "device", ... on the run's config
  std::int64_t B = 1, T = 0;        // T 0: the sequence the run trained with, else the context
};

struct TrainedModel {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;  // without gradients, weights loaded
  TokenizerPtr tokenizer;        // null: not known
  ModelFolder folder;
  std::optional<Config> config;  // of the run that the model belongs to, with the overrides
  std::string mode;              // precision that runs
};

/// Opens a model in the precision it was trained in; a Hugging Face folder in fp32. Throws RequestError, also
/// for a tokenizer that is known not to be the model's.
TrainedModel open_trained_model(const TrainedModelRequest& request);

}  // namespace octavo
