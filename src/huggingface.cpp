#include "huggingface.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "error.h"
#include "files.h"
#include "safetensors.h"
#include "shape_bounds.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kPrefix = "transformer.";
constexpr std::int64_t kRowsAtATime = 64;  // while a matrix is transposed to or from a file

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return Json(shape).dump();
}

// --- config.json ---

// A key of config.json, refused by name where its value is not one that the model here computes.
struct Fixed {
  const char* key;
  std::vector<Json> allowed;  // the first one is the default of transformers, taken where the key is missing
};

void check_fixed(const Json& config, const std::string& origin) {
  const std::array fixed{
      Fixed{"model_type", {"gpt2"}},
      Fixed{"activation_function", {"gelu_new", "gelu_pytorch_tanh"}},  // two names of the tanh form
      Fixed{"scale_attn_weights", {true}},
      Fixed{"scale_attn_by_inverse_layer_idx", {false}},
      Fixed{"reorder_and_upcast_attn", {false}},
      Fixed{"add_cross_attention", {false}},
      Fixed{"pruned_heads", {Json::object(), nullptr}},
      Fixed{"quantization_config", {nullptr}},
  };
  for (const Fixed& f : fixed) {
    if (!config.contains(f.key)) continue;
    const Json& value = config[f.key];
    if (std::find(f.allowed.begin(), f.allowed.end(), value) != f.allowed.end()) continue;
    std::string allowed;
    for (const Json& a : f.allowed) allowed += (allowed.empty() ? "" : " or ") + a.dump();
    refuse("{} in {}: found {}; allowed: {}", f.key, origin, json_excerpt(value), allowed);
  }
}

// An integer in [1, most]; `fallback` where the key is missing or null, required where there is none.
std::int64_t read_size(const Json& config, const char* key, const std::string& origin, std::int64_t most,
                       std::optional<std::int64_t> fallback = {}) {
  const auto found = config.find(key);
  const bool absent = found == config.end() || found->is_null();
  if (absent && fallback) return *fallback;
  if (absent || !found->is_number_integer() || *found < 1 || *found > most)
    refuse("{} in {}: found {}; allowed: an integer from 1 to {}", key, origin,
           absent ? "nothing" : json_excerpt(*found), most);
  return found->get<std::int64_t>();
}

double read_number(const Json& config, const char* key, const std::string& origin, double fallback,
                   double above, double below) {
  const auto found = config.find(key);
  if (found == config.end()) return fallback;
  const double value = found->is_number() ? found->get<double>() : std::nan("");
  if (!(value > above && value < below))
    refuse("{} in {}: found {}; allowed: a number over {} and under {}", key, origin, json_excerpt(*found),
           above, below);
  return value;
}

// --- weights ---

// Where the tensors of a model lie: one file, or the shards of an index.
class WeightFiles {
 public:
  explicit WeightFiles(const fs::path& folder) : folder_(folder) {
    if (path_exists(folder / kModelFile)) {
      add_file(kModelFile);
      for (const SavedTensor& t : files_[0].tensors()) where_[t.name] = {0, &t};
    } else if (path_exists(folder / kIndex)) {
      read_index();
    } else if (path_exists(folder / "pytorch_model.bin") ||
               path_exists(folder / "pytorch_model.bin.index.json")) {
      refuse(
          "{}: found pytorch_model.bin, a pickle, which runs code when it is read; allowed: {}. In Python: "
          "transformers.GPT2LMHeadModel.from_pretrained(\"{}\").save_pretrained(\"NEW\", "
          "safe_serialization=True)",
          folder.string(), kModelFile, folder.string());
    } else {
      refuse("{}: found no weights; allowed: a folder with {} or {}", folder.string(), kModelFile, kIndex);
    }
  }

  struct Place {
    std::size_t file;
    const SavedTensor* tensor;
  };
  const std::map<std::string, Place>& tensors() const { return where_; }
  const SafetensorsFile& file(const Place& place) const { return files_[place.file]; }
  /// For messages.
  std::string origin() const { return (folder_ / (sharded_ ? kIndex : kModelFile)).string(); }

 private:
  std::size_t add_file(const std::string& name) {
    files_.emplace_back(folder_ / name);
    return files_.size() - 1;
  }

