// dataset.cpp - tokenizers resolved or refused, validation taken out first, an identity that knows no
// folders.
#include "data/dataset.h"

#include <cmath>
#include <filesystem>

#include "catch.h"
#include "data/dataset_json.h"
#include "data/pack.h"
#include "data/synth.h"
#include "fixture.h"
#include "refusal.h"
#include "shard_bytes.h"
#include "temp_dir.h"

using namespace octavo;
using testing::fixture;
using testing::refusal;
using testing::shard16;
using Ids = std::vector<std::int32_t>;

namespace {

DataConfig config_of(std::vector<std::string> train) {
  return {std::move(train), {}, 0.0, "auto", "auto", std::nullopt};
}

Ids all_of(const TokenStream& stream) {
  Ids ids(static_cast<std::size_t>(stream.size()));
  stream.read(0, stream.size(), ids.data());
  return ids;
}

std::string pack(const testing::TempDir& dir, const std::string& name, const std::string& tokenizer,
                 const std::string& text = "El niño soñó.") {
  const std::string out = (dir.path / name).string();
  pack_text({{dir.file(name + ".txt", text)}, out, tokenizer, 1000, 0.0}, [](const std::string&) {});
  return out;
}

const std::string kBpe = "bpe/gpt2_style.json";

}  // namespace

TEST_CASE("dataset: text is bytes unless something else is asked for") {
  const testing::TempDir dir;
  const std::string text = dir.file("a.txt", "abcab");
  const Dataset data = open_dataset(config_of({text}));
  CHECK(data.tokenizer == bytes_tokenizer());
  CHECK(data.tokenizer_hash == bytes_tokenizer()->hash());
  CHECK(data.vocab == 257);
  CHECK(data.eot == 256);
  CHECK(data.val.empty());
  CHECK(all_of(data.train) == Ids{256, 'a', 'b', 'c', 'a', 'b'});
  REQUIRE(data.unigram_entropy);
  const double h = -(2 * (2 / 6.0) * std::log(2 / 6.0) + 2 * (1 / 6.0) * std::log(1 / 6.0));
  CHECK(*data.unigram_entropy == Approx(h).epsilon(1e-14));
  CHECK_FALSE(data.entropy_rate);

  DataConfig bpe = config_of({text});
  bpe.tokenizer = fixture(kBpe);
  CHECK(open_dataset(bpe).vocab == load_tokenizer(fixture(kBpe))->vocab());
  CHECK(open_dataset(bpe).tokenizer->kind() == "bpe");
  // A model that brings its tokenizer decides under "auto".
  const Dataset tuned = open_dataset(config_of({text}), {500, load_tokenizer(fixture(kBpe)), "the model"});
  CHECK(tuned.tokenizer->kind() == "bpe");
  CHECK(tuned.vocab == 500);
}

TEST_CASE("dataset: packed shards bring their tokenizer") {
  const testing::TempDir dir;
  const std::string bytes = pack(dir, "bytes", "bytes");
  const std::string bpe = pack(dir, "bpe", fixture(kBpe));
  CHECK(open_dataset(config_of({bytes + "/train_*.bin"})).tokenizer == bytes_tokenizer());
  const Dataset data = open_dataset(config_of({bpe + "/train_*.bin"}));
  CHECK(data.tokenizer->hash() == load_tokenizer(fixture(kBpe))->hash());
  Ids ids = all_of(data.train);
  CHECK(ids.front() == data.eot);
  ids.erase(ids.begin());
  CHECK(data.tokenizer->decode(ids) == "El niño soñó.");

  // Without the tokenizer.json beside it the hash alone does not tell ids apart.
  std::filesystem::remove(bpe + "/tokenizer.json");
  CHECK_THAT(refusal([&] { open_dataset(config_of({bpe + "/train_*.bin"})); }),
             ContainsSubstring("no tokenizer.json lies beside it; allowed"));
  DataConfig named = config_of({bpe + "/train_*.bin"});
  named.tokenizer = fixture(kBpe);
  CHECK(open_dataset(named).tokenizer->kind() == "bpe");
}

