// GPT-2 in Hugging Face's form: config.json both ways, and weights in every variant that is found in the
// wild. The files are made here from a value for every (tensor, row, column), so that an element out of place
// is seen.
#include "huggingface.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "catch.h"
#include "error.h"
#include "file_size_limit.h"
#include "safetensors.h"
#include "temp_dir.h"

using namespace octavo;
using octavo::testing::FileSizeLimit;
using octavo::testing::TempDir;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

ModelShape small_shape(bool tied) {
  ModelShape s;
  s.layers = 2, s.channels = 48, s.heads = s.kv_heads = 3, s.context = 37, s.vocab = 101;
  s.padded_vocab = 128;
  s.tied = tied;
  return s;
}

// A tensor of Hugging Face's GPT-2 with its shape there, written down from its documentation, not from our
// table.
struct HfTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};
std::vector<HfTensor> hf_tensors(const ModelShape& s) {
  const std::int64_t C = s.channels;
  std::vector<HfTensor> list{{"wte.weight", {s.vocab, C}}, {"wpe.weight", {s.context, C}}};
  for (std::int64_t l = 0; l < s.layers; ++l) {
    const std::string h = "h." + std::to_string(l) + ".";
    for (const char* norm : {"ln_1", "ln_2"}) {
      list.push_back({h + norm + ".weight", {C}});
      list.push_back({h + norm + ".bias", {C}});
    }
    list.push_back({h + "attn.c_attn.weight", {C, 3 * C}});
    list.push_back({h + "attn.c_attn.bias", {3 * C}});
    list.push_back({h + "attn.c_proj.weight", {C, C}});
    list.push_back({h + "attn.c_proj.bias", {C}});
    list.push_back({h + "mlp.c_fc.weight", {C, 4 * C}});
    list.push_back({h + "mlp.c_fc.bias", {4 * C}});
    list.push_back({h + "mlp.c_proj.weight", {4 * C, C}});
    list.push_back({h + "mlp.c_proj.bias", {C}});
  }
  list.push_back({"ln_f.weight", {C}});
  list.push_back({"ln_f.bias", {C}});
  return list;
}

// The value of element (i, j) of a tensor: one that F16 and BF16 hold exactly.
float value_of(const std::string& name, std::int64_t i, std::int64_t j) {
  const std::size_t mixed = std::hash<std::string>{}(name) + static_cast<std::size_t>(i * 7919 + j * 104729);
  return (static_cast<float>(mixed * 2654435761u % 255) - 127.0f) / 256.0f;
}

std::string encoded(const std::string& dtype, float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (dtype == "F32") return std::string(reinterpret_cast<const char*>(&bits), 4);
  std::uint16_t half = static_cast<std::uint16_t>(bits >> 16);
  if (dtype == "F16" && value != 0)  // normal numbers only: value_of() gives no others
    half = static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | ((bits >> 23 & 0xffu) - 112) << 10 |
                                      (bits >> 13 & 0x3ffu));
  return std::string(reinterpret_cast<const char*>(&half), 2);
}

struct Variant {
  std::string prefix;
  std::string dtype = "F32";
  bool masks = false;     // h.N.attn.bias and masked_bias of old files
  std::string head_like;  // lm_head.weight with the values of that tensor; empty: none
  std::function<void(std::vector<HfTensor>&)> change = [](auto&) {};
  std::size_t from = 0, to = 1000;  // which of the tensors: for shards
};

void write_variant(const fs::path& file, const ModelShape& s, const Variant& v) {
  std::vector<HfTensor> list = hf_tensors(s);
  if (!v.head_like.empty()) list.push_back({"lm_head.weight", {s.vocab, s.channels}});
  v.change(list);
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(std::min(v.to, list.size())), list.end());
  list.erase(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(std::min(v.from, list.size())));
  std::vector<TensorSpec> specs;
  for (const HfTensor& t : list)
    specs.push_back({(t.name == "lm_head.weight" ? "" : v.prefix) + t.name, v.dtype, t.shape});
  if (v.masks) {
    for (std::int64_t l = 0; l < s.layers; ++l) {
      specs.push_back({v.prefix + "h." + std::to_string(l) + ".attn.bias", "U8", {1, 1, 3, 3}});
      specs.push_back({v.prefix + "h." + std::to_string(l) + ".attn.masked_bias", "F32", {}});
    }
  }
  SafetensorsWriter writer(file, specs, {{"format", "pt"}});
  for (const HfTensor& t : list) {
    const std::string& name = t.name == "lm_head.weight" ? v.head_like : t.name;
    const std::int64_t rows = t.shape.size() == 2 ? t.shape[0] : 1, cols = t.shape.back();
    std::string bytes;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j) bytes += encoded(v.dtype, value_of(name, i, j));
    writer.write(bytes.data(), bytes.size());
  }
  if (v.masks) {
    const std::string zeros(static_cast<std::size_t>(s.layers) * (9 + 4), '\0');
    writer.write(zeros.data(), zeros.size());
  }
  writer.finish();
}

