#include "config_fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "error.h"
#include "files.h"
#include "shape_bounds.h"

namespace octavo {
namespace {

using Json = nlohmann::ordered_json;
using Kind = Accepted::Kind;

// --- From normalised JSON to members of Config, and back ---

void assign(bool& to, const Json& value) {
  to = value.get<bool>();
}
void assign(std::int64_t& to, const Json& value) {
  to = value.is_string() ? 0 : value.get<std::int64_t>();  // "auto"
}
void assign(double& to, const Json& value) {
  to = value.get<double>();
}
void assign(std::string& to, const Json& value) {
  to = value.is_null() ? std::string() : value.get<std::string>();
}
void assign(std::array<double, 2>& to, const Json& value) {
  to = value.get<std::array<double, 2>>();
}
void assign(std::vector<std::string>& to, const Json& value) {
  to.clear();
  if (value.is_string()) to.push_back(value.get<std::string>());
  if (value.is_array()) to = value.get<std::vector<std::string>>();
}
template <typename T>
void assign(std::optional<T>& to, const Json& value) {
  to.reset();
  if (!value.is_null()) assign(to.emplace(), value);
}

template <typename T>
Json json_of(const T& value, const Accepted&) {
  return value;
}
Json json_of(std::int64_t value, const Accepted& accepted) {
  return accepted.automatic && value == 0 ? Json("auto") : Json(value);
}
Json json_of(const std::string& value, const Accepted& accepted) {
  return accepted.null && value.empty() ? Json(nullptr) : Json(value);
}
Json json_of(const std::vector<std::string>& value, const Accepted&) {
  return value.empty() ? Json(nullptr) : value.size() == 1 ? Json(value.front()) : Json(value);
}
template <typename T>
Json json_of(const std::optional<T>& value, const Accepted& accepted) {
  return value ? json_of(*value, accepted) : Json(nullptr);
}

// --- The words in which the list below is written ---

Accepted boolean() {
  return {.kind = Kind::boolean};
}
Accepted integer(double low, double high) {
  return {.kind = Kind::integer, .low = low, .high = high};
}
Accepted number(double low, double high) {
  return {.kind = Kind::number, .low = low, .high = high};
}
Accepted number_above(double low, double high) {
  return {.kind = Kind::number, .low = low, .high = high, .low_open = true};
}
Accepted number_below(double low, double high) {
  return {.kind = Kind::number, .low = low, .high = high, .high_open = true};
}
Accepted one_of(std::vector<std::string> words) {
  return {.kind = Kind::word, .words = std::move(words)};
}
Accepted text() {
  return {.kind = Kind::text};
}
Accepted texts() {
  return {.kind = Kind::texts};
}
Accepted two_numbers(double low, double high) {
  return {.kind = Kind::numbers2, .low = low, .high = high};
}

template <typename Access>
Field make_field(const char* path, Access at, std::optional<Json> default_value, const Accepted& accepted,
                 const char* help) {
  return {.path = path,
          .default_value = std::move(default_value),
          .accepted = accepted,
          .help = help,
          .set = [at](Config& config, const Json& value) { assign(at(config), value); },
          .get = [at, accepted](const Config& config) { return json_of(at(config), accepted); }};
}

// A path in the file is the path in Config, so it is written once.
#define FIELD(member, ...) \
  make_field(              \
      #member, [](auto& config) -> auto& { return config.member; }, __VA_ARGS__)

constexpr std::nullopt_t kRequired = std::nullopt;

// Bounds that no real run meets, as those of shape_bounds.h; they keep products of sizes (tokens of a step
// times steps, and so on) within 64 bits, and seeds within what every JSON reader holds exactly.
constexpr double kMaxCount = 1e9;
constexpr double kMaxTokens = 1e15, kMaxSeed = 9007199254740991;
constexpr double kMaxRate = 1000;
// What the operators read in single precision must not become 0 or 1 there.
constexpr double kLeastFloat = 1e-30, kMostBelowOne = 0.9999999;

std::vector<Field> make_fields() {
  return {
      FIELD(name, nullptr, text().or_null(), "Name of the run; null: the file's name without its extension"),
      FIELD(device, "auto", one_of({"auto", "cpu", "cuda"}), "Where to train; auto: CUDA where there is one"),
      FIELD(threads, 0, integer(0, 4096), "CPU threads; 0: the process's cores over its local ranks"),

      FIELD(model.init_from, nullptr, text().or_null(),
            "Run, checkpoint or Hugging Face GPT-2 folder to start from; the shape then comes from it"),
      FIELD(model.arch, "gpt2", one_of({"gpt2"}), "Architecture"),
      FIELD(model.layers, 12, integer(1, kMaxLayers), "Transformer blocks"),
      FIELD(model.channels, 768, integer(1, kMaxChannels), "Width of the residual stream"),
      FIELD(model.heads, 12, integer(1, kMaxChannels),
            "Attention heads; channels / heads is a multiple of 8 up to 256"),
      FIELD(model.context, 1024, integer(1, kMaxContext), "Longest sequence, in tokens"),
      FIELD(model.vocab, "auto", integer(1, kMaxVocab).or_auto(), "Tokens known; auto: from the tokenizer"),
      FIELD(model.tied, true, boolean(), "One matrix for the token embedding and the output head"),
      FIELD(model.dropout, 0.0, number(0, 0.99),
            "Share of activations dropped while training, in steps of 1/256; 0, or at least 1/512"),
      FIELD(model.norm_eps, 1e-5, number(kLeastFloat, kMostBelowOne), "Added to the variance in layer norms"),
      FIELD(model.init_std, 0.02, number(kLeastFloat, 100), "Standard deviation of fresh weights"),

      FIELD(precision.mode, "bf16", one_of({"fp32", "tf32", "bf16", "fp8"}), "Precision of the products"),
      FIELD(precision.fallback, "error", one_of({"error", "allow"}),
            "Where the mode cannot run: refuse, or take the best that can and say so"),
      FIELD(precision.fp8.recipe, "delayed", one_of({"delayed", "current"}),
            "Scales from the history of maxima, or from the tensor itself"),
      FIELD(precision.fp8.format, "hybrid", one_of({"hybrid", "e4m3"}),
            "hybrid: E4M3 forward, E5M2 gradients; e4m3: both E4M3"),
      FIELD(precision.fp8.amax_history_len, 1024, integer(1, 65536), "Steps of history behind a scale"),
      FIELD(precision.fp8.amax_compute_algo, "max", one_of({"max", "most_recent"}),
            "How the history gives one maximum"),
      FIELD(precision.fp8.margin, 0, integer(-16, 16),
            "Scales are divided by 2^margin; below 0 values saturate, to see whether a comparison notices"),
      FIELD(precision.fp8.calibrate, true, boolean(),
            "Run step 1's batch once beforehand to learn the first scales; false: start at scale 1"),
      FIELD(precision.fp8.skip_first_layers, 0, integer(0, kMaxLayers), "First blocks that stay in BF16"),
      FIELD(precision.fp8.skip_last_layers, 0, integer(0, kMaxLayers), "Last blocks that stay in BF16"),
      FIELD(precision.fp8.fast_accum.fprop, true, boolean(), "Fast accumulation in the forward products"),
      FIELD(precision.fp8.fast_accum.dgrad, false, boolean(), "Fast accumulation in the input gradients"),
      FIELD(precision.fp8.fast_accum.wgrad, false, boolean(), "Fast accumulation in the weight gradients"),
      FIELD(precision.fp8.log_tensors, false, boolean(),
            "Write scale, amax and saturation of every tensor to fp8_tensors.jsonl, each logged step"),

      FIELD(data.train, kRequired, texts(), "Path, glob or list of them: shards or text to train on"),
      FIELD(data.val, nullptr, texts().or_null(), "The same for validation"),
      FIELD(data.val_fraction, 0.0, number_below(0, 1),
            "Last share of data.train that is taken out for validation"),
      FIELD(data.tokenizer, "auto", text(),
            "auto: the model's or what the data names, else bytes; bytes; or a path of a tokenizer.json"),
      FIELD(data.format, "auto", one_of({"auto", "shard", "u16", "u32", "text"}),
            "What the files hold; raw u16 and u32 are never guessed"),
      FIELD(data.seed, nullptr, integer(0, kMaxSeed).or_null(), "Seed of the order; null: train.seed"),

      FIELD(train.steps, nullptr, integer(1, kMaxSteps).or_null(),
            "Length in optimizer steps (at most one of steps, tokens, epochs; none: one epoch)"),
      FIELD(train.tokens, nullptr, integer(1, kMaxTokens).or_null(), "Length in tokens, rounded up to steps"),
      FIELD(train.epochs, nullptr, number_above(0, 1e6).or_null(), "Length in passes over the data"),
      FIELD(train.micro_batch, "auto", integer(1, 65536).or_auto(),
            "Sequences that a device works on at once; auto: the largest that fits"),
      FIELD(train.sequence, nullptr, integer(1, kMaxContext).or_null(),
            "Tokens of a sequence; null: model.context"),
      FIELD(train.tokens_per_step, nullptr, integer(1, kMaxTokensPerStep).or_null(),
            "Tokens of a step over all ranks (at most one of it and accumulate; none: 524288)"),
      FIELD(train.accumulate, nullptr, integer(1, 65536).or_null(), "Micro-batches of a step"),
      FIELD(train.eval_every, 250, integer(0, kMaxCount), "Steps between evaluations; 0: only at the end"),
      FIELD(train.eval_tokens, 1048576, integer(1, kMaxTokens).or_minus_one(),
            "Validation tokens of an evaluation; -1: all"),
      FIELD(train.checkpoint_every, 1000, integer(0, kMaxCount),
            "Steps between checkpoints; 0: only at the end"),
      FIELD(train.keep_checkpoints, 2, integer(1, kMaxCount), "Newest checkpoints that are kept"),
      FIELD(train.keep_best, false, boolean(), "Keep the checkpoint of the lowest validation loss, too"),
      FIELD(train.log_every, 1, integer(1, kMaxCount), "Steps between rows of the log"),
      FIELD(train.max_minutes, nullptr, number_above(0, kMaxCount).or_null(),
            "Stop, status 3, while time is left to evaluate and save: the run ends within so long"),
      FIELD(train.recompute, "none", one_of({"none", "activation", "block"}),
            "What backward computes again instead of keeping it in memory"),
      FIELD(train.seed, 1, integer(0, kMaxSeed), "Seed of weights, order and dropout"),
      FIELD(train.deterministic, true, boolean(), "The same bits from the same run"),
      FIELD(train.graph, true, boolean(), "Replay a step as CUDA graphs"),
      FIELD(train.max_bad_steps, 5, integer(1, kMaxCount), "Non-finite steps in a row that end the run"),

      FIELD(optimizer.lr, 6e-4, number(kLeastFloat, kMaxRate), "Highest learning rate"),
      FIELD(optimizer.min_lr, nullptr, number(0, kMaxRate).or_null(), "Last learning rate; null: lr / 10"),
      FIELD(optimizer.schedule, "cosine", one_of({"constant", "linear", "cosine", "wsd"}),
            "Way of the learning rate after the warm-up"),
      FIELD(optimizer.warmup_steps, nullptr, integer(0, kMaxCount).or_null(),
            "Steps up to lr; null: 2 % of the steps"),
      FIELD(optimizer.decay_steps, nullptr, integer(0, kMaxCount).or_null(),
            "Steps down to min_lr; null: all after the warm-up (wsd: 20 % of the steps)"),
      FIELD(optimizer.betas, Json::array({0.9, 0.95}), two_numbers(0, kMostBelowOne),
            "AdamW's decay of moments"),
      FIELD(optimizer.eps, 1e-8, number(kLeastFloat, 1), "AdamW's epsilon"),
      FIELD(optimizer.weight_decay, 0.1, number(0, kMaxRate), "Decay of matrices and embeddings"),
      FIELD(optimizer.clip, 1.0, number(0, 1e30),
            "Largest norm of the gradient, at least 1e-30; 0: no clipping"),

      FIELD(parallel.zero, 1, integer(0, 2),
            "Sharded over ranks: 0 nothing, 1 optimizer state, 2 gradients as well"),
      FIELD(parallel.transport, "auto", one_of({"auto", "nccl", "mpi"}), "What carries the gradients"),
      FIELD(parallel.reduce, "fp32", one_of({"fp32", "bf16"}), "Type in which gradients are summed"),
      FIELD(parallel.timeout_s, 600, integer(1, 604800), "Seconds to wait for a rank before giving up"),

      FIELD(output.dir, "runs/{name}", text(), "The run's folder; {name} is replaced"),
      FIELD(output.peak_tflops, nullptr, number_above(0, kMaxCount).or_null(),
            "Peak of the device, for MFU; null: as known for the device, else MFU is n/a"),
  };
}

#undef FIELD

// --- Checks ---

bool in_range(const Accepted& a, double x) {
  return (a.low_open ? x > a.low : x >= a.low) && (a.high_open ? x < a.high : x <= a.high);
}

bool is_text(const Json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  // Control characters in a path or a name are a slip, and a zero byte would cut it short.
  return !text.empty() && std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
}

/// The integer that a JSON number stands for, if it stands for one that 64 bits hold.
std::optional<std::int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
    return std::nullopt;
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double x = value.get<double>();
  if (x != std::floor(x) || std::abs(x) >= 0x1p63) return std::nullopt;
  return static_cast<std::int64_t>(x);
}

std::string range_text(const Accepted& a) {
  if (!a.low_open && !a.high_open) return fmt::format("from {} to {}", a.low, a.high);
  return fmt::format("{} {}, {} {}", a.low_open ? "above" : "from", a.low, a.high_open ? "below" : "up to",
                     a.high);
}

/// A bound as the kind writes it: 5 for an integer, 5.0 for a number.
Json bound(const Accepted& a, double value) {
  return a.kind == Kind::integer ? Json(static_cast<std::int64_t>(value)) : Json(value);
}

Json range_schema(const Accepted& a, const char* type) {
  return {{"type", type},
          {a.low_open ? "exclusiveMinimum" : "minimum", bound(a, a.low)},
          {a.high_open ? "exclusiveMaximum" : "maximum", bound(a, a.high)}};
}

Json kind_schema(const Accepted& a) {
  const Json string = {{"type", "string"}, {"minLength", 1}};
  switch (a.kind) {
    case Kind::boolean:
      return {{"type", "boolean"}};
    case Kind::integer:
      return range_schema(a, "integer");
    case Kind::number:
      return range_schema(a, "number");
    case Kind::word:
      return {{"enum", a.words}};
    case Kind::text:
      return string;
    case Kind::texts:
      return {{"anyOf", Json::array({string, {{"type", "array"}, {"items", string}, {"minItems", 1}}})}};
    case Kind::numbers2:
      return {{"type", "array"}, {"items", range_schema(a, "number")}, {"minItems", 2}, {"maxItems", 2}};
  }
  throw std::logic_error("kind_schema: a kind without a schema");
}

std::string kind_words(const Accepted& a) {
  switch (a.kind) {
    case Kind::boolean:
      return "true | false";
    case Kind::integer:
      return "integer " + range_text(a);
    case Kind::number:
      return "number " + range_text(a);
    case Kind::word:
      return fmt::format("\"{}\"", fmt::join(a.words, "\" | \""));
    case Kind::text:
      return "non-empty string";
    case Kind::texts:
      return "non-empty string | list of non-empty strings";
    case Kind::numbers2:
      return "two numbers " + range_text(a);
  }
  throw std::logic_error("kind_words: a kind without words");
}

}  // namespace

Accepted Accepted::or_null() const {
  Accepted wider = *this;
  wider.null = true;
  return wider;
}

Accepted Accepted::or_auto() const {
  Accepted wider = *this;
  wider.automatic = true;
  return wider;
}

Accepted Accepted::or_minus_one() const {
  Accepted wider = *this;
  wider.minus_one = true;
  return wider;
}

std::optional<Json> Accepted::normalise(const Json& value) const {
  if ((null && value.is_null()) || (automatic && value == "auto")) return value;
  const auto is_number = [this](const Json& x) { return x.is_number() && in_range(*this, x.get<double>()); };
  bool fits = false;
  switch (kind) {
    case Kind::boolean:
      fits = value.is_boolean();
      break;
    case Kind::integer: {
      const std::optional<std::int64_t> x = as_integer(value);
      if (x && ((minus_one && *x == -1) || in_range(*this, static_cast<double>(*x)))) return Json(*x);
      return std::nullopt;
    }
    case Kind::number:
      if (is_number(value)) return Json(value.get<double>());
      return std::nullopt;
    case Kind::word:
      fits = value.is_string() && std::count(words.begin(), words.end(), value.get<std::string>()) > 0;
      break;
    case Kind::text:
      fits = is_text(value);
      break;
    case Kind::texts:
      fits = is_text(value) ||
             (value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), is_text));
      break;
    case Kind::numbers2:
      if (!value.is_array() || value.size() != 2 || !std::all_of(value.begin(), value.end(), is_number))
        return std::nullopt;
      return Json::array({value[0].get<double>(), value[1].get<double>()});
  }
  return fits ? std::optional<Json>(value) : std::nullopt;
}

