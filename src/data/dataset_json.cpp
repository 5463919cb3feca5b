// dataset_json.cpp - see dataset_json.h. The layout is described in data/README.md.

#include "data/dataset_json.h"

#include <algorithm>

#include "data/tokens.h"
#include "error.h"
#include "files.h"
#include "json_text.h"

namespace octavo {

namespace {

using nlohmann::ordered_json;

std::int64_t total(const std::vector<DatasetShard>& shards) {
  std::int64_t tokens = 0;
  for (const DatasetShard& shard : shards) tokens += shard.tokens;
  return tokens;
}

ordered_json shards_to_json(const std::vector<DatasetShard>& shards) {
  ordered_json files = ordered_json::array();
  for (const DatasetShard& shard : shards) {
    files.push_back({{"name", shard.name}, {"tokens", shard.tokens}, {"sha256", shard.sha256}});
  }
  return {{"tokens", total(shards)}, {"files", files}};
}

// Reads keys of one object, each with its path for messages.
class Keys {
 public:
  Keys(const ordered_json& object, std::string file, std::string path)
      : object_(object), file_(std::move(file)), path_(std::move(path)) {}

  const ordered_json& value(const std::string& key) const {
    const auto it = object_.find(key);
    if (it == object_.end())
      refuse("{}: {}{} is missing; allowed: what octavo data writes", file_, path_, key);
    return *it;
  }
  Keys object(const std::string& key) const {
    if (!value(key).is_object()) wrong(key, value(key), "an object");
    return {value(key), file_, path_ + key + "."};
  }
  std::string text(const std::string& key) const {
    if (!value(key).is_string()) wrong(key, value(key), "a string");
    return value(key).get<std::string>();
  }
  // Of a file beside this one.
  std::string file_name(const std::string& key) const {
    const std::string name = text(key);
    const auto odd = [](unsigned char c) { return c < ' ' || c == '/' || c == 0x7f; };
    if (name.empty() || std::any_of(name.begin(), name.end(), odd)) wrong(key, name, "a file's name");
    return name;
  }
  std::string sha256(const std::string& key) const {
    const std::string digest = text(key);
    if (digest.empty() || digest.find_first_not_of("0123456789abcdef") != std::string::npos)
      wrong(key, digest, "hexadecimal digits");
    return digest;
  }
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high) const {
    const ordered_json& v = value(key);
    if (!v.is_number_integer() || v.get<std::int64_t>() < low || v.get<std::int64_t>() > high) {
      wrong(key, v, fmt::format("an integer from {} to {}", low, high));
    }
    return v.get<std::int64_t>();
  }
  std::optional<double> entropy(const std::string& key) const {
    const ordered_json& v = value(key);
    if (v.is_null()) return std::nullopt;
    if (!v.is_number() || v.get<double>() < 0) wrong(key, v, "a number from 0 on, or null");
    return v.get<double>();
  }
  std::vector<DatasetShard> shards() const {
    if (!value("files").is_array()) wrong("files", value("files"), "an array");
    std::vector<DatasetShard> list;
    for (const ordered_json& entry : value("files")) {
      const std::string key = fmt::format("files[{}]", list.size());
      if (!entry.is_object()) wrong(key, entry, "an object");
      const Keys keys(entry, file_, path_ + key + ".");
      list.push_back(
          {keys.file_name("name"), keys.integer("tokens", 1, kMaxShardTokens), keys.sha256("sha256")});
    }
    if (const std::int64_t stated = integer("tokens", 0, INT64_MAX); stated != total(list)) {
      wrong("tokens", stated, fmt::format("{}, the sum over its files", total(list)));
    }
    return list;
  }
  [[noreturn]] void wrong(const std::string& key, const ordered_json& found,
                          const std::string& allowed) const {
    refuse("{}: {}{} is {}; allowed: {}", file_, path_, key, json_excerpt(found), allowed);
  }

 private:
  const ordered_json& object_;
  std::string file_, path_;
};

}  // namespace

const DatasetShard* DatasetDescription::find(const std::string& name) const {
  for (const std::vector<DatasetShard>* shards : {&train, &val}) {
    const auto it = std::find_if(shards->begin(), shards->end(),
                                 [&](const DatasetShard& shard) { return shard.name == name; });
    if (it != shards->end()) return &*it;
  }
  return nullptr;
}

void write_dataset_json(const DatasetDescription& d, const std::string& file) {
  const bool has_text = d.tokenizer_kind != "none";
  const ordered_json json = {
      {"octavo", "dataset"},
      {"tokenizer",
       {{"kind", d.tokenizer_kind},
        {"sha256", has_text ? ordered_json(d.tokenizer_hash) : ordered_json(nullptr)}}},
      {"vocab", d.vocab},
      {"eot", d.eot >= 0 ? ordered_json(d.eot) : ordered_json(nullptr)},
      {"documents", d.documents},
      {"entropy_rate", json_or_null(d.entropy_rate)},
      {"unigram_entropy", json_or_null(d.unigram_entropy)},
      {"train", shards_to_json(d.train)},
      {"val", shards_to_json(d.val)},
      {"made_by", d.made_by}};
  write_json_atomically(file, json);
}

std::optional<DatasetDescription> read_dataset_json(const std::string& file) {
  if (!path_exists(file)) return std::nullopt;
  const ordered_json json = parse_foreign_json(read_whole_file(file), file);
  if (!json.is_object() || !json.contains("octavo")) return std::nullopt;
  const Keys keys(json, file, "");
  keys.integer("format_version", kFormatVersion, kFormatVersion);
  DatasetDescription d;
  const Keys tokenizer = keys.object("tokenizer");
  d.tokenizer_kind = tokenizer.text("kind");
  if (d.tokenizer_kind != "bytes" && d.tokenizer_kind != "bpe" && d.tokenizer_kind != "none") {
    tokenizer.wrong("kind", d.tokenizer_kind, "\"bytes\", \"bpe\", \"none\"");
  }
  if (d.tokenizer_kind != "none") d.tokenizer_hash = tokenizer.sha256("sha256");
  d.vocab = keys.integer("vocab", 1, kMaxVocab);
  if (!keys.value("eot").is_null()) d.eot = static_cast<std::int32_t>(keys.integer("eot", 0, d.vocab - 1));
  d.documents = keys.integer("documents", 0, INT64_MAX);
  d.entropy_rate = keys.entropy("entropy_rate");
  d.unigram_entropy = keys.entropy("unigram_entropy");
  d.train = keys.object("train").shards();
  d.val = keys.object("val").shards();
  d.made_by = keys.value("made_by");
  return d;
}

}  // namespace octavo