// Elements of an arena that are not what the file's values give: weights by our own orientation, zero
// elsewhere.
std::size_t wrong_elements(const ModelShape& s, const std::vector<float>& arena,
                           const std::string& head = "lm_head.weight") {
  const ParameterTable table = make_parameter_table(s);
  std::vector<float> expected(arena.size(), 0.0f);
  for (const Parameter& p : table.parameters) {
    const bool conv1d = p.hf_name.find(".c_") != std::string::npos && p.hf_name.ends_with(".weight");
    const std::string name = p.hf_name == "lm_head.weight" ? head : p.hf_name;
    for (std::int64_t i = 0; i < (p.rank == 2 ? p.saved_rows : 1); ++i)
      for (std::int64_t j = 0; j < p.cols; ++j)
        expected[static_cast<std::size_t>(p.offset + i * p.cols + j)] =
            conv1d ? value_of(name, j, i) : value_of(name, i, j);
  }
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < arena.size(); ++i)
    wrong += std::bit_cast<std::uint32_t>(arena[i]) == std::bit_cast<std::uint32_t>(expected[i]) ? 0 : 1;
  return wrong;
}

std::vector<float> filled_arena(const ModelShape& s) {
  return std::vector<float>(static_cast<std::size_t>(make_parameter_table(s).arena_size), 77.0f);
}

std::string reading_fails(const fs::path& folder, const ModelShape& s) {
  std::vector<float> arena = filled_arena(s);
  try {
    read_weights(folder, make_parameter_table(s), arena.data());
  } catch (const RequestError& e) {
    return e.what();
  }
  return "no error";
}

Json good_config() {
  return huggingface_config(small_shape(true), {});
}

}  // namespace

TEST_CASE("weights of every variant of a Hugging Face GPT-2 arrive exactly, in our orientation") {
  const TempDir dir;
  const fs::path file = dir.path / "model.safetensors";
  const ModelShape tied = small_shape(true), untied = small_shape(false);
  for (const char* prefix : {"", "transformer."}) {
    for (const char* dtype : {"F32", "F16", "BF16"}) {
      for (const bool masks : {false, true}) {
        INFO(prefix << " " << dtype << " masks " << masks);
        Variant v{.prefix = prefix, .dtype = dtype, .masks = masks};
        std::vector<float> arena = filled_arena(tied);
        write_variant(file, tied, v);
        read_weights(dir.path, make_parameter_table(tied), arena.data());
        CHECK(wrong_elements(tied, arena) == 0);

        v.head_like = "wte.weight";  // a tied head, stored all the same
        arena = filled_arena(tied);
        write_variant(file, tied, v);
        read_weights(dir.path, make_parameter_table(tied), arena.data());
        CHECK(wrong_elements(tied, arena) == 0);

        v.head_like = "lm_head.weight";
        arena = filled_arena(untied);
        write_variant(file, untied, v);
        read_weights(dir.path, make_parameter_table(untied), arena.data());
        CHECK(wrong_elements(untied, arena) == 0);
        CHECK(wrong_elements(untied, arena, "wte.weight") > 0);
        CHECK_THAT(reading_fails(dir.path, tied),
                   ContainsSubstring("lm_head.weight differs from wte.weight"));
      }
    }
  }
}

