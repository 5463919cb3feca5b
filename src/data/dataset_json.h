// dataset_json.h - dataset.json, the description that `octavo data pack` and `synth` leave beside their
// shards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace octavo {

inline constexpr const char* kDatasetFile = "dataset.json";

/// Most tokens that a shard's header can count (a signed 32-bit integer for other readers).
inline constexpr std::int64_t kMaxShardTokens = INT32_MAX;

struct DatasetShard {
  std::string name;  // file beside dataset.json
  std::int64_t tokens = 0;
  std::string sha256;
};

struct DatasetDescription {
  std::string tokenizer_kind;  // "bytes" | "bpe" (tokenizer.json lies beside) | "none": ids without text
  std::string tokenizer_hash;  // empty for "none"
  std::int64_t vocab = 0;
  std::int32_t eot = -1;                  // -1: none
  std::int64_t documents = 0;             // of train and val together
  std::vector<DatasetShard> train, val;   // in the order of the stream
  std::optional<double> entropy_rate;     // nats per token, of the source
  std::optional<double> unigram_entropy;  // nats per token, of the train shards' histogram
  nlohmann::ordered_json made_by;         // for the reader: command, parameters, sources; not interpreted

  const DatasetShard* find(const std::string& name) const;
};

/// Writes `description` as `file`. Throws RunError.
void write_dataset_json(const DatasetDescription& description, const std::string& file);

/// Reads a dataset.json; nothing where the file does not exist or is somebody else's (no "octavo" in it).
/// Throws RequestError naming file, key, value and what is allowed.
std::optional<DatasetDescription> read_dataset_json(const std::string& file);

}  // namespace octavo
