#include "json_text.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "config.h"
#include "error.h"
#include "files.h"

namespace octavo {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxDepth = 32;  // the deepest file that means anything has 6 levels

/// Line and column, from 1, of the character read last.
struct Place {
  std::size_t line = 1, column = 0;
  bool after_newline = false;

  void advance(char c) {
    if (after_newline) {
      ++line;
      column = 0;
    }
    ++column;
    after_newline = c == '\n';
  }
};

/// Reads characters and keeps the place, so that an event knows where in the text it happened.
class PlaceIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  PlaceIterator(const char* at, Place* place) : at_(at), place_(place) {}
  reference operator*() const { return *at_; }
  PlaceIterator& operator++() {
    place_->advance(*at_++);
    return *this;
  }
  PlaceIterator operator++(int) {
    const PlaceIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const PlaceIterator& other) const { return at_ == other.at_; }
  bool operator!=(const PlaceIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  Place* place_;
};

/// Text of a file for a one-line message: printable ASCII, the end of it where it is long.
std::string token_excerpt(std::string_view token) {
  constexpr std::size_t kLongest = 40;
  while (!token.empty() && (token.front() == ' ' || token.front() == '\n' || token.front() == '\r'))
    token.remove_prefix(1);
  std::string text(token.size() > kLongest ? token.substr(token.size() - kLongest) : token);
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return (token.size() > kLongest ? "..." : "") + text;
}

/// Builds the tree from the parser's events.
class TreeBuilder : public nlohmann::json_sax<Json> {
 public:
  TreeBuilder(const std::string& origin, std::vector<std::string>& faults)
      : origin_(origin), faults_(faults) {}

  Place* place() { return &place_; }
  Json& root() { return root_; }

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return add(value) != nullptr; }
  bool string(string_t& value) override { return add(value) != nullptr; }
  bool binary(binary_t&) override { return false; }  // text holds none
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& key) override {
    Level& level = levels_.back();
    level.key = key;
    if (!level.keys.insert(key).second)
      faults_.push_back(fmt::format("{} in {} line {}: found a second time; allowed: each key once", path(),
                                    origin_, place_.line));
    return true;
  }

  bool parse_error(std::size_t, const std::string& token, const nlohmann::detail::exception& error) override {
    // nlohmann's text is "...: syntax error while parsing value - REASON; last read: 'TOKEN'; expected WHAT",
    // without the middle part where the token is a valid one in the wrong place. TOKEN may hold anything, so
    // it is taken from the event, where it can be cut and cleaned.
    const std::string_view what = error.what();
    constexpr std::string_view kBefore = " - ", kUnexpected = "unexpected ", kToken = "; last read: '",
                               kExpected = "; expected ";
    const std::size_t before = what.find(kBefore);
    if (before == std::string_view::npos) {  // no syntax error: a number beyond double's range
      syntax_fault(token_excerpt(token) + " (too large a number)", "numbers up to 1.79e308");
      return false;
    }
    const std::string_view reason = what.substr(before + kBefore.size());
    const std::size_t expected = reason.rfind(kExpected);
    const std::size_t token_at = reason.find(kToken);
    if (reason.starts_with(kUnexpected)) {
      syntax_fault(std::string(reason.substr(kUnexpected.size(), expected - kUnexpected.size())),
                   expected == std::string_view::npos
                       ? "valid JSON"
                       : std::string(reason.substr(expected + kExpected.size())));
    } else {
      syntax_fault(fmt::format("{} ({})", token_excerpt(token), reason.substr(0, token_at)), "valid JSON");
    }
    return false;
  }

  void syntax_fault(const std::string& found, const std::string& allowed) {
    faults_.push_back(fmt::format("{} line {}, column {}: found {}; allowed: {}", origin_, place_.line,
                                  place_.column, found, allowed));
  }

 private:
  struct Level {
    Json* node;
    std::string key;  // the one read last
    std::unordered_set<std::string> keys;
  };

  Json* add(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.node->is_array()) {
      level.node->push_back(std::move(value));
      return &level.node->back();
    }
    // The underlying vector's push_back: ordered_json's own insertion searches all keys before it.
    auto& object = level.node->get_ref<Json::object_t&>();
    object.push_back({level.key, std::move(value)});
    return &object.back().second;
  }

  bool open(Json empty) {
    if (levels_.size() == kMaxDepth) {
      syntax_fault("more than " + std::to_string(kMaxDepth) + " levels of nesting",
                   "up to " + std::to_string(kMaxDepth));
      return false;
    }
    levels_.push_back({add(std::move(empty)), {}, {}});
    return true;
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  /// Path of the key that was read last: "runs[2].set".
  std::string path() const {
    std::string text;
    for (const Level& level : levels_) {
      if (level.node->is_array())
        text += "[" + std::to_string(level.node->size() - 1) + "]";
      else
        text += (text.empty() ? "" : ".") + key_excerpt(level.key);
    }
    return text;
  }

  const std::string& origin_;
  std::vector<std::string>& faults_;
  Place place_;
  Json root_;
  std::vector<Level> levels_;
};

}  // namespace

std::optional<Json> parse_json_text(std::string_view text, const std::string& origin, Comments comments,
                                    std::vector<std::string>& faults) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (text.empty()) {
    faults.push_back(fmt::format("{}: found no text; allowed: JSON", origin));
    return std::nullopt;
  }
  TreeBuilder builder(origin, faults);
  // The parser takes a zero byte for the end of the text, and would not see what follows.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    for (const char c : text.substr(0, zero + 1)) builder.place()->advance(c);
    builder.syntax_fault("a zero byte", "JSON in UTF-8");
    return std::nullopt;
  }
  const PlaceIterator begin(text.data(), builder.place());
  const PlaceIterator end(text.data() + text.size(), builder.place());
  if (!Json::sax_parse(begin, end, &builder, Json::input_format_t::json, true, comments == Comments::allowed))
    return std::nullopt;
  return std::move(builder.root());
}

std::string key_excerpt(std::string_view key) {
  const bool plain = !key.empty() && key.size() <= 60 && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  return plain ? std::string(key) : json_excerpt(Json(std::string(key)));
}

Json parse_foreign_json(std::string_view text, const std::string& origin) {
  std::vector<std::string> faults;
  std::optional<Json> tree = parse_json_text(text, origin, Comments::refused, faults);
  if (!faults.empty()) refuse("{}", faults.front());
  return std::move(*tree);
}

Json parse_json_with_comments(std::string_view text, const std::string& origin) {
  std::vector<std::string> faults;
  std::optional<Json> tree = parse_json_text(text, origin, Comments::allowed, faults);
  if (!faults.empty()) refuse("{}", fmt::join(faults, "\n"));
  return std::move(*tree);
}

}  // namespace octavo