TEST_CASE("weights in shards") {
  const TempDir dir;
  const ModelShape s = small_shape(true);
  const std::string first = "model-00001-of-00002.safetensors", second = "model-00002-of-00002.safetensors";
  write_variant(dir.path / first, s, {.prefix = "transformer.", .to = 9});
  write_variant(dir.path / second, s, {.prefix = "transformer.", .from = 9});
  const std::vector<HfTensor> list = hf_tensors(s);
  Json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", Json::object()}};
  for (std::size_t i = 0; i < list.size(); ++i)
    index["weight_map"]["transformer." + list[i].name] = i < 9 ? first : second;
  const auto write_index = [&] { dir.file("model.safetensors.index.json", index.dump()); };
  write_index();
  std::vector<float> arena = filled_arena(s);
  read_weights(dir.path, make_parameter_table(s), arena.data());
  CHECK(wrong_elements(s, arena) == 0);

  index["weight_map"]["transformer.wte.weight"] = second;
  write_index();
  CHECK_THAT(reading_fails(dir.path, s), ContainsSubstring("\"transformer.wte.weight\" is not in " + second));
  index["weight_map"].erase("transformer.wte.weight");
  write_index();
  CHECK_THAT(reading_fails(dir.path, s),
             ContainsSubstring("\"transformer.wte.weight\" of " + first + " is not listed"));
  for (const Json& name :
       {Json("../x.safetensors"), Json("/etc/passwd"), Json(""), Json(".."), Json(7), Json::array()}) {
    index["weight_map"]["transformer.wte.weight"] = name;
    write_index();
    CHECK_THAT(reading_fails(dir.path, s),
               ContainsSubstring("allowed: the name of a file in the same folder"));
  }
  index["weight_map"]["transformer.wte.weight"] = "model-00003.safetensors";
  write_index();
  CHECK_THAT(reading_fails(dir.path, s), ContainsSubstring("model-00003.safetensors"));
  for (const char* text : {"", "[]", "{}", "{\"weight_map\":[]}"}) {
    dir.file("model.safetensors.index.json", text);
    CHECK_THAT(reading_fails(dir.path, s), ContainsSubstring("found no weight_map"));
  }
}

TEST_CASE("every tensor that is missing, not known or of another shape is named, in one line") {
  const TempDir dir;
  const ModelShape s = small_shape(true);
  const fs::path file = dir.path / "model.safetensors";
  write_variant(file, s, {.change = [](std::vector<HfTensor>& list) {
                  std::erase_if(list, [](const HfTensor& t) {
                    return t.name == "h.0.ln_1.bias" || t.name == "ln_f.weight";
                  });
                  for (HfTensor& t : list) {
                    if (t.name == "h.1.attn.c_attn.weight")
                      std::swap(t.shape[0], t.shape[1]);  // nn.Linear's orientation
                    if (t.name == "wpe.weight") t.shape[0] = 36;
                  }
                  list.push_back({"h.2.ln_1.bias", {48}});
                  list.push_back({"h.0.crossattention.bias", {48}});
                  list.push_back({"h.x.attn.bias", {48}});
                }});
  const std::string message = reading_fails(dir.path, s);
  CHECK(message.find('\n') == std::string::npos);
  CHECK_THAT(message, ContainsSubstring(file.string()));
  CHECK_THAT(message, ContainsSubstring("missing: h.0.ln_1.bias, ln_f.weight;"));
  CHECK_THAT(message, ContainsSubstring(
                          "not known: \"h.0.crossattention.bias\", \"h.2.ln_1.bias\", \"h.x.attn.bias\";"));
  CHECK_THAT(message, ContainsSubstring("wpe.weight is [36,48] F32 (allowed: [37,48] of F32, F16 or BF16)"));
  CHECK_THAT(message, ContainsSubstring("h.1.attn.c_attn.weight is [144,48] F32 (allowed: [48,144]"));

  write_variant(file, s, {.dtype = "F64", .to = 0});  // nothing at all
  CHECK_THAT(reading_fails(dir.path, s),
             ContainsSubstring("missing: wte.weight, wpe.weight, h.0.ln_1.weight"));
  SafetensorsWriter other(file, {{"wte.weight", "I8", {101, 48}}}, {});
  const std::string bytes(101 * 48, '\0');
  other.write(bytes.data(), bytes.size());
  other.finish();
  CHECK_THAT(reading_fails(dir.path, s),
             ContainsSubstring("wte.weight is [101,48] I8 (allowed: [101,48] of F32, F16 or BF16)"));
}

TEST_CASE("a folder without safetensors says what to do") {
  const TempDir dir;
  const ModelShape s = small_shape(true);
  CHECK_THAT(reading_fails(dir.path, s),
             ContainsSubstring("found no weights; allowed: a folder with model.safetensors"));
  dir.file("pytorch_model.bin", "x");
  CHECK_THAT(reading_fails(dir.path, s), ContainsSubstring("save_pretrained"));
}

