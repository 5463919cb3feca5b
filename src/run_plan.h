// run_plan.h - from a config, the data and a device to the numbers of a run: how many steps, how a step is
// split, which precision really runs, how much memory that takes. Made once, before anything is allocated or
// written.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend.h"
#include "config.h"
#include "data/dataset.h"
#include "data/window_order.h"
#include "model.h"
#include "schedule.h"

namespace octavo {

struct RunPlan {
  Config config;                    // as run: every "auto" and default that depends on others decided
  std::vector<std::string> chosen;  // paths of the fields that were decided here
  std::string mode;  // precision that runs; another one than config.precision.mode after a fallback
  ModelPlan model;
  Schedule schedule;
  std::int64_t steps = 0;               // 0: not known, the data that decides it being absent
  std::int64_t sequences_per_step = 0;  // global
  std::int64_t accumulate = 0;          // micro-batches a step
  std::vector<PathRow> paths;
  std::vector<std::string> notes;  // fallbacks taken and other remarks, one line each

  std::int64_t tokens_per_step() const { return sequences_per_step * model.T; }
};

/// Precision that runs when a config's mode is asked of this backend, with the reason where it is another
/// one.
struct PrecisionChoice {
  std::string mode;  // what runs
  DType act = DType::f32;
  std::string reason;  // empty: as asked
};
/// Throws RequestError where the mode cannot run here and precision.fallback is "error"; the message gives
/// the config line that would work.
PrecisionChoice choose_precision(const PrecisionConfig& config, const Backend& backend);

/// Which products of a model run on FP8 codes on this backend, with `rows` tokens a micro-batch (0: not known
/// yet). Throws RequestError where the config skips every layer.
Fp8Plan plan_fp8(const Fp8Config& config, const ModelShape& shape, std::int64_t rows, const Backend& backend);

/// Vocabulary of a run: model.vocab, or the data's. Throws RequestError where the data has more.
std::int64_t choose_vocab(const Config& config, const Dataset& dataset);

/// The shape that a config describes; with `initial` (a model to start from) that model's.
ModelShape choose_shape(const Config& config, std::int64_t vocab, const std::optional<ModelShape>& initial);

/// A run that is gone on with (`former`, its config as run) keeps the micro-batch that "auto" chose as long
/// as a step holds what it held. Throws RequestError naming the key and the nearest values that work.
RunPlan make_run_plan(const Config& config, const Dataset& dataset, const Backend& backend,
                      const std::optional<ModelShape>& initial, const std::optional<Config>& former = {});

/// The backend a config asks for. Throws RequestError where this build or machine has none.
std::unique_ptr<Backend> make_backend(const Config& config);

/// The largest divisor of a step's sequences whose model fits into most of what is free; on a CPU, where
/// larger ones gain nothing, within a bound of tokens.
std::int64_t choose_micro_batch(const ModelPlan& model, std::int64_t sequences_per_step,
                                const Backend& backend);

}  // namespace octavo