TEST_CASE("dataset: data of another tokenizer is refused") {
  const testing::TempDir dir;
  const std::string bytes = pack(dir, "bytes", "bytes") + "/train_000000.bin";
  const std::string bpe = pack(dir, "bpe", fixture(kBpe)) + "/train_000000.bin";
  const TokenizerPtr other = load_tokenizer(fixture("bpe/llama3_style.json"));
  CHECK_THAT(refusal([&] {
               open_dataset(config_of({bytes, bpe}));
             }),
             ContainsSubstring("allowed: one tokenizer for all files"));
  CHECK(refusal([&] {
          open_dataset(config_of({bytes}), {0, other, "runs/a"});
        }) == bytes + ": its dataset.json names tokenizer " + bytes_tokenizer()->hash() + ", but runs/a is " +
                  other->hash() + "; allowed: data and model of one tokenizer");
  DataConfig config = config_of({bytes});
  config.tokenizer = fixture(kBpe);
  CHECK_THAT(refusal([&] { open_dataset(config); }),
             ContainsSubstring("allowed: data and model of one tokenizer"));
  CHECK_THAT(refusal([&] {
               open_dataset(config, {0, other, "runs/a"});
             }),
             ContainsSubstring("but runs/a was made with " + other->hash()));
  DataConfig with_val = config_of({bytes});
  with_val.val = {bpe};
  CHECK_THAT(refusal([&] { open_dataset(with_val); }),
             ContainsSubstring("allowed: one tokenizer for all files"));
  // Text beside shards takes the shards' tokenizer, so that all ids mean the same.
  const Dataset mixed = open_dataset(config_of({bpe, dir.file("more.txt", "más")}));
  CHECK(mixed.tokenizer->kind() == "bpe");
}

TEST_CASE("dataset: shards without a description need a vocabulary or a tokenizer") {
  const testing::TempDir dir;
  const std::string shard = dir.file("a.bin", shard16({256, 1, 2, 300}));
  CHECK_THAT(
      refusal([&] { open_dataset(config_of({shard})); }),
      ContainsSubstring("model.vocab: \"auto\", but " + shard + " has no dataset.json beside it; allowed"));
  const Dataset data = open_dataset(config_of({shard}), {1000, nullptr, ""});
  CHECK(data.tokenizer == nullptr);
  CHECK(data.tokenizer_hash.empty());
  CHECK(data.vocab == 1000);
  REQUIRE(data.notes.size() == 1);
  CHECK_THAT(data.notes[0], ContainsSubstring("ids only, no text"));
  DataConfig bytes = config_of({shard});
  bytes.tokenizer = "bytes";
  CHECK(refusal([&] { open_dataset(bytes); }) ==
        shard + ": token 300 at position 3; allowed: ids below the vocabulary's 257");
  CHECK_THAT(refusal([&] {
               open_dataset(bytes, {256, nullptr, ""});
             }),
             ContainsSubstring("model.vocab: 256, but the data's tokenizer has 257 ids"));
  CHECK_THAT(refusal([&] {
               open_dataset(config_of({shard, dir.file("a.txt", "text")}), {1000, nullptr, ""});
             }),
             ContainsSubstring("whose tokenizer is not known; allowed"));
  // A bad id in the validation data is found at the start too.
  DataConfig val = config_of({dir.file("ok.bin", shard16({1, 2, 3}))});
  val.val = {shard};
  CHECK_THAT(refusal([&] {
               open_dataset(val, {300, nullptr, ""});
             }),
             ContainsSubstring("token 300 at position 3"));
}

TEST_CASE("dataset: shards must be those that dataset.json describes") {
  const testing::TempDir dir;
  const std::string folder = pack(dir, "bytes", "bytes");
  dir.file("bytes/stray.bin", shard16({1, 2}));
  CHECK_THAT(
      refusal([&] { open_dataset(config_of({folder + "/stray.bin"})); }),
      ContainsSubstring("stray.bin: not named in the dataset.json beside it; allowed: one of its 1 shards"));
  dir.file("bytes/train_000000.bin", shard16({1, 2}));
  CHECK_THAT(
      refusal([&] { open_dataset(config_of({folder + "/train_000000.bin"})); }),
      ContainsSubstring("train_000000.bin: 2 tokens; allowed: 17, as the dataset.json beside it says"));
  // Somebody else's dataset.json says nothing about shards.
  dir.file("foreign/dataset.json", "{\"images\": 3}");
  const std::string foreign = dir.file("foreign/a.bin", shard16({1, 2}));
  CHECK(open_dataset(config_of({foreign}), {10, nullptr, ""}).train.size() == 2);
}

TEST_CASE("dataset: val_fraction is the last share of the stream, taken out first") {
  const testing::TempDir dir;
  DataConfig config =
      config_of({dir.file("a.bin", shard16({0, 1, 2, 3, 4, 5})), dir.file("b.bin", shard16({6, 7, 8, 9}))});
  const ModelTokens model{10, nullptr, ""};
  config.val_fraction = 0.55;  // five of ten: the border lies inside the first file
  const Dataset data = open_dataset(config, model);
  CHECK(all_of(data.train) == Ids{0, 1, 2, 3, 4});
  CHECK(all_of(data.val) == Ids{5, 6, 7, 8, 9});
  CHECK(*data.unigram_entropy == Approx(std::log(5.0)));
  config.val_fraction = 0.1;
  CHECK(refusal([&] { open_dataset(config, model); }) ==
        "data.val_fraction: 0.1 of 10 tokens leaves 9 for training and 1 for validation; allowed: at least 2 "
        "for "
        "each");
  config.val = config.train;
  CHECK(refusal([&] { open_dataset(config, model); }) ==
        "data.val_fraction: 0.1 beside data.val; allowed: one of the two");
  config.val_fraction = 0;
  const Dataset both = open_dataset(config, model);
  CHECK(all_of(both.val) == all_of(both.train));
  CHECK(std::count_if(both.notes.begin(), both.notes.end(), [](const std::string& note) {
          return note.find("is in data.train and in data.val") != std::string::npos;
        }) == 2);
}

