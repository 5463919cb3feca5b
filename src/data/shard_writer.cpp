// shard_writer.cpp - see shard_writer.h.

#include "data/shard_writer.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "data/tokens.h"
#include "error.h"
#include "sha256.h"

namespace octavo {

namespace {

constexpr std::size_t kPendingBytes = 1 << 20;

using Header = std::array<std::int32_t, kShardHeaderBytes / 4>;

}  // namespace

ShardWriter::ShardWriter(const NewFolder& folder, std::string prefix, std::int64_t vocab,
                         std::int64_t shard_tokens)
    : folder_(folder),
      prefix_(std::move(prefix)),
      wide_(vocab > 65536),
      shard_tokens_(shard_tokens),
      counts_(static_cast<std::size_t>(vocab)) {
  if (shard_tokens < 1 || shard_tokens > kMaxShardTokens) {
    refuse("tokens per shard: {}; allowed: 1 to {}", shard_tokens, kMaxShardTokens);
  }
}

void ShardWriter::open_shard() {
  shards_.push_back({fmt::format("{}_{:06}.bin", prefix_, shards_.size()), 0, ""});
  out_.emplace(folder_.file(shards_.back().name));
  const Header room{};
  out_->write(room.data(), kShardHeaderBytes);
}

void ShardWriter::close_shard() {
  DatasetShard& shard = shards_.back();
  flush();
  Header header{};
  header[0] = wide_ ? kShard32Magic : kShard16Magic;
  header[1] = wide_ ? kShard32Version : kShard16Version;
  header[2] = static_cast<std::int32_t>(shard.tokens);
  out_->overwrite(0, header.data(), kShardHeaderBytes);
  out_->commit();
  out_.reset();
  shard.sha256 = sha256_file(folder_.file(shard.name));
}

void ShardWriter::add(const void* data, std::size_t bytes) {
  if (bytes >= kPendingBytes) {
    flush();
    return out_->write(data, bytes);
  }
  const char* from = static_cast<const char*>(data);
  pending_.insert(pending_.end(), from, from + bytes);
  if (pending_.size() >= kPendingBytes) flush();
}

void ShardWriter::flush() {
  out_->write(pending_.data(), pending_.size());
  pending_.clear();
}

void ShardWriter::append(std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= counts_.size()) {
      throw std::logic_error(fmt::format("ShardWriter: id {} outside [0, {})", id, counts_.size()));
    }
    ++counts_[static_cast<std::size_t>(id)];
  }
  while (!ids.empty()) {
    if (!out_) open_shard();
    DatasetShard& shard = shards_.back();
    const std::size_t n = std::min(ids.size(), static_cast<std::size_t>(shard_tokens_ - shard.tokens));
    if (wide_) {
      add(ids.data(), 4 * n);
    } else {
      narrow_.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n));
      add(narrow_.data(), 2 * n);
    }
    shard.tokens += static_cast<std::int64_t>(n);
    tokens_ += static_cast<std::int64_t>(n);
    ids = ids.subspan(n);
    if (shard.tokens == shard_tokens_) close_shard();
  }
}

std::vector<DatasetShard> ShardWriter::finish() {
  if (out_) close_shard();
  return shards_;
}

}  // namespace octavo