TEST_CASE("a model written is read back bit for bit, without padding, gaps or a second head") {
  for (const bool tied : {true, false}) {
    const ModelShape s = small_shape(tied);
    const ParameterTable table = make_parameter_table(s);
    std::vector<float> masters(static_cast<std::size_t>(table.arena_size), 0.0f);
    for (const Parameter& p : table.parameters) {
      for (std::int64_t i = 0; i < p.saved_rows * p.cols; ++i) {
        // Every kind of bits: NaN with a payload, infinities, negative zero, subnormals.
        const std::uint32_t bits = static_cast<std::uint32_t>(p.offset + i) * 2654435761u;
        masters[static_cast<std::size_t>(p.offset + i)] = std::bit_cast<float>(bits);
      }
    }
    // A tied head is not stored, so the comparison of both heads does not run into the NaNs.
    const TempDir dir;
    write_model(dir.path, table, s, {.dropout = 0.25, .init_std = 0.03, .eot = 100}, masters.data());
    std::vector<float> back(masters.size(), 77.0f);
    read_weights(dir.path, table, back.data());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < back.size(); ++i)
      wrong += std::bit_cast<std::uint32_t>(back[i]) == std::bit_cast<std::uint32_t>(masters[i]) ? 0 : 1;
    CHECK(wrong == 0);

    const SafetensorsFile file(dir.path / "model.safetensors");
    CHECK(fs::file_size(file.path()) == model_file_size(table));
    CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"format_version", "1"}});
    std::vector<HfTensor> expected = hf_tensors(s);
    if (!tied) expected.push_back({"lm_head.weight", {101, 48}});
    CHECK(file.tensors().size() == expected.size());
    for (const HfTensor& t : expected) {
      const SavedTensor* found =
          file.find((tied || t.name == "lm_head.weight" ? "" : "transformer.") + t.name);
      INFO(t.name);
      REQUIRE(found != nullptr);
      CHECK(found->shape == t.shape);
      CHECK(found->dtype == "F32");
    }

    ModelDetails details;
    const ModelShape again = read_huggingface_config(dir.path, &details);
    CHECK(again.tied == tied);
    CHECK(again.layers == 2);
    CHECK(again.channels == 48);
    CHECK(again.heads == 3);
    CHECK(again.kv_heads == 3);
    CHECK(again.context == 37);
    CHECK(again.vocab == 101);
    CHECK(again.padded_vocab == 128);
    CHECK(again.norm_eps == s.norm_eps);
    CHECK(details.dropout == 0.25);
    CHECK(details.init_std == 0.03);
    CHECK(details.eot == 100);
  }
}

TEST_CASE("a disk that is full while a model is written leaves nothing") {
  const ModelShape s = small_shape(true);
  const ParameterTable table = make_parameter_table(s);
  const std::vector<float> masters(static_cast<std::size_t>(table.arena_size), 1.0f);
  const TempDir dir;
  {
    const FileSizeLimit limit(100000);
    CHECK_THROWS_AS(write_model(dir.path, table, s, {}, masters.data()), RunError);
  }
  CHECK(fs::is_empty(dir.path));
}

TEST_CASE("config.json: what transformers writes and omits") {
  // The file of openai-community/gpt2 in its keys, at its size.
  const Json gpt2 = Json::parse(R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_use_proj": true,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})");
  ModelDetails details;
  const ModelShape shape = parse_huggingface_config(gpt2, "config.json", &details);
  CHECK(shape.tied);
  CHECK(shape.padded_vocab == 50304);
  CHECK(make_parameter_table(shape).count() == 124439808);
  CHECK(details.dropout == 0.1);
  CHECK(details.eot == 50256);

  Json minimal = {{"model_type", "gpt2"}, {"n_embd", 48}, {"n_layer", 1},
                  {"n_head", 3},          {"n_ctx", 8},   {"vocab_size", 11}};
  CHECK(parse_huggingface_config(minimal, "config.json", &details).context == 8);
  CHECK(details.eot == -1);
  minimal["eos_token_id"] = 11;  // beyond the vocabulary, as in files that were cut down by hand
  parse_huggingface_config(minimal, "config.json", &details);
  CHECK(details.eot == -1);
  CHECK(huggingface_config(small_shape(true), {})["eos_token_id"].is_null());
}