TEST_CASE("dataset: the fingerprint is of the contents, not of folders or names") {
  const testing::TempDir dir;
  const std::string a = dir.file("here/a.txt", "first text");
  const std::string b = dir.file("here/b.txt", "second text");
  const std::string original = open_dataset(config_of({a, b})).fingerprint;
  CHECK(original.size() == 64);
  CHECK(open_dataset(config_of({dir.file("there/x.txt", "first text"), dir.file("y.txt", "second text")}))
            .fingerprint == original);
  CHECK(open_dataset(config_of({b, a})).fingerprint != original);
  CHECK(open_dataset(config_of({a})).fingerprint != original);
  CHECK(open_dataset(config_of({a, dir.file("c.txt", "second texT")})).fingerprint != original);
  // The same bytes cut differently are other documents.
  CHECK(open_dataset(config_of({dir.file("d.txt", "first texts"), dir.file("e.txt", "econd text")}))
            .fingerprint != original);
  DataConfig config = config_of({a, b});
  config.val_fraction = 0.2;
  CHECK(open_dataset(config).fingerprint != original);
  config = config_of({a});
  config.val = {b};
  CHECK(open_dataset(config).fingerprint != original);
  config = config_of({a, b});
  config.tokenizer = fixture(kBpe);
  CHECK(open_dataset(config).fingerprint != original);
}

TEST_CASE("dataset: entropies recorded by synth come along") {
  const testing::TempDir dir;
  const std::string out = (dir.path / "synth").string();
  SynthOptions options;
  options.out = out;
  options.tokens = 5000;
  options.shard_tokens = 3000;
  const DatasetDescription made = synthesise(options, [](const std::string&) {});
  DataConfig config = config_of({out + "/train_*.bin"});
  config.val = {out + "/val_*.bin"};
  const Dataset data = open_dataset(config);
  CHECK(data.vocab == 64);
  CHECK(data.eot == -1);
  CHECK(data.tokenizer == nullptr);
  CHECK(data.notes.empty());
  CHECK(data.entropy_rate == made.entropy_rate);
  CHECK(data.unigram_entropy == made.unigram_entropy);
  CHECK(data.train.size() == 5000);
  CHECK(data.val.size() == 1024);
  config.tokenizer = "bytes";
  CHECK_THAT(refusal([&] { open_dataset(config); }),
             ContainsSubstring("dataset.json names tokenizer none, but bytes is"));
}

TEST_CASE("dataset: what is only planned may not exist yet; its vocabulary then comes from what is known") {
  const testing::TempDir dir;
  const std::string text = dir.file("a.txt", "some text of a corpus");
  DataConfig config{};
  config.train = {text};
  config.tokenizer = config.format = "auto";
  CHECK(plan_dataset(config).absent.empty());
  CHECK(plan_dataset(config).train.size() == open_dataset(config).train.size());

  config.val = {(dir.path / "none_*.txt").string()};
  const Dataset assumed = plan_dataset(config);
  CHECK(assumed.absent == config.val[0]);
  CHECK(assumed.train.empty());
  CHECK(assumed.vocab == 50257);
  CHECK(assumed.tokenizer == nullptr);
  REQUIRE(assumed.notes.size() == 1);
  CHECK(assumed.notes[0] == config.val[0] + " does not exist: a vocabulary of 50257 is assumed (GPT-2's)");
  CHECK(plan_dataset(config, {.vocab = 99}).vocab == 99);
  CHECK(plan_dataset(config, {.tokenizer = bytes_tokenizer(), .origin = "run"}).vocab == 257);
  config.tokenizer = (dir.path / "no_tokenizer.json").string();
  CHECK(plan_dataset(config).vocab == 50257);
  config.tokenizer = "bytes";
  CHECK(plan_dataset(config).vocab == 257);
  config.tokenizer = "auto";
  config.format = "text";
  CHECK(plan_dataset(config).vocab == 257);

  config.format = "shard";  // what is there is looked at
  config.val.clear();
  CHECK_THROWS_AS(plan_dataset(config), RequestError);
  config.train = {dir.path.string()};
  CHECK_THROWS_WITH(plan_dataset(config), ContainsSubstring("is a folder"));
}
