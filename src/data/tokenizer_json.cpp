// tokenizer_json.cpp - reads a Hugging Face tokenizer.json: byte-level BPE, split by GPT-2's regular
// expression or by the file's own ("Split"), without a normalizer. Any other feature that would change ids is
// refused by its name, since a tokenizer that is nearly right is worse than none.
//
// Taken no notice of, because they act on batches or add ids around a text, not in it: truncation, padding,
// post_processor (transformers' add_special_tokens=False).

#include <algorithm>
#include <filesystem>
#include <optional>

#include <nlohmann/json.hpp>

#include "data/tokenizer.h"
#include "data/tokens.h"
#include "error.h"
#include "files.h"
#include "json_text.h"

namespace octavo {

namespace {

using Json = nlohmann::ordered_json;

// GPT-2's splitting. White space is spelled out: PCRE2's \s would also take U+180E, which Unicode has not
// counted as white space since version 6.3.
std::string gpt2_pattern() {
  const std::string space =
      R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
  return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{L}\p{N})" + space + "]+|[" + space + "]+(?![^" +
         space + "])|[" + space + "]+";
}

// Names that files use for the token between documents, in the order of preference.
constexpr std::array<std::string_view, 5> kEndOfText{"<|endoftext|>", "<|end_of_text|>",
                                                     "<|end▁of▁sentence|>", "</s>", "<eos>"};

class Reader {
 public:
  Reader(const std::string& text, std::string origin)
      : origin_(std::move(origin)), root_(parse_foreign_json(text, origin_)) {
    if (!root_.is_object() || !root_.contains("model")) {
      refuse("{}: has no \"model\"; allowed: a Hugging Face tokenizer.json", origin_);
    }
    spec_.json = text;
    spec_.origin = origin_;
  }

  TokenizerSpec read() {
    nothing("normalizer");
    read_pre_tokenizer(at(root_, "pre_tokenizer"));
    if (const Json& decoder = at(root_, "decoder"); !decoder.is_null() && type_of(decoder) != "ByteLevel") {
      unsupported("decoder.type", type_of(decoder), "ByteLevel");
    }
    read_model(at(root_, "model"));
    read_added(at(root_, "added_tokens"));
    for (const std::string_view name : kEndOfText) {
      const auto found = std::find_if(spec_.added.begin(), spec_.added.end(),
                                      [&](const TokenizerSpec::Added& t) { return t.content == name; });
      if (found != spec_.added.end() && spec_.eot < 0) spec_.eot = found->id;
    }
    if (spec_.eot < 0) {
      std::string names;
      for (const std::string_view name : kEndOfText) names.append(names.empty() ? "" : ", ").append(name);
      refuse("{}: added_tokens name no end-of-text token; allowed: one of {}", origin_, names);
    }
    return std::move(spec_);
  }

 private:
  // A feature that would change ids.
  [[noreturn]] void unsupported(std::string_view key, const std::string& found,
                                std::string_view allowed) const {
    refuse("{}: {} = {} is not supported; allowed: {}", origin_, key, found, allowed);
  }
  // A value that no tokenizer.json has.
  [[noreturn]] void wrong(std::string_view key, const Json& found, std::string_view allowed) const {
    refuse("{}: {} is {}; allowed: {}", origin_, key, json_excerpt(found), allowed);
  }

  // The value of a key, null where it is missing.
  static const Json& at(const Json& object, const char* key) {
    static const Json null;
    if (!object.is_object()) return null;
    const auto it = object.find(key);
    return it == object.end() ? null : *it;
  }
  bool flag(const Json& object, const std::string& path, const char* key, bool otherwise) const {
    const Json& value = at(object, key);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) wrong(path + "." + key, value, "true or false");
    return value.get<bool>();
  }
  static std::string type_of(const Json& object) {
    const Json& type = at(object, "type");
    return type.is_string() ? key_excerpt(type.get_ref<const std::string&>()) : json_excerpt(object);
  }
  void nothing(const char* key) const {
    if (!at(root_, key).is_null()) unsupported(std::string(key) + ".type", type_of(at(root_, key)), "null");
  }

  void read_pre_tokenizer(const Json& pre) {
    const std::string type = type_of(pre);
    if (type == "ByteLevel") {
      read_byte_level(pre, "pre_tokenizer", true);
      return;
    }
    // Llama 3: a Split by a pattern of its own, then ByteLevel as mere spelling of bytes.
    const Json& parts = at(pre, "pretokenizers");
    if (type != "Sequence" || !parts.is_array() || parts.size() != 2 || type_of(parts[0]) != "Split" ||
        type_of(parts[1]) != "ByteLevel") {
      unsupported("pre_tokenizer.type", type, "ByteLevel, or a Sequence of Split and ByteLevel");
    }
    const Json& split = parts[0];
    const Json& pattern = at(at(split, "pattern"), "Regex");
    if (!pattern.is_string() || pattern.get_ref<const std::string&>().empty()) {
      unsupported("pre_tokenizer.pretokenizers[0].pattern", json_excerpt(at(split, "pattern")),
                  "{\"Regex\": ...}");
    }
    const std::string path = "pre_tokenizer.pretokenizers[0]";
    if (at(split, "behavior") != "Isolated") {
      unsupported(path + ".behavior", json_excerpt(at(split, "behavior")), "\"Isolated\"");
    }
    if (flag(split, path, "invert", false)) unsupported(path + ".invert", "true", "false");
    spec_.pattern = pattern.get<std::string>();
    read_byte_level(parts[1], "pre_tokenizer.pretokenizers[1]", false);
  }

  void read_byte_level(const Json& byte_level, const std::string& key, bool regex_allowed) {
    if (flag(byte_level, key, "add_prefix_space", true)) {
      unsupported(key + ".add_prefix_space", "true", "false (the text could not be restored)");
    }
    const bool use_regex = flag(byte_level, key, "use_regex", true);
    if (use_regex && !regex_allowed) unsupported(key + ".use_regex", "true", "false behind a Split");
    if (use_regex) spec_.pattern = gpt2_pattern();
  }

  void read_model(const Json& model) {
    if (type_of(model) != "BPE" && !at(model, "type").is_null()) {
      unsupported("model.type", type_of(model), "BPE");
    }
    if (const Json& dropout = at(model, "dropout"); !dropout.is_null() && dropout != 0) {
      unsupported("model.dropout", json_excerpt(dropout), "null");
    }
    for (const char* const key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& affix = at(model, key);
      if (!affix.is_null() && affix != "") {
        unsupported(std::string("model.") + key, json_excerpt(affix), "null");
      }
    }
    spec_.whole_pieces_first = flag(model, "model", "ignore_merges", false);
    read_vocab(at(model, "vocab"));
    read_merges(at(model, "merges"));
  }

  // Reads an id and makes room for it; `key()` names it in messages. Ids are dense in practice; a gap stays
  // an id that no text uses.
  template <typename Key>
  std::size_t id_of(const Json& value, const Key& key) {
    // As int64 an id beyond its range is negative.
    if (!value.is_number_integer() || value.get<std::int64_t>() < 0 ||
        value.get<std::int64_t>() >= kMaxVocab) {
      wrong(key(), value, fmt::format("an integer from 0 to {}", kMaxVocab - 1));
    }
    const std::size_t id = value.get<std::size_t>();
    if (id >= spec_.bytes.size()) spec_.bytes.resize(id + 1);
    return id;
  }

  void read_vocab(const Json& vocab) {
    if (!vocab.is_object()) wrong("model.vocab", vocab, "an object");
    std::unordered_map<std::string_view, char> byte_of;
    for (std::size_t b = 0; b < 256; ++b) byte_of.emplace(byte_alphabet()[b], static_cast<char>(b));
    for (const auto& [token, value] : vocab.items()) {
      const auto key = [&token = token] { return fmt::format("model.vocab[{}]", json_excerpt(token)); };
      const std::size_t id = id_of(value, key);
      if (token.empty()) wrong(key(), value, "no empty token");
      if (!spec_.bytes[id].empty()) wrong(key(), value, "an id that no other token has");
      ids_.emplace(token, static_cast<std::int32_t>(id));
      std::string bytes;
      std::size_t i = 0;
      while (i < token.size()) {
        const std::size_t length = static_cast<std::uint8_t>(token[i]) < 0x80 ? 1 : 2;
        const auto letter = byte_of.find(std::string_view(token).substr(i, length));
        if (letter == byte_of.end()) break;
        bytes += letter->second;
        i += length;
      }
      // A token outside the byte alphabet can only be an added one, spelled as it is.
      spec_.bytes[id] = i == token.size() ? bytes : token;
    }
    for (std::size_t b = 0; b < 256; ++b) {
      const auto found = ids_.find(byte_alphabet()[b]);
      if (found == ids_.end()) {
        refuse(
            "{}: model.vocab lacks byte {:#04x} ('{}'); allowed: a byte-level vocabulary with all 256 bytes",
            origin_, b, byte_alphabet()[b]);
      }
      spec_.byte_ids[b] = found->second;
    }
  }

  std::int32_t merge_part(const std::string& part, std::size_t rank) const {
    const auto found = ids_.find(part);
    if (found == ids_.end()) {
      refuse("{}: model.merges[{}] needs {}, which model.vocab lacks; allowed: tokens of the vocabulary",
             origin_, rank, json_excerpt(part));
    }
    return found->second;
  }

  // Both spellings: "a b", and since tokenizers 0.20 ["a", "b"].
  void read_merges(const Json& merges) {
    if (!merges.is_array()) wrong("model.merges", merges, "an array");
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
      const Json& merge = merges[rank];
      std::string left, right;
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else if (merge.is_string()) {
        const std::string& text = merge.get_ref<const std::string&>();
        const std::size_t blank = text.find(' ');
        left = text.substr(0, blank);
        if (blank != std::string::npos) right = text.substr(blank + 1);
      }
      if (left.empty() || right.empty()) {
        wrong(fmt::format("model.merges[{}]", rank), merge, "\"a b\" or [\"a\", \"b\"]");
      }
      spec_.merges.emplace_back(merge_part(left, rank), merge_part(right, rank));
      spec_.merge_results.push_back(merge_part(left + right, rank));
    }
  }

