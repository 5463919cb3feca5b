// diff.h - where two runs part: config, paths chosen, and the first step and quantity that differ.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "metrics.h"

namespace octavo {

/// The first difference of two logs.
struct Parting {
  std::int64_t step = 0;
  std::string quantity;  // "loss", "val_loss", "grad_norm", "lr", "updates", "tokens"
  double left = 0, right = 0;
  double relative = 0;  // |left - right| / max(|left|, |right|); NaN where either is not finite
};

/// Compares the rows of steps that both logs have, in order; within a row lr, tokens, loss, grad_norm,
/// updates, val_loss (the order in which a step comes by them). Bits are compared, NaN equal to NaN. val_loss
/// only where both have one. Empty: equal.
std::optional<Parting> first_parting(const std::vector<StepRecord>& left,
                                     const std::vector<StepRecord>& right);

/// The whole report of `octavo diff`, lines of text. Throws RequestError where either folder is no run.
std::string diff_runs(const std::filesystem::path& left, const std::filesystem::path& right);

}  // namespace octavo
