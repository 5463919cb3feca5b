// tokenizer.cpp - encoding and decoding; how a tokenizer.json is read stands in tokenizer_json.cpp.
//
// The way of a text: added tokens are cut out, the rest is split into pieces by the pre-tokenizer's regular
// expression, each piece's bytes become symbols, and the pair of lowest rank is merged until none is left
// (Sennrich, Haddow, Birch, 2016, over bytes as GPT-2 does it).

#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <pcre2.h>
#include <queue>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "error.h"
#include "files.h"
#include "sha256.h"

namespace octavo {

namespace {

constexpr std::size_t kCachedPieceBytes = 64;
constexpr std::size_t kCachedPieces = 1 << 17;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

// Length of the valid UTF-8 character at the start of `s`, 0 where there is none (Unicode 15, table 3-7).
std::size_t utf8_length(std::string_view s) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(s[i]); };
  const auto within = [&](std::size_t i, unsigned low, unsigned high) {
    return i < s.size() && byte(i) >= low && byte(i) <= high;
  };
  const unsigned b = byte(0);
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b <= 0xDF) return within(1, 0x80, 0xBF) ? 2 : 0;
  if (b >= 0xE0 && b <= 0xEF) {
    const unsigned low = b == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = b == 0xED ? 0x9F : 0xBF;
    return within(1, low, high) && within(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (b >= 0xF0 && b <= 0xF4) {
    const unsigned low = b == 0xF0 ? 0x90 : 0x80;
    const unsigned high = b == 0xF4 ? 0x8F : 0xBF;
    return within(1, low, high) && within(2, 0x80, 0xBF) && within(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

// Length of the longest prefix that is all valid (`valid`) or all invalid UTF-8.
std::size_t run_length(std::string_view s, bool valid) {
  std::size_t n = 0;
  while (n < s.size()) {
    const std::size_t step = utf8_length(s.substr(n));
    if ((step > 0) != valid) break;
    n += std::max<std::size_t>(step, 1);
  }
  return n;
}

std::string utf8_character(unsigned code) {  // below U+0800
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// Everything that decides which ids a text gets, each part with its length, so that no two differ unseen.
std::string identity(const TokenizerSpec& spec) {
  Sha256 hash;
  const auto add = [&](std::string_view text) { hash.update(fmt::format("{}:{};", text.size(), text)); };
  add("octavo tokenizer 1");
  for (const std::string& bytes : spec.bytes) add(bytes);
  add("merges");
  for (const auto& [left, right] : spec.merges) hash.update(fmt::format("{} {};", left, right));
  add("added");
  for (const TokenizerSpec::Added& token : spec.added) {
    add(fmt::format("{} {} {}", token.id, token.first_pass, token.content));
  }
  add(spec.pattern);
  add(fmt::format("{} {}", spec.whole_pieces_first, spec.eot));
  return hash.hex();
}

TokenizerSpec bytes_spec() {
  nlohmann::ordered_json vocab = nlohmann::ordered_json::object();
  for (std::size_t b = 0; b < 256; ++b) vocab[byte_alphabet()[b]] = b;
  const nlohmann::ordered_json added = {
      {"id", 256},       {"content", "<|endoftext|>"}, {"single_word", false}, {"lstrip", false},
      {"rstrip", false}, {"normalized", false},        {"special", true}};
  const nlohmann::ordered_json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const nlohmann::ordered_json model = {{"type", "BPE"},
                                        {"dropout", nullptr},
                                        {"unk_token", nullptr},
                                        {"continuing_subword_prefix", nullptr},
                                        {"end_of_word_suffix", nullptr},
                                        {"fuse_unk", false},
                                        {"byte_fallback", false},
                                        {"vocab", vocab},
                                        {"merges", nlohmann::ordered_json::array()}};
  const nlohmann::ordered_json file = {{"version", "1.0"},
                                       {"truncation", nullptr},
                                       {"padding", nullptr},
                                       {"added_tokens", nlohmann::ordered_json::array({added})},
                                       {"normalizer", nullptr},
                                       {"pre_tokenizer", byte_level},
                                       {"post_processor", nullptr},
                                       {"decoder", byte_level},
                                       {"model", model}};
  return parse_tokenizer(file.dump(1) + "\n", "the bytes tokenizer");
}

const std::string& bytes_identity() {
  static const std::string id = identity(bytes_spec());
  return id;
}

}  // namespace

struct Tokenizer::Regex {
  pcre2_code* code = nullptr;

  Regex(const std::string& pattern, const std::string& origin) {
    int error = 0;
    PCRE2_SIZE at = 0;
    // \C would split characters, and what is left of one is no valid text to go on with.
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
    if (code == nullptr) {
      std::array<PCRE2_UCHAR, 256> text{};
      pcre2_get_error_message(error, text.data(), text.size());
      refuse(
          "{}: pre_tokenizer.pretokenizers[0].pattern.Regex is {}: {} at character {}; allowed: a regular "
          "expression of PCRE2",
          origin, json_excerpt(pattern), reinterpret_cast<const char*>(text.data()), at);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where it cannot, pcre2_match() interprets
  }
  ~Regex() { pcre2_code_free(code); }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;
};

Tokenizer::Tokenizer(TokenizerSpec spec) : spec_(std::move(spec)), hash_(identity(spec_)) {
  is_bytes_ = spec_.merges.empty() && spec_.bytes.size() == 257 && hash_ == bytes_identity();
  for (std::size_t rank = 0; rank < spec_.merges.size(); ++rank) {
    const auto [left, right] = spec_.merges[rank];
    merges_.insert_or_assign(pair_key(left, right),
                             Merge{static_cast<std::int32_t>(rank), spec_.merge_results[rank]});
  }
  if (spec_.whole_pieces_first) {
    for (std::size_t id = 0; id < spec_.bytes.size(); ++id) {
      whole_.emplace(spec_.bytes[id], static_cast<std::int32_t>(id));
    }
  }
  for (std::size_t i = 0; i < spec_.added.size(); ++i) {
    added_starts_[static_cast<std::uint8_t>(spec_.added[i].content.front())].push_back(i);
  }
  for (auto& starts : added_starts_) {
    std::stable_sort(starts.begin(), starts.end(), [&](std::size_t a, std::size_t b) {
      return spec_.added[a].content.size() > spec_.added[b].content.size();
    });
  }
  if (!spec_.pattern.empty()) regex_ = std::make_unique<Regex>(spec_.pattern, spec_.origin);
}

Tokenizer::~Tokenizer() = default;

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  if (is_bytes_) {
    ids.resize(text.size());
    std::transform(text.begin(), text.end(), ids.begin(),
                   [](char c) { return static_cast<std::uint8_t>(c); });
    return ids;
  }
  const std::lock_guard lock(cache_mutex_);
  split_added(text, true, ids);
  return ids;
}

// Cuts added tokens out of `text` (leftmost, then longest): first those of the first pass, then, in what is
// left, the others. What remains goes to the pre-tokenizer.
void Tokenizer::split_added(std::string_view text, bool first_pass, std::vector<std::int32_t>& out) const {
  const auto rest = [&](std::string_view part) {
    if (part.empty()) return;
    if (first_pass) {
      split_added(part, false, out);
    } else {
      encode_plain(part, out);
    }
  };
  std::size_t begin = 0;
  std::size_t i = 0;
  while (i < text.size()) {
    const std::vector<std::size_t>& candidates = added_starts_[static_cast<std::uint8_t>(text[i])];
    const auto found = std::find_if(candidates.begin(), candidates.end(), [&](std::size_t k) {
      const TokenizerSpec::Added& token = spec_.added[k];
      return token.first_pass == first_pass && text.substr(i).starts_with(token.content);
    });
    if (found == candidates.end()) {
      ++i;
      continue;
    }
    rest(text.substr(begin, i - begin));
    out.push_back(spec_.added[*found].id);
    i += spec_.added[*found].content.size();
    begin = i;
  }
  rest(text.substr(begin));
}

// Splits off what is not UTF-8, so that the regular expression only ever sees valid text.
void Tokenizer::encode_plain(std::string_view text, std::vector<std::int32_t>& out) const {
  for (bool valid = true; !text.empty(); valid = !valid) {
    const std::string_view run = text.substr(0, run_length(text, valid));
    text.remove_prefix(run.size());
    if (run.empty()) continue;
    if (valid && regex_) {
      encode_pieces(run, out);
    } else {
      encode_piece(run, out);
    }
  }
}

void Tokenizer::encode_pieces(std::string_view text, std::vector<std::int32_t>& out) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(match.get());
  std::size_t done = 0;
  while (done < text.size()) {
    const int rc = pcre2_match(regex_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), done,
                               PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match.get(), nullptr);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
      fail("{}: PCRE2 error {} while splitting text at byte {}", spec_.origin, rc, done);
    }
    // Text between matches is a piece too ("isolated" splitting keeps what the pattern does not name).
    const std::size_t from = rc < 0 ? text.size() : range[0];
    if (from > done) encode_piece(text.substr(done, from - done), out);
    if (rc < 0) break;
    encode_piece(text.substr(from, range[1] - from), out);
    done = range[1];
  }
}

void Tokenizer::encode_piece(std::string_view piece, std::vector<std::int32_t>& out) const {
  if (spec_.merges.empty() && !spec_.whole_pieces_first) return merge(piece, out);
  const bool cacheable = piece.size() <= kCachedPieceBytes;
  if (cacheable) {
    const auto known = cache_.find(std::string(piece));
    if (known != cache_.end()) {
      out.insert(out.end(), known->second.begin(), known->second.end());
      return;
    }
  }
  const std::size_t before = out.size();
  const auto whole = spec_.whole_pieces_first ? whole_.find(std::string(piece)) : whole_.end();
  if (whole != whole_.end()) {
    out.push_back(whole->second);
  } else {
    merge(piece, out);
  }
  if (cacheable) {
    if (cache_.size() >= kCachedPieces) cache_.clear();
    cache_.emplace(piece,
                   std::vector<std::int32_t>(out.begin() + static_cast<std::ptrdiff_t>(before), out.end()));
  }
}

// A heap of candidate pairs over a doubly linked list: n log n, so that a piece of a megabyte is no trap.
void Tokenizer::merge(std::string_view piece, std::vector<std::int32_t>& out) const {
  struct Symbol {
    std::int32_t id;
    std::int64_t previous, next;  // -1: none
  };
  struct Candidate {
    std::int32_t rank;
    std::int64_t at;  // left symbol
    std::int32_t left, right;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  const std::int64_t n = static_cast<std::int64_t>(piece.size());
  std::vector<Symbol> symbols(piece.size());
  const auto symbol = [&](std::int64_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint8_t byte = static_cast<std::uint8_t>(piece[static_cast<std::size_t>(i)]);
    symbol(i) = {spec_.byte_ids[byte], i - 1, i + 1 < n ? i + 1 : -1};
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto propose = [&](std::int64_t at) {
    if (at < 0 || symbol(at).next < 0) return;
    const std::int32_t left = symbol(at).id;
    const std::int32_t right = symbol(symbol(at).next).id;
    const auto found = merges_.find(pair_key(left, right));
    if (found != merges_.end()) heap.push({found->second.rank, at, left, right});
  };
  for (std::int64_t i = 0; i + 1 < n; ++i) propose(i);
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    Symbol& left = symbol(top.at);
    // Outdated: one of the two has been merged since (a symbol that is gone has id -1).
    if (left.id != top.left || left.next < 0 || symbol(left.next).id != top.right) continue;
    Symbol& right = symbol(left.next);
    left.id = merges_.at(pair_key(top.left, top.right)).result;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).previous = top.at;
    propose(left.previous);
    propose(top.at);
  }
  for (std::int64_t i = n > 0 ? 0 : -1; i >= 0; i = symbol(i).next) out.push_back(symbol(i).id);
}

const std::string& Tokenizer::bytes_of(std::int32_t id) const {
  if (id < 0 || id >= vocab())
    throw std::logic_error(fmt::format("token id {} outside [0, {})", id, vocab()));
  return spec_.bytes[static_cast<std::size_t>(id)];
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) text += bytes_of(id);
  return text;
}

void Tokenizer::save(const std::string& folder) const {
  const std::string& eot_text = bytes_of(spec_.eot);
  const nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                         {"bos_token", eot_text},
                                         {"eos_token", eot_text},
                                         {"clean_up_tokenization_spaces", false}};
  const std::filesystem::path path(folder);
  write_file_atomically(path / "tokenizer.json", spec_.json);
  write_file_atomically(path / "tokenizer_config.json", config.dump(1) + "\n");
}

TokenizerPtr bytes_tokenizer() {
  static const TokenizerPtr tokenizer = std::make_shared<const Tokenizer>(bytes_spec());
  return tokenizer;
}

const std::array<std::string, 256>& byte_alphabet() {
  // Printable Latin-1 stands for itself; the 68 other bytes take the characters from U+0100 on, in order.
  static const std::array<std::string, 256> alphabet = [] {
    std::array<std::string, 256> letters;
    unsigned spare = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      letters[b] = utf8_character(printable ? b : spare++);
    }
    return letters;
  }();
  return alphabet;
}

}  // namespace octavo
