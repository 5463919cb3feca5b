// evaluate.h - the loss of a model on fixed windows of a token stream.
#pragma once

#include <cstdint>

#include "data/tokens.h"
#include "model.h"

namespace octavo {

/// Mean loss in nats per token over the first `eval_tokens` predictions of `stream` (-1: all), in windows of
/// the plan's T positions, B at once; summed in double in window order. Draws no random numbers and changes
/// nothing that training reads. Throws RequestError where the stream has fewer than 2 tokens.
double evaluate(Model& model, const TokenStream& stream, std::int64_t eval_tokens);

}  // namespace octavo
