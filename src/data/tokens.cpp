// tokens.cpp - see tokens.h.

#include "data/tokens.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "error.h"

namespace octavo {

namespace {

constexpr std::int32_t kEvaluationMagic = 20240522, kModelMagic = 20240326;  // llm.c's other files
constexpr std::size_t kTextProbe = 64 << 10;
constexpr std::int64_t kScanBlock = 16384;  // tokens

std::int32_t header_field(const MappedFile& file, std::size_t i) {
  std::int32_t value = 0;
  if (file.size() >= 4 * (i + 1)) std::memcpy(&value, file.data() + 4 * i, 4);
  return value;
}

constexpr std::int64_t width_of(TokenFormat format) {
  switch (format) {
    case TokenFormat::shard16:
    case TokenFormat::raw16:
      return 2;
    case TokenFormat::shard32:
    case TokenFormat::raw32:
      return 4;
    case TokenFormat::text:
      return 1;
  }
  return 0;
}

constexpr bool has_header(TokenFormat format) {
  return format == TokenFormat::shard16 || format == TokenFormat::shard32;
}

void check_shard(const MappedFile& file, TokenFormat format) {
  const std::int32_t version = header_field(file, 1);
  const std::int32_t allowed = format == TokenFormat::shard16 ? kShard16Version : kShard32Version;
  if (file.size() < kShardHeaderBytes) {
    refuse("{}: {} bytes, a truncated header; allowed: a header of {} bytes and tokens", file.path(),
           file.size(), kShardHeaderBytes);
  }
  if (version != allowed) {
    refuse("{}: version {} in the header; allowed: {} for {}", file.path(), version, allowed,
           name_of(format));
  }
  const std::uint32_t count = static_cast<std::uint32_t>(header_field(file, 2));
  if (count == 0) refuse("{}: 0 tokens in the header; allowed: at least 1", file.path());
  const std::uint64_t expected = kShardHeaderBytes + static_cast<std::uint64_t>(width_of(format)) * count;
  if (file.size() != expected) {
    refuse("{}: {} bytes, but the header's {} tokens need {}; allowed: exactly that (is the file {}?)",
           file.path(), file.size(), count, expected, file.size() < expected ? "truncated" : "overwritten");
  }
}

TokenFormat check_raw(const MappedFile& file, TokenFormat format) {
  const std::size_t width = static_cast<std::size_t>(width_of(format));
  const std::int32_t magic = header_field(file, 0);
  if (file.size() == 0 || file.size() % width != 0) {
    refuse("{}: {} bytes read as {}; allowed: a multiple of {}, not 0", file.path(), file.size(),
           name_of(format), width);
  }
  if (magic == kShard16Magic || magic == kShard32Magic) {
    refuse("{}: has a shard's header (magic {}), but data.format asks for {}; allowed: \"auto\" or \"shard\"",
           file.path(), magic, name_of(format));
  }
  return format;
}

}  // namespace

const char* name_of(TokenFormat format) {
  switch (format) {
    case TokenFormat::shard16:
      return "16-bit shard";
    case TokenFormat::shard32:
      return "32-bit shard";
    case TokenFormat::raw16:
      return "raw u16";
    case TokenFormat::raw32:
      return "raw u32";
    case TokenFormat::text:
      return "text";
  }
  return "?";
}

TokenFormat detect_format(const MappedFile& file, const std::string& format) {
  if (format == "u16") return check_raw(file, TokenFormat::raw16);
  if (format == "u32") return check_raw(file, TokenFormat::raw32);
  if (format == "text") return TokenFormat::text;
  if (format != "auto" && format != "shard") {
    refuse("data.format: \"{}\"; allowed: auto, shard, u16, u32, text", format);
  }
  const std::int32_t magic = header_field(file, 0);
  if (magic == kShard16Magic || magic == kShard32Magic) {
    const TokenFormat shard = magic == kShard16Magic ? TokenFormat::shard16 : TokenFormat::shard32;
    check_shard(file, shard);
    return shard;
  }
  if (magic == kEvaluationMagic || magic == kModelMagic) {
    refuse("{}: magic {} is that of {}; allowed: {} (16-bit shard), {} (32-bit shard), or text", file.path(),
           magic, magic == kModelMagic ? "an llm.c model" : "a multiple-choice evaluation", kShard16Magic,
           kShard32Magic);
  }
  if (format == "shard" || std::filesystem::path(file.path()).extension() == ".bin") {
    refuse(
        "{}: magic {} ({} bytes); allowed: {} (16-bit shard), {} (32-bit shard), or data.format u16, u32, "
        "text",
        file.path(), magic, file.size(), kShard16Magic, kShard32Magic);
  }
  const std::string_view probe = file.text().substr(0, kTextProbe);
  if (const std::size_t zero = probe.find('\0'); zero != std::string_view::npos) {
    refuse(
        "{}: neither a shard (magic {}) nor text (zero byte at {}); allowed: {}, {}, or data.format u16, "
        "u32, text",
        file.path(), magic, zero, kShard16Magic, kShard32Magic);
  }
  return TokenFormat::text;
}

// One file: ids in the mapping, or, for text under BPE and for ids without a file, in memory.
struct TokenStream::Segment {
  MappedFile file;
  TokenFormat format;
  std::int64_t first = 0, count = 0;  // place in the stream
  std::int32_t eot = -1;              // byte text: the token before the first byte
  std::vector<std::int32_t> encoded;

