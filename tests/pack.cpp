// pack.cpp - text that comes back from its shards byte by byte, a split by content, nothing left after
// faults.
#include "data/pack.h"

#include <filesystem>
#include <set>

#include "catch.h"
#include "data/tokenizer.h"
#include "data/tokens.h"
#include "file_size_limit.h"
#include "files.h"
#include "fixture.h"
#include "refusal.h"
#include "shard_bytes.h"
#include "temp_dir.h"

using namespace octavo;
using testing::fixture;
using testing::refusal;
namespace fs = std::filesystem;

namespace {

const std::string kSpanish =
    "Año nuevo: el pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.\n"
    "¿Añoraba a su querido cachorro? ¡Sí, señor! «Cigüeña», dijo — «corazón» … 25 €.\n";

void quiet(const std::string&) {}

std::vector<std::string> split_documents(const std::string& folder, const std::vector<DatasetShard>& shards) {
  std::vector<std::string> files;
  for (const DatasetShard& shard : shards) files.push_back(folder + "/" + shard.name);
  const TokenStream stream = TokenStream::open(files, "shard", nullptr);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(stream.size()));
  stream.read(0, stream.size(), ids.data());
  const TokenizerPtr tokenizer = load_tokenizer(folder);
  std::vector<std::string> documents;
  for (const std::int32_t id : ids) {
    if (id == tokenizer->eot()) {
      documents.emplace_back();
    } else {
      documents.at(documents.size() - 1) += tokenizer->bytes_of(id);
    }
  }
  return documents;
}

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("pack: Spanish text in UTF-8, and bytes that are no text, come back as they were") {
  const testing::TempDir dir;
  const std::string odd = "\xFF\xFE bytes \xC3 and \x80";
  for (const std::string& tokenizer : {std::string("bytes"), fixture("bpe/gpt2_style.json")}) {
    for (const std::int64_t shard_tokens : {7, 100000}) {  // documents across shards
      const std::string out = (dir.path / "out").string();
      const DatasetDescription d =
          pack_text({{dir.file("b.txt", kSpanish), dir.file("a.txt", odd), dir.file("empty.txt", "")},
                     out,
                     tokenizer,
                     shard_tokens,
                     0},
                    quiet);
      CHECK(split_documents(out, d.train) == std::vector<std::string>{kSpanish, odd});
      CHECK(d.documents == 2);
      CHECK(d.val.empty());
      CHECK(d.tokenizer_hash == load_tokenizer(tokenizer)->hash());
      fs::remove_all(out);
    }
  }
}

TEST_CASE("pack: the stream is the one that the same files give as text") {
  const testing::TempDir dir;
  const std::vector<std::string> files = {dir.file("b.txt", kSpanish), dir.file("a.txt", "more")};
  const std::string out = (dir.path / "out").string();
  const DatasetDescription d = pack_text({files, out, "bytes", 1000, 0}, quiet);
  const TokenStream text = TokenStream::open(files, "text", bytes_tokenizer());
  const TokenStream packed = TokenStream::open({out + "/" + d.train[0].name}, "shard", nullptr);
  REQUIRE(text.size() == packed.size());
  std::vector<std::int32_t> a(static_cast<std::size_t>(text.size())), b(a);
  text.read(0, text.size(), a.data());
  packed.read(0, packed.size(), b.data());
  CHECK(a == b);
  CHECK(*d.unigram_entropy == Approx(entropy_of(text.scan(0).counts)).epsilon(1e-14));
  CHECK(fs::exists(out + "/dataset.json"));
  CHECK(fs::exists(out + "/tokenizer.json"));
}

TEST_CASE("pack: <|endoftext|> in a text divides documents under BPE, and is text under bytes") {
  const testing::TempDir dir;
  const std::string file = dir.file("a.txt", "one<|endoftext|>two");
  const std::string bpe = (dir.path / "bpe").string(), bytes = (dir.path / "bytes").string();
  CHECK(pack_text({{file}, bpe, fixture("bpe/gpt2_style.json"), 1000, 0}, quiet).documents == 2);
  CHECK(pack_text({{file}, bytes, "bytes", 1000, 0}, quiet).documents == 1);
}