  void read_index() {
    sharded_ = true;
    const nlohmann::json index = nlohmann::json::parse(read_whole_file(folder_ / kIndex), nullptr, false);
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
      refuse("{}: found no weight_map; allowed: a JSON object {{\"weight_map\": {{tensor: file}}}}",
             origin());
    std::map<std::string, std::size_t> opened;
    std::set<std::string> shards;
    for (const auto& [tensor, file] : index["weight_map"].items()) {
      // A shard lies in the folder itself: a path out of it is never followed.
      const std::string name = file.is_string() ? file.get<std::string>() : "";
      if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos)
        refuse("{}: tensor {} lies in {}; allowed: the name of a file in the same folder", origin(),
               json_excerpt(tensor), file.is_string() ? json_excerpt(name) : file.type_name());
      shards.insert(name);
    }
    files_.reserve(shards.size());  // where_ points into the files
    for (const std::string& name : shards) opened[name] = add_file(name);
    for (const auto& [tensor, file] : index["weight_map"].items()) {
      const std::size_t i = opened.at(file.get<std::string>());
      const SavedTensor* found = files_[i].find(tensor);
      if (found == nullptr)
        refuse("{}: tensor {} is not in {}; allowed: an index that fits its files", origin(),
               json_excerpt(tensor), files_[i].path().filename().string());
      where_[tensor] = {i, found};
    }
    for (const SafetensorsFile& file : files_) {
      for (const SavedTensor& t : file.tensors()) {
        if (!where_.contains(t.name))
          refuse("{}: tensor {} of {} is not listed; allowed: an index that fits its files", origin(),
                 json_excerpt(t.name), file.path().filename().string());
      }
    }
  }

  fs::path folder_;
  bool sharded_ = false;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> where_;
};

// Buffers of older GPT-2 files, "h.<layer>.attn.bias" and "h.<layer>.attn.masked_bias": masks, not weights.
bool is_mask(std::string_view name) {
  if (!name.starts_with("h.")) return false;
  name.remove_prefix(2);
  const std::size_t digits = std::min(name.find('.'), name.size());
  if (digits == 0 || !std::all_of(name.begin(), name.begin() + static_cast<std::ptrdiff_t>(digits),
                                  [](unsigned char c) { return std::isdigit(c) != 0; }))
    return false;
  name.remove_prefix(digits);
  return name == ".attn.bias" || name == ".attn.masked_bias";
}

// A parameter's name in a file whose names carry the prefix or do not; the head never does.
std::string name_in_file(const Parameter& p, bool prefixed) {
  return prefixed && p.hf_name != kHead ? kPrefix + p.hf_name : p.hf_name;
}

// A parameter's shape in a file: Conv1D matrices lie transposed.
std::vector<std::int64_t> shape_in_file(const Parameter& p) {
  return p.hf_transposed ? std::vector{p.cols, p.saved_rows} : p.saved_shape();
}

// Fills one parameter from its tensor; the shapes and the type have been checked.
void read_parameter(const SafetensorsFile& file, const SavedTensor& tensor, const Parameter& p, float* out) {
  if (!p.hf_transposed) {
    file.read_f32(tensor, 0, p.saved_rows * p.cols, out);
    return;
  }
  const std::int64_t O = p.rows, I = p.cols;  // (I, O) in the file
  std::vector<float> block(static_cast<std::size_t>(kRowsAtATime * O));
  for (std::int64_t first = 0; first < I; first += kRowsAtATime) {
    const std::int64_t rows = std::min(kRowsAtATime, I - first);
    file.read_f32(tensor, first * O, rows * O, block.data());
    for (std::int64_t o = 0; o < O; ++o)
      for (std::int64_t i = 0; i < rows; ++i)
        out[o * I + first + i] = block[static_cast<std::size_t>(i * O + o)];
  }
}

void write_parameter(SafetensorsWriter& writer, const Parameter& p, const float* in) {
  if (!p.hf_transposed) {
    writer.write(in, static_cast<std::size_t>(p.saved_rows * p.cols) * sizeof(float));
    return;
  }
  const std::int64_t O = p.rows, I = p.cols;
  std::vector<float> block(static_cast<std::size_t>(kRowsAtATime * O));
  for (std::int64_t first = 0; first < I; first += kRowsAtATime) {
    const std::int64_t rows = std::min(kRowsAtATime, I - first);
    for (std::int64_t o = 0; o < O; ++o)
      for (std::int64_t i = 0; i < rows; ++i)
        block[static_cast<std::size_t>(i * O + o)] = in[o * I + first + i];
    writer.write(block.data(), static_cast<std::size_t>(rows * O) * sizeof(float));
  }
}