std::string Accepted::words_for_message() const {
  return kind_words(*this) + (minus_one ? " | -1" : "") + (automatic ? " | \"auto\"" : "") +
         (null ? " | null" : "");
}

Json Accepted::schema() const {
  Json any = Json::array({kind_schema(*this)});
  if (minus_one) any.push_back({{"const", -1}});
  if (automatic) any.push_back({{"const", "auto"}});
  if (null) any.push_back({{"type", "null"}});
  return any.size() == 1 ? any.front() : Json{{"anyOf", any}};
}

const std::vector<Field>& config_fields() {
  static const std::vector<Field> fields = make_fields();
  return fields;
}

const Field* find_field(std::string_view path) {
  for (const Field& field : config_fields())
    if (field.path == path) return &field;
  return nullptr;
}

SplitPath split_path(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return {"", std::string(path)};
  return {std::string(path.substr(0, dot)), std::string(path.substr(dot + 1))};
}

std::vector<std::string> keys_of_section(std::string_view section) {
  const std::string prefix = section.empty() ? "" : std::string(section) + ".";
  std::vector<std::string> keys;
  for (const Field& field : config_fields()) {
    if (!field.path.starts_with(prefix)) continue;
    std::string key = field.path.substr(prefix.size());
    key = key.substr(0, key.find('.'));
    if (keys.empty() || keys.back() != key) keys.push_back(std::move(key));  // a section's fields adjoin
  }
  return keys;
}

