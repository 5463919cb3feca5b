// shard_writer.h - writes a stream of ids as numbered shards, 16 bits an id where the vocabulary allows it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/dataset_json.h"
#include "data/output_folder.h"
#include "files.h"

namespace octavo {

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
  void add(const void* data, std::size_t bytes);
  void flush();

  const NewFolder& folder_;
  std::string prefix_;
  bool wide_;
  std::int64_t shard_tokens_;
  std::optional<AtomicFile> out_;
  std::vector<char> pending_;         // not yet in out_: documents may be short
  std::vector<DatasetShard> shards_;  // the last one is open while out_ is there
  std::vector<std::int64_t> counts_;
  std::vector<std::uint16_t> narrow_;
  std::int64_t tokens_ = 0;
};

}  // namespace octavo