// A tied model gets the names of OpenAI's own files, which every reader of GPT-2 knows. Beside an untied head
// transformers takes only the names that it saves itself, with the prefix.
std::vector<TensorSpec> model_specs(const ParameterTable& table) {
  const bool prefixed = table.head != table.wte;
  std::vector<TensorSpec> specs;
  for (const Parameter& p : table.parameters)
    specs.push_back({name_in_file(p, prefixed), "F32", shape_in_file(p)});
  return specs;
}

std::map<std::string, std::string> model_metadata() {
  return {{"format", "pt"}, {"format_version", std::to_string(kFormatVersion)}};
}

}  // namespace

Json huggingface_config(const ModelShape& shape, const ModelDetails& details) {
  const Json eot = details.eot >= 0 ? Json(details.eot) : Json(nullptr);
  return {{"format_version", kFormatVersion},
          {"model_type", "gpt2"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"vocab_size", shape.vocab},
          {"n_positions", shape.context},
          {"n_ctx", shape.context},
          {"n_embd", shape.channels},
          {"n_layer", shape.layers},
          {"n_head", shape.heads},
          {"n_inner", shape.hidden()},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", shape.norm_eps},
          {"tie_word_embeddings", shape.tied},
          {"resid_pdrop", details.dropout},
          {"embd_pdrop", details.dropout},
          {"attn_pdrop", details.dropout},
          {"initializer_range", details.init_std},
          {"scale_attn_weights", true},
          {"bos_token_id", eot},
          {"eos_token_id", eot},
          {"use_cache", true},
          {"torch_dtype", "float32"}};
}

ModelShape parse_huggingface_config(const Json& config, const std::string& origin, ModelDetails* details) {
  if (!config.is_object())
    refuse("{}: found {}; allowed: the JSON object of a GPT-2", origin, config.type_name());
  if (!config.contains("model_type")) refuse("model_type in {}: found nothing; allowed: \"gpt2\"", origin);
  check_fixed(config, origin);

  ModelShape shape;
  shape.channels = read_size(config, "n_embd", origin, kMaxChannels);
  shape.layers = read_size(config, "n_layer", origin, kMaxLayers);
  shape.heads = shape.kv_heads = read_size(config, "n_head", origin, kMaxChannels);
  const std::string heads = fault_of_heads(shape.heads, shape.channels, "n_embd");
  if (!heads.empty()) refuse("n_head in {}: {}", origin, heads);
  shape.vocab = read_size(config, "vocab_size", origin, kMaxVocab);
  shape.padded_vocab = pad_vocab(shape.vocab);
  // The oldest files have n_ctx alone.
  shape.context =
      read_size(config, config.contains("n_positions") ? "n_positions" : "n_ctx", origin, kMaxContext);
  const std::int64_t inner = read_size(config, "n_inner", origin, 4 * kMaxChannels, shape.hidden());
  if (inner != shape.hidden())
    refuse("n_inner in {}: found {}; allowed: null or 4 n_embd = {}", origin, inner, shape.hidden());
  shape.norm_eps = read_number(config, "layer_norm_epsilon", origin, 1e-5, 0, 1);
  const auto tied = config.find("tie_word_embeddings");
  if (tied != config.end() && !tied->is_boolean())
    refuse("tie_word_embeddings in {}: found {}; allowed: true or false", origin, json_excerpt(*tied));
  shape.tied = tied == config.end() || tied->get<bool>();

  if (details != nullptr) {
    details->dropout = read_number(config, "resid_pdrop", origin, 0.1, -1e-300, 1);
    details->init_std = read_number(config, "initializer_range", origin, 0.02, 0, HUGE_VAL);
    const auto eos = config.find("eos_token_id");
    const bool is_id = eos != config.end() && eos->is_number_integer() && *eos >= 0 && *eos < shape.vocab;
    details->eot = is_id ? eos->get<std::int32_t>() : -1;  // absent, null, a list: generation stops nowhere
  }
  return shape;
}

