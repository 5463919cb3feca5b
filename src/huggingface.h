// huggingface.h - GPT-2 in Hugging Face's form: config.json <-> ModelShape, and the weights in
// model.safetensors.
//
// What is written opens with transformers' GPT2LMHeadModel.from_pretrained(); what is read may come from
// there: with or without the "transformer." prefix, tied head stored or not, F32, F16 or BF16, in one file or
// in shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "parameters.h"

namespace octavo {

// Files of a model's folder.
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kConfigFile = "config.json";

/// What config.json holds beside the shape.
struct ModelDetails {
  double dropout = 0;      // resid_pdrop, embd_pdrop, attn_pdrop
  double init_std = 0.02;  // initializer_range
  std::int32_t eot = -1;   // bos_token_id and eos_token_id; -1: null
};

/// config.json of a model.
nlohmann::ordered_json huggingface_config(const ModelShape& shape, const ModelDetails& details);

/// Shape and details from a config.json; `origin` names it in messages. Throws RequestError for a key that is
/// missing or out of range, and for every variant of the model that Octavo does not compute, by its key.
ModelShape parse_huggingface_config(const nlohmann::ordered_json& config, const std::string& origin,
                                    ModelDetails* details = nullptr);

/// Reads and parses a folder's config.json. Throws RequestError.
ModelShape read_huggingface_config(const std::filesystem::path& folder, ModelDetails* details = nullptr);

/// Writes model.safetensors and config.json into an existing folder, each complete or absent. `masters` is a
/// flat arena of table.arena_size floats; padding rows and a tied head are not saved. Throws RunError.
void write_model(const std::filesystem::path& folder, const ParameterTable& table, const ModelShape& shape,
                 const ModelDetails& details, const float* masters);

/// Size of that model.safetensors in bytes.
std::uint64_t model_file_size(const ParameterTable& table);

/// Fills a flat arena (table.arena_size floats; padding rows and gaps become zero) from a folder's
/// model.safetensors, or from the shards that model.safetensors.index.json lists. Throws RequestError that
/// names every tensor which is missing, not known or of another shape or type; `arena` is then unspecified.
void read_weights(const std::filesystem::path& folder, const ParameterTable& table, float* arena);

}  // namespace octavo
