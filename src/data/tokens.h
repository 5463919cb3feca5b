// tokens.h - the token stream: memory-mapped shards and text files, one after the other.
//
// Formats, little-endian: 16-bit shards (int32[256] header 20240520, 1, count; then u16), 32-bit shards
// (20240801, 7, count; then u32), raw u16 or u32, and text files whose bytes are the tokens. Shards are taken
// as they are; a text file is one document and begins with end-of-text, as every document of a shard does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/input_files.h"
#include "data/tokenizer.h"
#include "shape_bounds.h"

namespace octavo {

inline constexpr std::int32_t kShard16Magic = 20240520, kShard16Version = 1;
inline constexpr std::int32_t kShard32Magic = 20240801, kShard32Version = 7;
inline constexpr std::size_t kShardHeaderBytes = 1024;

/// What a file holds: "shard" header with 2 or 4 bytes a token, raw ids, or text.
enum class TokenFormat : std::uint8_t { shard16, shard32, raw16, raw32, text };
const char* name_of(TokenFormat format);

/// Decides what `file` holds. `format` is data.format: "auto" | "shard" | "u16" | "u32" | "text"; auto goes
/// by the magic number, and what has none is text, unless it is named .bin or has a zero byte in its first
/// 64 KiB. Checks header, version, count and size. Throws RequestError naming file, value found and what is
/// allowed.
TokenFormat detect_format(const MappedFile& file, const std::string& format);

/// A stretch of one file (or of its text, encoded) as tokens. Cheap to copy; reading is thread-safe.
class TokenStream {
 public:
  TokenStream() = default;

  /// Opens files in the given order. Text is read with `tokenizer`: bytes are mapped, BPE is encoded now, in
  /// memory. Empty text files contribute nothing. Throws RequestError.
  static TokenStream open(const std::vector<std::string>& files, const std::string& format,
                          const TokenizerPtr& tokenizer);

  /// The ids given, from memory.
  static TokenStream of(std::vector<std::int32_t> ids);

  std::int64_t size() const { return end_ - begin_; }
  bool empty() const { return size() == 0; }

  /// Tokens [begin, begin + count) into out. Throws RequestError naming file and position when an id is not
  /// in [0, vocab), std::logic_error outside [0, size()).
  void read(std::int64_t begin, std::int64_t count, std::int32_t* out) const;

  /// Ids that read() lets pass are below this; kMaxVocab until it is set.
  void set_vocab(std::int64_t vocab) { vocab_ = vocab; }
  std::int64_t vocab() const { return vocab_; }

  /// The same tokens, [begin, begin + count) of them.
  TokenStream slice(std::int64_t begin, std::int64_t count) const;

  struct Histogram {
    std::vector<std::int64_t> counts;  // by id
    bool complete = true;              // false: from a sample
  };
  /// Reads everything where the stream has at most `limit` bytes on disk (0: no limit), else an even sample
  /// of that many bytes, and counts the ids. Throws as read() does.
  Histogram scan(std::size_t limit) const;

  struct Segment;  // one file

 private:
  std::shared_ptr<const std::vector<Segment>> segments_;
  std::int64_t begin_ = 0, end_ = 0;
  std::int64_t vocab_ = kMaxVocab;
};

/// Entropy of a histogram in nats per token.
double entropy_of(const std::vector<std::int64_t>& counts);

}  // namespace octavo