TEST_CASE("pack: the split goes by content, keeps copies together and meets the share") {
  const testing::TempDir dir;
  for (int i = 0; i < 40; ++i) {
    dir.file("in/" + std::to_string(i) + ".txt", "text " + std::to_string(i / 2) + std::string(100, 'x'));
    dir.file("renamed/z" + std::to_string(1000 - i), "text " + std::to_string(i / 2) + std::string(100, 'x'));
  }
  const auto split = [&](const std::string& input, const std::string& out) {
    const std::string folder = (dir.path / out).string();
    const auto d = pack_text({{(dir.path / input).string() + "/*"}, folder, "bytes", 100000, 0.2}, quiet);
    const auto train = split_documents(folder, d.train), val = split_documents(folder, d.val);
    CHECK(train.size() + val.size() == 40);
    return std::pair(std::multiset<std::string>(train.begin(), train.end()),
                     std::multiset<std::string>(val.begin(), val.end()));
  };
  const auto [train, val] = split("in", "out1");
  CHECK(val.size() == 8);
  for (const std::string& text : val) CHECK(train.count(text) == 0);
  CHECK(split("renamed", "out2") == std::pair(train, val));
}

TEST_CASE("pack: where no file fits into the share, the smallest is taken") {
  const testing::TempDir dir;
  const std::string out = (dir.path / "out").string();
  const auto d = pack_text(
      {{dir.file("a", "aaaaaaaa"), dir.file("b", "bbb"), dir.file("c", "ccccc")}, out, "bytes", 1000, 0.05},
      quiet);
  CHECK(split_documents(out, d.val) == std::vector<std::string>{"bbb"});
  CHECK(split_documents(out, d.train) == std::vector<std::string>{"aaaaaaaa", "ccccc"});
}

TEST_CASE("pack: wrong requests are refused and leave nothing behind") {
  const testing::TempDir dir;
  const std::string text = dir.file("in/a.txt", "text");
  const std::string shard = dir.file("in/a.bin", testing::shard16({1, 2}));
  const std::string empty = dir.file("in/empty.txt", "");
  const std::string out = (dir.path / "out").string();
  const auto refused = [&](PackOptions options) {
    if (options.out.empty()) options.out = out;
    const std::string message = refusal([&] { pack_text(options, quiet); });
    CHECK(entries(dir.path) == 1);
    return message;
  };
  CHECK(refused({{shard}, "", "bytes", 10, 0}) == shard + ": is a 16-bit shard; allowed: text to pack");
  CHECK_THAT(refused({{empty}, "", "bytes", 10, 0}), ContainsSubstring("0 bytes of text in the inputs"));
  CHECK_THAT(refused({{text}, "", "bytes", 0, 0}), ContainsSubstring("tokens per shard: 0; allowed"));
  CHECK(refused({{text}, "", "bytes", 10, 1.0}) == "--val-fraction: 1; allowed: 0 up to, not including, 1");
  CHECK_THAT(refused({{text}, "", "bytes", 10, -0.1}), ContainsSubstring("--val-fraction: -0.1"));
  CHECK_THAT(refused({{text, text}, "", "bytes", 10, 0.5}),
             ContainsSubstring("--val-fraction: 0.5 with 2 file(s) of 1 content; allowed: 0, or at least 2"));
  CHECK_THAT(refused({{text}, "", "words", 10, 0}),
             ContainsSubstring("tokenizer words: does not exist; allowed"));
  CHECK_THAT(refused({{text}, (dir.path / "in").string(), "bytes", 10, 0}),
             ContainsSubstring("exists and is not an empty folder"));
  CHECK_THAT(refused({{(dir.path / "in").string()}, "", "bytes", 10, 0}),
             ContainsSubstring("data pack: " + (dir.path / "in").string() + " is a folder"));
}

TEST_CASE("pack: a disk that fills up is named, with the file, and nothing is left behind") {
  const testing::TempDir dir;
  const std::string text = dir.file("in/a.txt", std::string(3000, 'x'));
  const std::string out = (dir.path / "new" / "folders" / "out").string();
  // Not even a header fits; a header does; shards do, but not the tokenizer.
  for (const auto& [bytes, file] : {std::pair<rlim_t, std::string>{0, "train_000000.bin"},
                                    {2000, "train_000000.bin"},
                                    {3100, "tokenizer.json"}}) {
    std::string message;
    try {
      const testing::FileSizeLimit limit(bytes);
      pack_text({{text}, out, "bytes", 1001, 0}, quiet);
    } catch (const RunError& error) {
      message = error.what();
    }
    CHECK_THAT(message, Catch::Matchers::StartsWith("cannot write " + out + ".partial-") &&
                            Catch::Matchers::EndsWith("/" + file + ": File too large"));
    CHECK(entries(dir.path) == 1);
  }
}