  void read_added(const Json& added) {
    if (added.is_null()) return;
    if (!added.is_array()) wrong("added_tokens", added, "an array");
    for (std::size_t i = 0; i < added.size(); ++i) {
      const Json& entry = added[i];
      const std::string path = fmt::format("added_tokens[{}]", i);
      const Json& content = at(entry, "content");
      if (!content.is_string() || content == "") wrong(path + ".content", content, "the token's text");
      for (const char* const key : {"single_word", "lstrip", "rstrip"}) {
        if (flag(entry, path, key, false)) unsupported(path + "." + key, "true", "false");
      }
      const std::string text = content.get<std::string>();
      const std::size_t id = id_of(at(entry, "id"), [&] { return path + ".id"; });
      const auto known = ids_.find(text);
      const bool same = known != ids_.end() && known->second == static_cast<std::int32_t>(id);
      if (!spec_.bytes[id].empty() && !same) {
        refuse("{}: {} gives {} the id {}, which belongs to {}; allowed: an id of its own", origin_, path,
               json_excerpt(text), id, json_excerpt(spec_.bytes[id]));
      }
      spec_.bytes[id] = text;
      const bool special = flag(entry, path, "special", false);
      const bool first_pass = !flag(entry, path, "normalized", !special);
      spec_.added.push_back({static_cast<std::int32_t>(id), text, first_pass});
    }
  }

  std::string origin_;
  Json root_;
  TokenizerSpec spec_;
  std::unordered_map<std::string, std::int32_t> ids_;  // tokens of model.vocab as spelled there
};

}  // namespace

TokenizerSpec parse_tokenizer(const std::string& json_text, const std::string& origin) {
  return Reader(json_text, origin).read();
}

TokenizerPtr load_tokenizer(const std::string& name) {
  if (name == "bytes") return bytes_tokenizer();
  if (is_folder(name)) {
    TokenizerPtr found = find_tokenizer(name);
    if (!found)
      refuse("tokenizer {}: the folder holds no tokenizer.json; allowed: bytes, a tokenizer.json", name);
    return found;
  }
  if (!path_exists(name)) {
    refuse("tokenizer {}: does not exist; allowed: bytes, or the path of a tokenizer.json", name);
  }
  return std::make_shared<const Tokenizer>(parse_tokenizer(read_whole_file(name), name));
}

TokenizerPtr find_tokenizer(const std::string& folder) {
  const std::string file = (std::filesystem::path(folder) / "tokenizer.json").string();
  return path_exists(file) ? load_tokenizer(file) : nullptr;
}

}  // namespace octavo
