// The loss on fixed windows, against the same loss from logits, token by token.
#include "evaluate.h"

#include <algorithm>
#include <cmath>

#include "backends.h"
#include "catch.h"
#include "error.h"
#include "tiny_model.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

/// Mean loss of the first `count` predictions, from the logits behind every prefix of every window.
double loss_from_logits(Model& model, const std::vector<std::int32_t>& ids, std::size_t count) {
  double sum = 0;
  std::vector<float> logits;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t window = i / kTinyContext * kTinyContext, length = i - window + 1;
    model.extend(ids.data() + window, 0, static_cast<std::int64_t>(length), logits);
    double total = 0;
    for (float z : logits) total += std::exp(static_cast<double>(z));
    sum += std::log(total) - static_cast<double>(logits[static_cast<std::size_t>(ids[i + 1])]);
  }
  return sum / static_cast<double>(count);
}

}  // namespace

TEST_CASE("evaluation is the mean loss over the first predictions, each made once") {
  Backend& backend = *GENERATE(from_range(backends()));
  const std::vector<std::int32_t> ids = tiny_ids(60);  // 59 predictions: three windows and a part of one
  const TokenStream stream = TokenStream::of(ids);
  const auto generator = tiny_model(backend, 1);
  for (const std::int64_t B : {1, 2, 5}) {
    const auto model = tiny_model(backend, B);
    CHECK(evaluate(*model, stream, -1) == Approx(loss_from_logits(*generator, ids, 59)).epsilon(1e-5));
    CHECK(evaluate(*model, stream, 1000) == evaluate(*model, stream, -1));
    CHECK(evaluate(*model, stream, 20) == Approx(loss_from_logits(*generator, ids, 20)).epsilon(1e-5));
    CHECK(evaluate(*model, stream, 1) == Approx(loss_from_logits(*generator, ids, 1)).epsilon(1e-5));
  }
}

TEST_CASE("evaluation gives the same bits each time, and refuses a stream with nothing to predict") {
  Backend& backend = *GENERATE(from_range(backends()));
  const auto model = tiny_model(backend, 2);
  const TokenStream stream = TokenStream::of(tiny_ids(100));
  const double first = evaluate(*model, stream, 50);
  evaluate(*model, stream.slice(10, 80), -1);
  CHECK(evaluate(*model, stream, 50) == first);
  CHECK_THROWS_AS(evaluate(*model, stream.slice(0, 1), -1), RequestError);
}
