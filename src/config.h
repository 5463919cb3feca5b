// config.h - the run's configuration as plain structs. The one list of fields (names, types, defaults,
// ranges, help) stands in config_fields.cpp; parsing, defaults, the range checks, --schema, --explain and the
// resolved dump all derive from it. How a file becomes a Config is in config.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace octavo {

/// Key of resolved.json that lists the fields which Octavo chose; no field of a config, and passed over in
/// one.
inline constexpr const char* kChosenKey = "chosen";

struct ModelConfig {
  std::optional<std::string> init_from;  // a run, checkpoint or Hugging Face folder
  std::string arch;                      // "gpt2"
  std::int64_t layers, channels, heads, context;
  std::int64_t vocab;  // 0: "auto", from the tokenizer
  bool tied;
  double dropout, norm_eps, init_std;
};

struct FastAccumConfig {
  bool fprop, dgrad, wgrad;
};
struct Fp8Config {
  std::string recipe;  // "delayed" | "current"
  std::string format;  // "hybrid" | "e4m3"
  std::int64_t amax_history_len;
  std::string amax_compute_algo;  // "max" | "most_recent"
  std::int64_t margin;
  bool calibrate;
  std::int64_t skip_first_layers, skip_last_layers;
  FastAccumConfig fast_accum;
  bool log_tensors;  // every tensor's scale, amax and counts in fp8_tensors.jsonl
};
struct PrecisionConfig {
  std::string mode;      // "fp32" | "tf32" | "bf16" | "fp8"
  std::string fallback;  // "error" | "allow"
  Fp8Config fp8;
};

struct DataConfig {
  std::vector<std::string> train;  // paths or globs, never empty
  std::vector<std::string> val;    // empty: none given
  double val_fraction;
  std::string tokenizer;             // "auto" | "bytes" | path of a tokenizer.json
  std::string format;                // "auto" | "shard" | "u16" | "u32" | "text"
  std::optional<std::int64_t> seed;  // null: train.seed
};

struct TrainConfig {
  std::optional<std::int64_t> steps, tokens;
  std::optional<double> epochs;
  std::int64_t micro_batch;  // 0: "auto"
  std::optional<std::int64_t> sequence, tokens_per_step, accumulate;
  std::int64_t eval_every, eval_tokens, checkpoint_every, keep_checkpoints;
  bool keep_best;
  std::int64_t log_every;
  std::optional<double> max_minutes;
  std::string recompute;  // "none" | "activation" | "block"
  std::int64_t seed;
  bool deterministic, graph;
  std::int64_t max_bad_steps;
};

struct OptimizerConfig {
  double lr;
  std::optional<double> min_lr;                           // null: lr / 10
  std::string schedule;                                   // "constant" | "linear" | "cosine" | "wsd"
  std::optional<std::int64_t> warmup_steps, decay_steps;  // null: 2 % of the steps; the rest (wsd: 20 %)
  std::array<double, 2> betas;
  double eps, weight_decay, clip;
};

struct ParallelConfig {
  std::int64_t zero;      // 0 | 1 | 2
  std::string transport;  // "auto" | "nccl" | "mpi"
  std::string reduce;     // "fp32" | "bf16"
  std::int64_t timeout_s;
};

struct OutputConfig {
  std::string dir;  // "{name}" is replaced
  std::optional<double> peak_tflops;
};

struct Config {
  std::string name;      // never empty after loading: the file's stem
  std::string device;    // "auto" | "cpu" | "cuda"
  std::int64_t threads;  // 0: the process's cores
  ModelConfig model;
  PrecisionConfig precision;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  ParallelConfig parallel;
  OutputConfig output;
};

/// One "section.key=value" from the command line or a sweep's "set". `value` is JSON, or else taken as a
/// string.
struct Override {
  std::string path;
  std::string value;
};

/// Splits "section.key=value". Throws RequestError where there is no '='.
Override parse_override(std::string_view text);

/// Reads a config file: JSON with // comments, duplicate keys refused, ${VAR} expanded, then the overrides,
/// then defaults, types, ranges and the checks across fields. All errors of a file are reported together, one
/// a line, each with its JSON path, the value found and what is allowed. Throws RequestError. `name` defaults
/// to the file's stem, and "{name}" in output.dir is replaced.
Config load_config(const std::string& file, const std::vector<Override>& overrides = {});

/// The same from text; `origin` names it in messages and gives the default name.
Config parse_config(std::string_view text, const std::string& origin,
                    const std::vector<Override>& overrides = {});

/// Every field with its value, in the order of the list, as JSON that load_config() reads back to the same
/// Config.
nlohmann::ordered_json dump_config(const Config& config);

/// Paths ("train.seed") whose values differ, with both values as JSON text.
struct ConfigDifference {
  std::string path, left, right;
};
std::vector<ConfigDifference> compare_configs(const Config& left, const Config& right);

/// JSON Schema (draft 2020-12) of a config file, for editors.
nlohmann::ordered_json config_schema();

/// The table of fields: path, type, default, allowed, help - for `octavo config --explain`.
std::string explain_config();

/// Reads JSON text with // comments, refusing duplicate keys; throws RequestError with line and column.
/// The one JSON reader for files that people write (configs, sweeps).
nlohmann::ordered_json parse_json_with_comments(std::string_view text, const std::string& origin);

/// The candidate nearest to `word` by edit distance, or empty when none is near enough to suggest.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace octavo
