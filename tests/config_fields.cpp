// Tests of src/config_fields.cpp: the defaults against the documented listing, and that the check of a value,
// the schema and the table say the same.
#include "config_fields.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "catch.h"
#include "files.h"

using namespace octavo;
using Json = nlohmann::ordered_json;

namespace {

// As documented for users, written out here on its own.
constexpr const char* kDocumented = R"({
  "name": null,
  "device": "auto", "threads": 0,
  "model": { "init_from": null, "arch": "gpt2", "layers": 12, "channels": 768, "heads": 12, "context": 1024,
             "vocab": "auto", "tied": true, "dropout": 0.0, "norm_eps": 1e-5, "init_std": 0.02 },
  "precision": { "mode": "bf16", "fallback": "error",
                 "fp8": { "recipe": "delayed", "format": "hybrid", "amax_history_len": 1024,
                          "amax_compute_algo": "max", "margin": 0, "calibrate": true, "skip_first_layers": 0,
                          "skip_last_layers": 0,
                          "fast_accum": { "fprop": true, "dgrad": false, "wgrad": false },
                          "log_tensors": false } },
  "data": { "train": "REQUIRED", "val": null, "val_fraction": 0.0, "tokenizer": "auto", "format": "auto",
            "seed": null },
  "train": { "steps": null, "tokens": null, "epochs": null, "micro_batch": "auto", "sequence": null,
             "tokens_per_step": null, "accumulate": null, "eval_every": 250, "eval_tokens": 1048576,
             "checkpoint_every": 1000, "keep_checkpoints": 2, "keep_best": false, "log_every": 1,
             "max_minutes": null, "recompute": "none", "seed": 1, "deterministic": true, "graph": true,
             "max_bad_steps": 5 },
  "optimizer": { "lr": 6e-4, "min_lr": null, "schedule": "cosine", "warmup_steps": null, "decay_steps": null,
                 "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0 },
  "parallel": { "zero": 1, "transport": "auto", "reduce": "fp32", "timeout_s": 600 },
  "output": { "dir": "runs/{name}", "peak_tflops": null } })";

/// Whether a value meets a schema of the keywords that config_schema() uses.
bool meets(const Json& schema, const Json& value) {
  static const std::set<std::string> kKnown{
      "type",      "enum",    "const",   "anyOf",   "items",       "minItems",         "maxItems",
      "minLength", "minimum", "maximum", "default", "description", "exclusiveMinimum", "exclusiveMaximum"};
  for (const auto& [keyword, unused] : schema.items()) {
    INFO(keyword);
    REQUIRE(kKnown.contains(keyword));
  }
  const auto has = [&](const char* keyword) { return schema.contains(keyword); };
  if (has("anyOf")) {
    bool any = false;
    for (const Json& one : schema["anyOf"]) any = any || meets(one, value);
    if (!any) return false;
  }
  if (has("enum") && std::count(schema["enum"].begin(), schema["enum"].end(), value) == 0) return false;
  // As doubles: nlohmann finds -1 equal to 2^64 - 1.
  if (has("const") && (value.is_number() ? !schema["const"].is_number() ||
                                               schema["const"].get<double>() != value.get<double>()
                                         : schema["const"] != value))
    return false;
  if (has("type")) {
    const std::string type = schema["type"];
    const bool integral = value.is_number() && std::floor(value.get<double>()) == value.get<double>();
    const bool fits = (type == "boolean" && value.is_boolean()) || (type == "string" && value.is_string()) ||
                      (type == "null" && value.is_null()) || (type == "array" && value.is_array()) ||
                      (type == "number" && value.is_number()) || (type == "integer" && integral);
    if (!fits) return false;
  }
  if (value.is_number()) {
    const double x = value.get<double>();
    if (has("minimum") && x < schema["minimum"].get<double>()) return false;
    if (has("maximum") && x > schema["maximum"].get<double>()) return false;
    if (has("exclusiveMinimum") && x <= schema["exclusiveMinimum"].get<double>()) return false;
    if (has("exclusiveMaximum") && x >= schema["exclusiveMaximum"].get<double>()) return false;
  }
  if (value.is_string() && has("minLength") && value.get<std::string>().size() < schema["minLength"])
    return false;
  if (value.is_array()) {
    if (has("minItems") && value.size() < schema["minItems"]) return false;
    if (has("maxItems") && value.size() > schema["maxItems"]) return false;
    if (has("items"))
      for (const Json& item : value)
        if (!meets(schema["items"], item)) return false;
  }
  return true;
}

Json property_of(const Json& schema, const std::string& path) {
  Json node = schema;
  std::string rest = path;
  for (std::size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
    node = Json(node["properties"][rest.substr(0, dot)]);
    REQUIRE(node["type"] == "object");
    REQUIRE(node["additionalProperties"] == false);
    rest = rest.substr(dot + 1);
  }
  REQUIRE(node["properties"].contains(rest));
  return node["properties"][rest];
}

}  // namespace

TEST_CASE("config fields: the defaults are the documented ones, in their order", "[config_fields]") {
  Json documented = Json::parse(kDocumented);
  documented["name"] = "gpt";
  documented["data"]["train"] = "x.txt";
  documented["output"]["dir"] = "runs/gpt";
  const Config config = parse_config(R"({"data": {"train": "x.txt"}})", "configs/gpt.json");
  REQUIRE(dump_config(config).dump(1) == documented.dump(1));
}

