// shard_writer.cpp - the bytes of the shards, held against bytes made by hand.
#include "data/shard_writer.h"

#include <filesystem>
#include <numeric>

#include "catch.h"
#include "file_size_limit.h"
#include "files.h"
#include "refusal.h"
#include "sha256.h"
#include "shard_bytes.h"
#include "temp_dir.h"

using namespace octavo;
using Ids = std::vector<std::int32_t>;

TEST_CASE("shards: 16 bits up to 65536 ids, 32 bits above, byte for byte") {
  const testing::TempDir dir;
  NewFolder folder((dir.path / "out").string());
  ShardWriter narrow(folder, "train", 65536, 3);
  narrow.append(Ids{1, 65535});
  narrow.append(Ids{});
  narrow.append(Ids{2, 3, 4, 5, 6});
  const std::vector<DatasetShard> shards = narrow.finish();
  REQUIRE(shards.size() == 3);
  const std::vector<std::string> expected = {testing::shard16({1, 65535, 2}), testing::shard16({3, 4, 5}),
                                             testing::shard16({6})};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(shards[i].name == "train_00000" + std::to_string(i) + ".bin");
    CHECK(read_whole_file(folder.file(shards[i].name)) == expected[i]);
    CHECK(shards[i].sha256 == sha256_hex(expected[i]));
  }
  CHECK(shards[0].tokens == 3);
  CHECK(shards[2].tokens == 1);
  CHECK(narrow.tokens() == 7);
  CHECK(narrow.counts()[65535] == 1);

  ShardWriter wide(folder, "val", 65537, 10);
  wide.append(Ids{65536, 0});
  const auto one = wide.finish();
  REQUIRE(one.size() == 1);
  CHECK(read_whole_file(folder.file(one[0].name)) == testing::shard32({65536, 0}));
  CHECK(ShardWriter(folder, "none", 10, 10).finish().empty());
}

TEST_CASE("shards: ids and sizes out of range, and a full disk") {
  const testing::TempDir dir;
  NewFolder folder((dir.path / "out").string());
  ShardWriter writer(folder, "train", 10, 1000000);
  CHECK_THROWS_AS(writer.append(Ids{10}), std::logic_error);
  CHECK_THROWS_AS(writer.append(Ids{-1}), std::logic_error);
  CHECK(testing::refusal([&] { ShardWriter w(folder, "train", 10, 0); }) ==
        "tokens per shard: 0; allowed: 1 to 2147483647");
  CHECK_THAT(testing::refusal([&] { ShardWriter w(folder, "train", 10, std::int64_t{1} << 31); }),
             ContainsSubstring("tokens per shard: 2147483648"));
  // One short document after the other, so that bytes are written in pieces.
  const testing::FileSizeLimit limit(4096);
  CHECK_THROWS_WITH(
      [&] {
        for (int i = 0; i < 100000; ++i) writer.append(Ids{1});
        writer.finish();
      }(),
      "cannot write " + folder.file("train_000000.bin") + ": File too large");
  CHECK(std::filesystem::is_empty(folder.folder()));
}
