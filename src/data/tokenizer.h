// tokenizer.h - text to token ids and back: plain bytes, or byte-level BPE as in GPT-2 and Llama 3.
//
// Bytes are the byte-level BPE without merges: ids 0-255 are the bytes, 256 is end-of-text. Both are read
// from and written as a Hugging Face tokenizer.json, so a checkpoint's tokenizer opens in transformers too.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace octavo {

class Tokenizer;
using TokenizerPtr = std::shared_ptr<const Tokenizer>;

/// What defines a tokenizer; parse_tokenizer() makes it from a tokenizer.json.
struct TokenizerSpec {
  struct Added {
    std::int32_t id;
    std::string content;
    bool first_pass;  // found before the others, as Hugging Face finds tokens that are not "normalized"
  };
  std::vector<std::string> bytes;                             // id -> bytes; empty where an id is not used
  std::array<std::int32_t, 256> byte_ids{};                   // byte -> id
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  // by rank; the result is merge_results[rank]
  std::vector<std::int32_t> merge_results;
  std::vector<Added> added;         // matched in text before anything else
  std::string pattern;              // pre-tokenizer (PCRE2 syntax); empty: text is not split
  bool whole_pieces_first = false;  // a piece that is in the vocabulary is taken whole ("ignore_merges")
  std::int32_t eot = -1;
  std::string json;    // the file's text: what save() writes
  std::string origin;  // names the file in messages
};

class Tokenizer {
 public:
  explicit Tokenizer(TokenizerSpec spec);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Ids of `text`, any bytes: decode(encode(x)) == x always. Bytes that are not UTF-8 are pieces of their
  /// own. BPE finds added tokens ("<|endoftext|>") in the text, as Hugging Face does; the bytes tokenizer
  /// takes text as it is. No end-of-text is put before or after. Safe to call from several threads.
  std::vector<std::int32_t> encode(std::string_view text) const;

  /// Bytes of ids, concatenated: may begin or end inside a UTF-8 character. Added tokens give their text.
  std::string decode(std::span<const std::int32_t> ids) const;
  /// Bytes of one id, for streaming; empty for an id that no text uses. Throws std::logic_error outside
  /// [0, vocab).
  const std::string& bytes_of(std::int32_t id) const;

  std::int64_t vocab() const { return static_cast<std::int64_t>(spec_.bytes.size()); }
  std::int32_t eot() const { return spec_.eot; }
  /// "bytes" or "bpe".
  std::string kind() const { return is_bytes_ ? "bytes" : "bpe"; }
  bool is_bytes() const { return is_bytes_; }
  /// Identity (SHA-256 over vocabulary, merges, added tokens and splitting, not over the file's spelling).
  const std::string& hash() const { return hash_; }

  /// Writes tokenizer.json and tokenizer_config.json into an existing folder; transformers' AutoTokenizer
  /// reads them. Throws RunError.
  void save(const std::string& folder) const;

 private:
  struct Regex;
  void encode_plain(std::string_view text, std::vector<std::int32_t>& out) const;
  void encode_pieces(std::string_view text, std::vector<std::int32_t>& out) const;
  void encode_piece(std::string_view piece, std::vector<std::int32_t>& out) const;
  void merge(std::string_view piece, std::vector<std::int32_t>& out) const;
  void split_added(std::string_view text, bool first_pass, std::vector<std::int32_t>& out) const;

  struct Merge {
    std::int32_t rank, result;
  };
  TokenizerSpec spec_;
  bool is_bytes_ = false;
  std::string hash_;
  std::unordered_map<std::uint64_t, Merge> merges_;         // left << 32 | right
  std::unordered_map<std::string, std::int32_t> whole_;     // only with whole_pieces_first
  std::array<std::vector<std::size_t>, 256> added_starts_;  // first byte -> added tokens, longest first
  std::unique_ptr<Regex> regex_;
  mutable std::mutex cache_mutex_;
  mutable std::unordered_map<std::string, std::vector<std::int32_t>> cache_;  // pieces already merged
};

/// The bytes tokenizer: vocabulary 257, end-of-text 256.
TokenizerPtr bytes_tokenizer();

/// "bytes", a tokenizer.json, or a folder that holds one (a checkpoint, a Hugging Face folder). Throws
/// RequestError: unreadable, or a feature that is not supported, by its name.
TokenizerPtr load_tokenizer(const std::string& name);

/// The tokenizer saved in a checkpoint or Hugging Face folder, or null where it holds no tokenizer.json.
TokenizerPtr find_tokenizer(const std::string& folder);

/// Checks and takes apart the text of a tokenizer.json; `origin` names it in messages. Throws RequestError.
TokenizerSpec parse_tokenizer(const std::string& json, const std::string& origin);

/// GPT-2's byte alphabet: the character (UTF-8) that stands for each byte in a byte-level vocabulary.
const std::array<std::string, 256>& byte_alphabet();

}  // namespace octavo