TEST_CASE("config fields: every field has a good default, help, and a place in schema and table",
          "[config_fields]") {
  const Json schema = config_schema();
  const std::string table = explain_config();
  std::set<std::string> paths;
  for (const Field& field : config_fields()) {
    INFO(field.path);
    CHECK(paths.insert(field.path).second);
    CHECK(find_field(field.path) == &field);
    CHECK(field.path.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.") == std::string::npos);
    CHECK((field.help.size() > 3 && field.help.size() <= 100 && field.help.find('\n') == std::string::npos));
    const Json property = property_of(schema, field.path);
    CHECK(property["description"] == field.help);
    CHECK(property.contains("default") == (field.path != "data.train"));
    if (field.default_value) {
      CHECK(field.accepted.normalise(*field.default_value) == field.default_value);
      CHECK(property["default"] == *field.default_value);
      CHECK(meets(property, *field.default_value));
    }
    const std::size_t row = table.find("\n" + field.path + " ");
    REQUIRE(row != std::string::npos);
    const std::string line = table.substr(row + 1, table.find('\n', row + 1) - row - 1);
    CHECK_THAT(line, ContainsSubstring(field.accepted.words_for_message()));
    CHECK_THAT(line, ContainsSubstring(field.default_value ? field.default_value->dump() : "(required)"));
    CHECK(table.compare(row + 1 + line.size() + 1, field.help.size() + 4, "    " + field.help) == 0);
  }
  CHECK(schema["required"] == Json::array({"data"}));
  CHECK(schema["properties"]["data"]["required"] == Json::array({"train"}));
  CHECK(schema["$schema"] == "https://json-schema.org/draft/2020-12/schema");
}

TEST_CASE("config fields: the check of a value and the schema agree", "[config_fields]") {
  const Json schema = config_schema();
  std::vector<Json> samples{nullptr,
                            true,
                            "auto",
                            "",
                            "x",
                            Json::array(),
                            Json::array({"x"}),
                            Json::object(),
                            Json::array({"x", ""}),
                            Json::array({"x", 1}),
                            Json::array({0.5, 0.25}),
                            Json::array({0.5, 1.0}),
                            Json::array({0.5}),
                            Json::array({0, 0, 0}),
                            std::int64_t{-9223372036854775807},
                            std::uint64_t{18446744073709551615u},
                            1e300};
  for (const double x : {-2.0, -1.0, -0.5, 0.0, 1e-40, 0.5, 1.0, 2.0, 3.0, 64.0, 4096.0, 4097.0, 1e9, 1e12}) {
    samples.push_back(x);
    if (x == std::floor(x)) samples.push_back(static_cast<std::int64_t>(x));
  }
  for (const Field& field : config_fields()) {
    const Json property = property_of(schema, field.path);
    for (const std::string& word : field.accepted.words) samples.push_back(word);
    // The bounds themselves and what lies next to them.
    const bool integer = field.accepted.kind == Accepted::Kind::integer;
    for (const double bound : {field.accepted.low, field.accepted.high})
      if (std::isfinite(bound))
        for (const double x : {integer ? bound - 1 : std::nextafter(bound, -1e300), bound,
                               integer ? bound + 1 : std::nextafter(bound, 1e300)})
          samples.push_back(x);
    for (const Json& sample : samples) {
      INFO(field.path << " = " << sample.dump());
      CHECK(field.accepted.normalise(sample).has_value() == meets(property, sample));
    }
  }
}

TEST_CASE("config fields: ranges end where they say", "[config_fields]") {
  const auto accepts = [](const char* path, const Json& value) {
    return find_field(path)->accepted.normalise(value).has_value();
  };
  CHECK(accepts("model.layers", 1));
  CHECK_FALSE(accepts("model.layers", 0));
  CHECK_FALSE(accepts("model.layers", 1.5));
  CHECK(accepts("data.val_fraction", 0));
  CHECK_FALSE(accepts("data.val_fraction", 1));
  CHECK_FALSE(accepts("optimizer.lr", 0));
  CHECK(accepts("optimizer.lr", 1e-9));
  CHECK(accepts("train.eval_tokens", -1));
  CHECK_FALSE(accepts("train.eval_tokens", 0));
  CHECK_FALSE(accepts("train.eval_tokens", -2));
  CHECK(accepts("train.micro_batch", "auto"));
  CHECK_FALSE(accepts("train.micro_batch", 0));  // "auto" is written so
  CHECK_FALSE(accepts("train.micro_batch", nullptr));
  CHECK_FALSE(accepts("threads", "auto"));
  CHECK(accepts("optimizer.betas", Json::array({0, 0.999})));
  CHECK_FALSE(accepts("optimizer.betas", Json::array({0.9, 1})));
  CHECK(find_field("train.steps")->accepted.normalise(1e3) == Json(1000));
  CHECK(find_field("train.steps")->accepted.normalise(1e3)->is_number_integer());
  CHECK(find_field("optimizer.clip")->accepted.normalise(1)->is_number_float());
}

TEST_CASE("config fields: sections and paths", "[config_fields]") {
  CHECK(keys_of_section("") == std::vector<std::string>{"name", "device", "threads", "model", "precision",
                                                        "data", "train", "optimizer", "parallel", "output"});
  CHECK(keys_of_section("precision") == std::vector<std::string>{"mode", "fallback", "fp8"});
  CHECK(keys_of_section("precision.fp8.fast_accum") == std::vector<std::string>{"fprop", "dgrad", "wgrad"});
  CHECK(keys_of_section("prec").empty());
  CHECK(find_field("train") == nullptr);
  CHECK(find_field("train.seeds") == nullptr);
  CHECK(split_path("a.b.c").section == "a.b");
  CHECK(split_path("a.b.c").key == "c");
  CHECK(split_path("name").section.empty());
}
