// tiny_model.h - a model of one block over random ids, for tests that need some model and no files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend.h"
#include "config.h"
#include "data/dataset.h"
#include "model.h"
#include "rng.h"
#include "run_plan.h"

namespace octavo::testing {

inline constexpr std::int64_t kTinyVocab = 40, kTinyContext = 16;

/// Ids that look random.
inline std::vector<std::int32_t> tiny_ids(std::int64_t count, std::uint64_t seed = 1) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>(mix64(seed * 1000003 + i) % static_cast<std::uint64_t>(kTinyVocab));
  return ids;
}

inline Dataset tiny_dataset(std::int64_t tokens = 1000) {
  Dataset data;
  data.vocab = kTinyVocab;
  data.train = TokenStream::of(tiny_ids(tokens));
  return data;
}

/// One block of 16 channels in 2 heads; 4 sequences a step, 2 at once.
inline Config tiny_config(const std::vector<Override>& overrides = {}) {
  return parse_config(R"({ "model": { "layers": 1, "channels": 16, "heads": 2, "context": 16 },
    "precision": { "mode": "fp32" }, "data": { "train": "none" },
    "train": { "steps": 20, "micro_batch": 2, "accumulate": 2 }, "optimizer": { "lr": 0.01 } })",
                      "tiny.json", overrides);
}

/// A tiny model without gradients, with fresh weights.
inline std::unique_ptr<Model> tiny_model(Backend& backend, std::int64_t B, double init_std = 0.5) {
  ModelShape shape;
  shape.layers = 1, shape.channels = 16, shape.heads = shape.kv_heads = 2, shape.context = kTinyContext;
  shape.vocab = kTinyVocab, shape.padded_vocab = pad_vocab(kTinyVocab);
  auto model = std::make_unique<Model>(
      backend, ModelPlan{.shape = shape, .act = DType::f32, .B = B, .T = kTinyContext, .training = false});
  std::vector<float> weights(static_cast<std::size_t>(model->table().arena_size));
  initialise_parameters(model->table(), shape, init_std, 1, weights.data());
  backend.copy_to_device(model->masters().data, weights.data(), weights.size() * sizeof(float));
  model->refresh_working(/*record=*/true);
  return model;
}

}  // namespace octavo::testing