TEST_CASE("config.json: what Octavo does not compute is refused by its key") {
  struct Case {
    const char* key;
    Json value;
    const char* message;
  };
  const std::vector<Case> cases{
      {"model_type", "llama", "model_type in x/config.json: found \"llama\"; allowed: \"gpt2\""},
      {"activation_function", "relu",
       "activation_function in x/config.json: found \"relu\"; allowed: \"gelu_new\" or"},
      {"activation_function", "gelu", "found \"gelu\""},
      {"n_inner", 100, "n_inner in x/config.json: found 100; allowed: null or 4 n_embd = 192"},
      {"n_inner", "192", "n_inner in x/config.json: found \"192\""},
      {"scale_attn_by_inverse_layer_idx", true,
       "scale_attn_by_inverse_layer_idx in x/config.json: found true; allowed: false"},
      {"scale_attn_weights", false, "scale_attn_weights in x/config.json: found false; allowed: true"},
      {"reorder_and_upcast_attn", true, "reorder_and_upcast_attn in x/config.json: found true"},
      {"add_cross_attention", true, "add_cross_attention in x/config.json: found true"},
      {"pruned_heads", {{"0", {1}}}, "pruned_heads in x/config.json: found {\"0\":[1]}"},
      {"quantization_config", {{"bits", 4}}, "quantization_config in x/config.json"},
      {"n_embd", 0, "n_embd in x/config.json: found 0; allowed: an integer from 1"},
      {"n_layer", -1, "n_layer in x/config.json: found -1"},
      {"n_head", 2.5, "n_head in x/config.json: found 2.5"},
      {"n_head", 5,
       "n_head in x/config.json: found 5, which does not divide n_embd = 48; allowed: a divisor"},
      {"n_head", 4, "n_head in x/config.json: found 4, so a head of 48 / 4 = 12; allowed: heads whose size"},
      {"n_layer", 1025, "n_layer in x/config.json: found 1025; allowed: an integer from 1 to 1024"},
      {"n_layer", 4294967297, "n_layer in x/config.json: found 4294967297"},
      {"n_embd", 1048584, "n_embd in x/config.json: found 1048584; allowed: an integer from 1 to 1048576"},
      {"n_embd", "48", "n_embd in x/config.json: found \"48\""},
      {"n_positions", 1048577, "n_positions in x/config.json: found 1048577"},
      {"vocab_size", 16777217,
       "vocab_size in x/config.json: found 16777217; allowed: an integer from 1 to 16777216"},
      {"vocab_size", -11, "vocab_size in x/config.json: found -11"},
      {"n_positions", 1e30, "n_positions in x/config.json: found 1e+30"},
      {"vocab_size", 18446744073709551615u, "vocab_size in x/config.json: found 18446744073709551615"},
      {"vocab_size", nullptr, "vocab_size in x/config.json: found nothing"},
      {"layer_norm_epsilon", 0, "layer_norm_epsilon in x/config.json: found 0; allowed: a number over 0"},
      {"layer_norm_epsilon", "1e-5", "layer_norm_epsilon in x/config.json: found \"1e-5\""},
      {"tie_word_embeddings", "yes",
       "tie_word_embeddings in x/config.json: found \"yes\"; allowed: true or false"},
  };
  for (const Case& c : cases) {
    Json config = good_config();
    config[c.key] = c.value;
    CHECK_THROWS_WITH(parse_huggingface_config(config, "x/config.json"), ContainsSubstring(c.message));
    CHECK_THROWS_AS(parse_huggingface_config(config, "x/config.json"), RequestError);
  }
  Json config = good_config();
  config["n_inner"] = nullptr;
  config["activation_function"] = "gelu_pytorch_tanh";
  config["pruned_heads"] = Json::object();
  CHECK(parse_huggingface_config(config, "x/config.json").channels == 48);
  for (const char* key : {"model_type", "n_embd", "n_layer", "n_head", "vocab_size"}) {
    config = good_config();
    config.erase(key);
    CHECK_THROWS_WITH(parse_huggingface_config(config, "x"),
                      ContainsSubstring(std::string(key) + " in x: found nothing"));
  }

  const TempDir dir;
  CHECK_THROWS_AS(read_huggingface_config(dir.path), RequestError);
  for (const std::string& text :
       {std::string("{"), std::string("[]"), std::string("\"gpt2\""), std::string(200000, '[')}) {
    dir.file("config.json", text);
    CHECK_THROWS_AS(read_huggingface_config(dir.path), RequestError);
  }
  dir.file("config.json",
           R"({"model_type":"gpt2","n_embd":)" + std::string(200000, '[') + std::string(200000, ']') + "}");
  CHECK_THROWS_WITH(read_huggingface_config(dir.path), ContainsSubstring("found a deeply nested array"));
}