ModelShape read_huggingface_config(const fs::path& folder, ModelDetails* details) {
  const std::string origin = (folder / kConfigFile).string();
  const Json config = Json::parse(read_whole_file(folder / kConfigFile), nullptr, false);
  if (config.is_discarded()) refuse("{}: is not valid JSON; allowed: the config.json of a GPT-2", origin);
  return parse_huggingface_config(config, origin, details);
}

void write_model(const fs::path& folder, const ParameterTable& table, const ModelShape& shape,
                 const ModelDetails& details, const float* masters) {
  SafetensorsWriter writer(folder / kModelFile, model_specs(table), model_metadata());
  for (const Parameter& p : table.parameters) write_parameter(writer, p, masters + p.offset);
  writer.finish();
  write_json_atomically(folder / kConfigFile, huggingface_config(shape, details));
}

std::uint64_t model_file_size(const ParameterTable& table) {
  return SafetensorsWriter::file_size(model_specs(table), model_metadata());
}

void read_weights(const fs::path& folder, const ParameterTable& table, float* arena) {
  const WeightFiles files(folder);
  const auto& tensors = files.tensors();
  const bool prefixed = std::any_of(tensors.begin(), tensors.end(),
                                    [](const auto& entry) { return entry.first.starts_with(kPrefix); });

  // All faults are gathered first, so that one message tells them all.
  std::vector<std::string> missing, unknown, misshapen;
  std::set<std::string> known;
  for (const Parameter& p : table.parameters) {
    const std::string name = name_in_file(p, prefixed);
    known.insert(name);
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      missing.push_back(name);
      continue;
    }
    const SavedTensor& t = *found->second.tensor;
    if (t.shape != shape_in_file(p) || (t.dtype != "F32" && t.dtype != "F16" && t.dtype != "BF16"))
      misshapen.push_back(fmt::format("{} is {} {} (allowed: {} of F32, F16 or BF16)", name,
                                      shape_text(t.shape), t.dtype, shape_text(shape_in_file(p))));
  }
  const bool tied = table.head == table.wte;
  for (const auto& [name, place] : tensors) {
    const std::string_view bare =
        std::string_view(name).substr(name.starts_with(kPrefix) ? std::string_view(kPrefix).size() : 0);
    if (!known.contains(name) && !is_mask(bare) && !(tied && name == kHead))
      unknown.push_back(json_excerpt(name));
  }
  std::string faults;
  const auto report = [&](const char* what, const std::vector<std::string>& names) {
    for (std::size_t i = 0; i < names.size(); ++i)
      faults += fmt::format("{}{}", i > 0 ? ", " : fmt::format("{}{}: ", faults.empty() ? "" : "; ", what),
                            names[i]);
  };
  report("missing", missing);
  report("not known", unknown);
  report("of another shape or type", misshapen);
  if (!faults.empty()) refuse("{}: does not hold the model of its config.json; {}", files.origin(), faults);

  std::fill(arena, arena + table.arena_size, 0.0f);
  for (const Parameter& p : table.parameters) {
    const WeightFiles::Place& place = tensors.at(name_in_file(p, prefixed));
    read_parameter(files.file(place), *place.tensor, p, arena + p.offset);
  }

  // A tied head may be stored as well; where it is another matrix, the model is not tied.
  const auto head = tensors.find(kHead);
  if (tied && head != tensors.end()) {
    const Parameter& wte = table[table.wte];
    const SavedTensor& t = *head->second.tensor;
    bool equal = t.shape == wte.saved_shape();
    std::vector<float> row(static_cast<std::size_t>(wte.cols));
    for (std::int64_t r = 0; equal && r < wte.saved_rows; ++r) {
      files.file(head->second).read_f32(t, r * wte.cols, wte.cols, row.data());
      // By value: the same numbers may be stored in two types. A NaN is left to the training to find.
      equal = std::equal(row.begin(), row.end(), arena + wte.offset + r * wte.cols,
                         [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); });
    }
    if (!equal)
      refuse("{}: {} differs from wte.weight; allowed: equal, or \"tie_word_embeddings\": false in {}",
             files.origin(), kHead, kConfigFile);
  }
}

}  // namespace octavo
