// tokens.cpp - streams over shards and text, and every fault of a file by its message.
#include "data/tokens.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

#include "catch.h"
#include "fixture.h"
#include "refusal.h"
#include "shard_bytes.h"
#include "temp_dir.h"

using namespace octavo;
using testing::refusal;
using testing::shard16;
using testing::shard32;
using Ids = std::vector<std::int32_t>;

namespace {

Ids all_of(const TokenStream& stream) {
  Ids ids(static_cast<std::size_t>(stream.size()));
  stream.read(0, stream.size(), ids.data());
  return ids;
}

std::string open_fault(const std::string& file, const std::string& format = "auto") {
  return refusal([&] { TokenStream::open({file}, format, bytes_tokenizer()); });
}

}  // namespace

TEST_CASE("streams: every format gives the ids that are in it") {
  const testing::TempDir dir;
  CHECK(all_of(TokenStream::open({dir.file("a.bin", shard16({50256, 1, 65535}))}, "auto", nullptr)) ==
        Ids{50256, 1, 65535});
  TokenStream wide = TokenStream::open({dir.file("b.bin", shard32({128000, 2, 70000}))}, "shard", nullptr);
  CHECK(all_of(wide) == Ids{128000, 2, 70000});
  const std::string raw16 = dir.file("c.bin", testing::id_bytes<std::uint16_t>({3, 40000}));
  CHECK(all_of(TokenStream::open({raw16}, "u16", nullptr)) == Ids{3, 40000});
  const std::string raw32 = dir.file("d.bin", testing::id_bytes<std::uint32_t>({3, 70000}));
  CHECK(all_of(TokenStream::open({raw32}, "u32", nullptr)) == Ids{3, 70000});
  const std::string text = dir.file("e.txt", "h\xC3\xA9");
  CHECK(all_of(TokenStream::open({text}, "auto", bytes_tokenizer())) == Ids{256, 'h', 0xC3, 0xA9});
  const TokenizerPtr bpe = load_tokenizer(testing::fixture("bpe/gpt2_style.json"));
  Ids expected = bpe->encode("the sheet");
  expected.insert(expected.begin(), bpe->eot());
  CHECK(all_of(TokenStream::open({dir.file("f.txt", "the sheet")}, "auto", bpe)) == expected);
}

TEST_CASE("streams: reads cross borders of files and slices") {
  const testing::TempDir dir;
  const std::vector<std::string> files = {dir.file("a.bin", shard16({1, 2, 3})), dir.file("b.txt", "xy"),
                                          dir.file("empty.txt", ""), dir.file("c.bin", shard32({9})),
                                          dir.file("d.txt", "z")};
  const TokenStream stream = TokenStream::open(files, "auto", bytes_tokenizer());
  const Ids whole = {1, 2, 3, 256, 'x', 'y', 9, 256, 'z'};
  REQUIRE(stream.size() == 9);
  for (std::int64_t begin = 0; begin <= 9; ++begin) {
    for (std::int64_t count = 0; begin + count <= 9; ++count) {
      Ids ids(static_cast<std::size_t>(count));
      stream.read(begin, count, ids.data());
      REQUIRE(std::equal(ids.begin(), ids.end(), whole.begin() + begin));
      REQUIRE(all_of(stream.slice(begin, count)) == ids);
    }
  }
  CHECK(all_of(stream.slice(2, 6).slice(1, 3)) == Ids{256, 'x', 'y'});
  Ids room(10);
  CHECK_THROWS_AS(stream.read(5, 5, room.data()), std::logic_error);
  CHECK_THROWS_AS(stream.read(-1, 1, room.data()), std::logic_error);
  CHECK_THROWS_AS(stream.slice(9, 1), std::logic_error);
  CHECK(TokenStream().empty());
}