  void read(std::int64_t begin, std::int64_t n, std::int32_t* out) const {
    if (!encoded.empty()) {
      std::copy_n(encoded.begin() + begin, n, out);
      return;
    }
    const std::uint8_t* const p =
        file.data() + (has_header(format) ? kShardHeaderBytes : 0) + width_of(format) * begin;
    if (format == TokenFormat::text) {
      std::int64_t i = 0;
      if (begin == 0) out[i++] = eot;
      for (; i < n; ++i) out[i] = file.data()[begin + i - 1];
    } else if (width_of(format) == 2) {
      for (std::int64_t i = 0; i < n; ++i) {
        std::uint16_t id;
        std::memcpy(&id, p + 2 * i, 2);
        out[i] = id;
      }
    } else {
      std::memcpy(out, p, static_cast<std::size_t>(4 * n));
    }
  }
};

TokenStream TokenStream::open(const std::vector<std::string>& files, const std::string& format,
                              const TokenizerPtr& tokenizer) {
  auto segments = std::make_shared<std::vector<Segment>>();
  TokenStream stream;
  for (const std::string& path : files) {
    MappedFile file(path);
    const TokenFormat kind = detect_format(file, format);
    const std::int64_t bytes = static_cast<std::int64_t>(file.size());
    Segment segment{std::move(file), kind, stream.end_, 0, -1, {}};
    if (kind != TokenFormat::text) {
      segment.count =
          (bytes - (has_header(kind) ? static_cast<std::int64_t>(kShardHeaderBytes) : 0)) / width_of(kind);
    } else if (bytes == 0) {
      continue;
    } else if (!tokenizer) {
      throw std::logic_error("TokenStream: text without a tokenizer");
    } else if (tokenizer->is_bytes()) {
      segment.eot = tokenizer->eot();
      segment.count = bytes + 1;
    } else {
      segment.encoded = tokenizer->encode(segment.file.text());
      segment.encoded.insert(segment.encoded.begin(), tokenizer->eot());
      segment.count = static_cast<std::int64_t>(segment.encoded.size());
    }
    stream.end_ += segment.count;
    segments->push_back(std::move(segment));
  }
  if (stream.end_ == 0) refuse("{}: 0 bytes of text; allowed: at least one file with text", files.front());
  stream.segments_ = std::move(segments);
  return stream;
}

TokenStream TokenStream::of(std::vector<std::int32_t> ids) {
  TokenStream stream;
  stream.end_ = static_cast<std::int64_t>(ids.size());
  auto segments = std::make_shared<std::vector<Segment>>();
  segments->push_back({MappedFile(), TokenFormat::raw32, 0, stream.end_, -1, std::move(ids)});
  stream.segments_ = std::move(segments);
  return stream;
}

void TokenStream::read(std::int64_t begin, std::int64_t count, std::int32_t* out) const {
  if (begin < 0 || count < 0 || begin + count > size()) {
    throw std::logic_error(
        fmt::format("TokenStream: [{}, {}) outside [0, {})", begin, begin + count, size()));
  }
  std::int64_t at = begin_ + begin;
  if (count == 0) return;
  auto segment = std::upper_bound(segments_->begin(), segments_->end(), at,
                                  [](std::int64_t place, const Segment& s) { return place < s.first; });
  --segment;
  while (count > 0) {
    const std::int64_t inside = at - segment->first;
    const std::int64_t n = std::min(count, segment->count - inside);
    segment->read(inside, n, out);
    for (std::int64_t i = 0; i < n; ++i) {
      // 32-bit ids from 2^31 on are negative here, and large as unsigned.
      const std::int64_t id = static_cast<std::uint32_t>(out[i]);
      if (id >= vocab_) {
        refuse("{}: token {} at position {}; allowed: ids below the vocabulary's {}", segment->file.path(),
               id, inside + i, vocab_);
      }
    }
    at += n;
    out += n;
    count -= n;
    ++segment;
  }
}

TokenStream TokenStream::slice(std::int64_t begin, std::int64_t count) const {
  if (begin < 0 || count < 0 || begin + count > size()) throw std::logic_error("TokenStream: bad slice");
  TokenStream part = *this;
  part.begin_ = begin_ + begin;
  part.end_ = part.begin_ + count;
  return part;
}

TokenStream::Histogram TokenStream::scan(std::size_t limit) const {
  std::int64_t bytes = 0;
  for (const Segment& s : *segments_) {
    const std::int64_t overlap = std::min(end_, s.first + s.count) - std::max(begin_, s.first);
    bytes += std::max<std::int64_t>(overlap, 0) * width_of(s.format);
  }
  // Every stride-th block, the first and the last one included; stride 1 reads everything.
  const std::int64_t most = static_cast<std::int64_t>(limit);
  const std::int64_t stride = limit == 0 ? 1 : std::max<std::int64_t>(1, (bytes + most - 1) / most);
  Histogram histogram;
  histogram.complete = stride == 1;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(kScanBlock));
  const std::int64_t blocks = (size() + kScanBlock - 1) / kScanBlock;
  for (std::int64_t block = 0; block < blocks; ++block) {
    if (block % stride != 0 && block != blocks - 1) continue;
    const std::int64_t begin = block * kScanBlock;
    const std::int64_t n = std::min(kScanBlock, size() - begin);
    read(begin, n, ids.data());
    for (std::int64_t i = 0; i < n; ++i) {
      const std::size_t id = static_cast<std::size_t>(ids[static_cast<std::size_t>(i)]);
      if (id >= histogram.counts.size()) histogram.counts.resize(id + 1);
      ++histogram.counts[id];
    }
  }
  return histogram;
}

double entropy_of(const std::vector<std::int64_t>& counts) {
  double total = 0;
  for (const std::int64_t n : counts) total += static_cast<double>(n);
  double entropy = 0;
  for (const std::int64_t n : counts) {
    const double p = static_cast<double>(n) / total;
    if (n > 0) entropy -= p * std::log(p);
  }
  return entropy;
}

}  // namespace octavo
