// generator.h - text from a trained model, one token after the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model.h"
#include "sampling.h"

namespace octavo {

/// Feeds a prompt and draws tokens. Keys and values of earlier positions are kept, so a token costs one row
/// of the network. When the context is full, the older half of it is dropped and the rest is read again.
class Generator {
 public:
  /// `model` must have been planned with training = false, B = 1 and T = the context to use.
  Generator(Model& model, const SamplingOptions& options) : model_(model), options_(options) {}

  /// Appends tokens (the prompt; at least one before the first next()). Throws RequestError for an id outside
  /// the vocabulary.
  void feed(std::span<const std::int32_t> ids);
  /// Draws the next token and appends it.
  std::int32_t next();

 private:
  Model& model_;
  SamplingOptions options_;
  std::vector<std::int32_t> window_;  // tokens in the context
  std::int64_t seen_ = 0;             // of those, how many the model has read
  std::uint64_t drawn_ = 0;
  std::vector<float> logits_;
};

}  // namespace octavo