TEST_CASE("streams: ids from memory are read as those of a file") {
  const TokenStream stream = TokenStream::of({5, 6, 7, 8});
  CHECK(stream.size() == 4);
  std::vector<std::int32_t> out(2);
  stream.slice(1, 3).read(1, 2, out.data());
  CHECK(out == std::vector<std::int32_t>{7, 8});
  CHECK(stream.scan(0).counts == std::vector<std::int64_t>{0, 0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(TokenStream::of({}).empty());
}

TEST_CASE("streams: a shard over 4 GiB is read at its far end") {
  // A sparse file: only the header and the last token take room on the disk.
  const testing::TempDir dir;
  const std::int64_t count = (std::int64_t{1} << 31) - 1;
  const std::string path = dir.file("large.bin", testing::shard_bytes(20240520, 1, INT32_MAX, ""));
  const std::uint16_t last = 12345;
  const int fd = ::open(path.c_str(), O_WRONLY);
  const bool written = pwrite(fd, &last, 2, 1024 + 2 * (count - 1)) == 2;
  ::close(fd);
  if (!written) {
    WARN("SKIPPED: this disk takes no sparse file of 4 GiB");
    return;
  }
  const TokenStream stream = TokenStream::open({path}, "auto", nullptr);
  REQUIRE(stream.size() == count);
  Ids ids(2);
  stream.read(count - 2, 2, ids.data());
  CHECK(ids == Ids{0, 12345});
  CHECK_FALSE(stream.scan(1 << 20).complete);
  CHECK(stream.scan(1 << 20).counts.size() == 12346);  // the sample has the last block
}

TEST_CASE("streams: an id outside the vocabulary is refused with file and position") {
  const testing::TempDir dir;
  const std::string file = dir.file("b.bin", shard16({1, 2, 500, 3}));
  TokenStream stream = TokenStream::open({dir.file("a.bin", shard16({1, 2})), file}, "auto", nullptr);
  stream.set_vocab(500);
  Ids ids(6);
  CHECK(refusal([&] { stream.read(0, 6, ids.data()); }) ==
        file + ": token 500 at position 2; allowed: ids below the vocabulary's 500");
  CHECK(refusal([&] { stream.scan(0); }) == refusal([&] { stream.read(0, 6, ids.data()); }));
  CHECK(refusal([&] { stream.slice(4, 1).read(0, 1, ids.data()); }) ==
        refusal([&] { stream.read(0, 6, ids.data()); }));
  stream.read(0, 4, ids.data());
  stream.set_vocab(501);
  stream.read(0, 6, ids.data());
  const std::string huge = dir.file("c.bin", shard32({1, 4294967295u}));
  const TokenStream wide = TokenStream::open({huge}, "auto", nullptr);
  CHECK_THAT(refusal([&] { wide.read(0, 2, ids.data()); }),
             ContainsSubstring("c.bin: token 4294967295 at position 1; allowed: ids below"));
}

TEST_CASE("streams: histogram and entropy") {
  const testing::TempDir dir;
  const TokenStream stream = TokenStream::open({dir.file("a.bin", shard16({0, 0, 1, 3}))}, "auto", nullptr);
  const TokenStream::Histogram histogram = stream.scan(0);
  CHECK(histogram.complete);
  CHECK(histogram.counts == std::vector<std::int64_t>{2, 1, 0, 1});
  CHECK(entropy_of(histogram.counts) == Approx(1.5 * std::log(2.0)).epsilon(1e-14));
  CHECK(entropy_of({5}) == 0.0);
  CHECK(stream.slice(2, 2).scan(0).counts == std::vector<std::int64_t>{0, 1, 0, 1});
  // Over the limit: a sample, which always has the first and the last block.
  std::vector<std::uint16_t> many(200000, 1);
  many.front() = 7;
  many.back() = 9;
  const TokenStream large = TokenStream::open({dir.file("b.bin", shard16(many))}, "auto", nullptr);
  const TokenStream::Histogram sample = large.scan(100000);
  CHECK_FALSE(sample.complete);
  CHECK(sample.counts.size() == 10);
  CHECK(sample.counts[7] == 1);
  CHECK(sample.counts[1] < 150000);
}

TEST_CASE("streams: every fault of a file is one line with the value and what is allowed") {
  const testing::TempDir dir;
  const std::string good = shard16({1, 2, 3});
  const auto fault = [&](const std::string& name, const std::string& bytes,
                         const std::string& format = "auto") {
    const std::string path = dir.file(name, bytes);
    const std::string message = open_fault(path, format);
    return message.starts_with(path + ": ") ? message.substr(path.size() + 2) : "NO FILE NAMED: " + message;
  };
  CHECK(fault("a.bin", good.substr(0, good.size() - 1)) ==
        "1029 bytes, but the header's 3 tokens need 1030; allowed: exactly that (is the file truncated?)");
  CHECK(fault("a.bin", good + "xx") ==
        "1032 bytes, but the header's 3 tokens need 1030; allowed: exactly that (is the file overwritten?)");
  CHECK(fault("a.bin", good.substr(0, 500)) ==
        "500 bytes, a truncated header; allowed: a header of 1024 bytes and tokens");
  CHECK(fault("a.bin", testing::shard_bytes(20240520, 7, 1, "ab")) ==
        "version 7 in the header; allowed: 1 for 16-bit shard");
  CHECK(fault("a.bin", testing::shard_bytes(20240801, 1, 1, "abcd")) ==
        "version 1 in the header; allowed: 7 for 32-bit shard");
  CHECK(fault("a.bin", testing::shard_bytes(20240520, 1, 0, "")) ==
        "0 tokens in the header; allowed: at least 1");
  CHECK_THAT(fault("a.bin", testing::shard_bytes(20240520, 1, -5, "ab")),
             ContainsSubstring("header's 4294967291 tokens need 8589935606"));
  CHECK(
      fault("a.bin", testing::shard_bytes(17, 1, 1, "ab")) ==
      "magic 17 (1026 bytes); allowed: 20240520 (16-bit shard), 20240801 (32-bit shard), or data.format u16, "
      "u32, text");
  CHECK_THAT(fault("a.bin", ""), ContainsSubstring("magic 0 (0 bytes); allowed: 20240520"));
  CHECK_THAT(fault("a.txt", "some text", "shard"), ContainsSubstring("magic 1701670771 (9 bytes)"));
  CHECK_THAT(fault("a.bin", testing::shard_bytes(20240522, 1, 1, "")),
             ContainsSubstring("that of a multiple-choice evaluation; allowed"));
  CHECK_THAT(fault("a.bin", testing::shard_bytes(20240326, 3, 1, "")),
             ContainsSubstring("that of an llm.c model"));
  CHECK_THAT(fault("a.dat", std::string("text\0text", 9)),
             ContainsSubstring("nor text (zero byte at 4); allowed"));
  CHECK(fault("a.bin", "abc", "u16") == "3 bytes read as raw u16; allowed: a multiple of 2, not 0");
  CHECK(fault("a.bin", "abcdef", "u32") == "6 bytes read as raw u32; allowed: a multiple of 4, not 0");
  CHECK_THAT(fault("a.bin", "", "u16"), ContainsSubstring("0 bytes read as raw u16"));
  CHECK_THAT(fault("a.bin", good, "u16"), ContainsSubstring("has a shard's header (magic 20240520)"));
  CHECK(fault("a.txt", "") == "0 bytes of text; allowed: at least one file with text");
  CHECK_THAT(open_fault((dir.path / "none.bin").string()), ContainsSubstring("cannot be read"));
  CHECK_THAT(open_fault(dir.path.string()), ContainsSubstring("is a folder"));
  CHECK(open_fault(dir.file("a.txt", "x"), "u8") ==
        "data.format: \"u8\"; allowed: auto, shard, u16, u32, text");
}
