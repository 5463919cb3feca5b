// fp8_monitor.h - the health of an FP8 run: extremes for metrics.jsonl, a warning when a tensor saturates or
// its scale is stuck, and, with precision.fp8.log_tensors, every tensor of every logged step in
// fp8_tensors.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "metrics.h"
#include "model.h"

namespace octavo {

class Fp8Monitor {
 public:
  /// `tokens`: of one step. With a `file` (the folder's fp8_tensors.jsonl) that holds rows of a former
  /// session, those up to step `keep_through_step` stay. Throws RunError where it cannot be written.
  Fp8Monitor(const Fp8Slots& slots, const ModelShape& shape, std::int64_t tokens,
             const std::optional<std::filesystem::path>& file, std::int64_t keep_through_step);

  /// The step's row for metrics.jsonl; empty where the model has no FP8 tensor.
  std::optional<Fp8Record> record(const std::vector<Fp8SlotHealth>& health) const;
  /// What deserves a warning in this step, each kind once a run: more than 1 % of a tensor's values saturate,
  /// or a scale stays where it is because of inf or NaN.
  std::vector<std::string> warnings(const std::vector<Fp8SlotHealth>& health);
  /// Appends the step's tensors to the file, if there is one. Throws RunError.
  void append(std::int64_t step, const std::vector<Fp8SlotHealth>& health);

 private:
  double share(std::int64_t count, std::size_t slot) const;

  std::vector<Fp8SlotInfo> infos_;
  std::vector<double> elements_;  // cast in a step, of each slot
  std::optional<std::filesystem::path> file_;
  bool warned_saturated_ = false, warned_frozen_ = false;
};

}  // namespace octavo