Json config_schema() {
  const auto object = [] { return Json{{"type", "object"}, {"additionalProperties", false}}; };
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "Octavo run"}};
  schema.update(object());
  // Beside the fields: the line by which an editor finds this schema, and what resolved.json carries.
  schema["properties"]["$schema"] = {{"type", "string"}};
  schema["properties"]["format_version"] = {{"const", kFormatVersion}};
  schema["properties"][kChosenKey] = {{"type", "array"}, {"items", {{"type", "string"}}}};
  for (const Field& field : config_fields()) {
    Json* section = &schema;
    std::string_view rest = field.path;
    for (std::size_t dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
      const std::string key(rest.substr(0, dot));
      Json& inner = (*section)["properties"][key];
      if (inner.is_null()) inner = object();
      if (!field.default_value) (*section)["required"].push_back(key);
      section = &inner;
      rest.remove_prefix(dot + 1);
    }
    Json property = field.accepted.schema();
    property["description"] = field.help;
    if (field.default_value) property["default"] = *field.default_value;
    (*section)["properties"][std::string(rest)] = std::move(property);
    if (!field.default_value) (*section)["required"].push_back(std::string(rest));
  }
  return schema;
}

std::string explain_config() {
  const auto default_text = [](const Field& field) {
    return field.default_value ? field.default_value->dump() : std::string("(required)");
  };
  std::size_t path_width = 0, default_width = 0;
  for (const Field& field : config_fields()) {
    path_width = std::max(path_width, field.path.size());
    default_width = std::max(default_width, default_text(field).size());
  }
  std::string table =
      fmt::format("{:<{}}  {:<{}}  {}\n", "field", path_width, "default", default_width, "allowed");
  std::string section = "-";
  for (const Field& field : config_fields()) {
    const std::string top = split_path(field.path).section;
    if (top.substr(0, top.find('.')) != section) {
      section = top.substr(0, top.find('.'));
      table += "\n";
    }
    table += fmt::format("{:<{}}  {:<{}}  {}\n    {}\n", field.path, path_width, default_text(field),
                         default_width, field.accepted.words_for_message(), field.help);
  }
  return table;
}

}  // namespace octavo
