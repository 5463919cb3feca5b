// shard_writer.h - writes a stream of ids as numbered shards, 16 bits an id where the vocabulary allows it.
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "data/dataset_json.h"
#include "data/output_folder.h"

namespace octavo {

/// Most tokens that a shard's header can count (a signed 32-bit integer for other readers).
inline constexpr std::int64_t kMaxShardTokens = INT32_MAX;

class ShardWriter {
 public:
  /// Files `<prefix>_000000.bin`, ... in `folder`, each with at most `shard_tokens` ids of [0, vocab).
  ShardWriter(const NewFolder& folder, std::string prefix, std::int64_t vocab, std::int64_t shard_tokens);

  /// Throws RunError when the disk does not take it.
  void append(std::span<const std::int32_t> ids);
  /// Completes the last shard; the list of all. Nothing may be appended afterwards.
  std::vector<DatasetShard> finish();

  /// How often each id was written.
  const std::vector<std::int64_t>& counts() const { return counts_; }
  std::int64_t tokens() const { return tokens_; }

 private:
  void open_shard();
  void close_shard();
  void write_header(std::int64_t tokens);

  const NewFolder& folder_;
  std::string prefix_;
  bool wide_;
  std::int64_t shard_tokens_;
  std::ofstream out_;
  std::vector<DatasetShard> shards_;  // the last one is open while out_ is
  std::vector<std::int64_t> counts_;
  std::vector<std::uint16_t> narrow_;
  std::int64_t tokens_ = 0;
};

}  // namespace octavo
