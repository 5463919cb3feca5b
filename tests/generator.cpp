// Text from a model: what is kept between tokens changes none of them, also where the context is full.
#include "generator.h"

#include "backends.h"
#include "catch.h"
#include "error.h"
#include "tiny_model.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

std::vector<std::int32_t> draw(Generator& generator, int count) {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(generator.next());
  return ids;
}

constexpr SamplingOptions kGreedy{.temperature = 0};

}  // namespace

TEST_CASE("a prompt fed at once or in pieces, and the same seed, give the same text") {
  Backend& backend = *GENERATE(from_range(backends()));
  const auto model = tiny_model(backend, 1);
  const std::vector<std::int32_t> prompt{3, 1, 4, 1, 5};
  const auto text = [&](std::uint64_t seed, std::size_t cut) {
    Generator generator(*model, {.seed = seed});
    generator.feed(std::span(prompt).first(cut));
    generator.feed(std::span(prompt).subspan(cut));
    return draw(generator, 10);
  };
  CHECK(text(1, 0) == text(1, 0));
  CHECK(text(1, 2) == text(1, 0));
  CHECK(text(2, 0) != text(1, 0));
}

TEST_CASE("each token is the one that reading everything anew gives") {
  Backend& backend = *GENERATE(from_range(backends()));
  const auto model = tiny_model(backend, 1);
  std::vector<std::int32_t> seen{7, 8, 9};
  Generator generator(*model, kGreedy);
  generator.feed(seen);
  for (const std::int32_t id : draw(generator, kTinyContext - 2)) {  // up to a full context
    const auto fresh_model = tiny_model(backend, 1);
    Generator fresh(*fresh_model, kGreedy);
    fresh.feed(seen);
    CHECK(fresh.next() == id);
    seen.push_back(id);
  }
}

TEST_CASE("a full context goes on with its newer half") {
  Backend& backend = *GENERATE(from_range(backends()));
  const auto model = tiny_model(backend, 1);
  const std::vector<std::int32_t> prompt = tiny_ids(kTinyContext + 1);
  Generator full(*model, kGreedy), half(*model, kGreedy);
  full.feed(prompt);
  half.feed(std::span(prompt).last(kTinyContext / 2));
  const auto continued = draw(full, 5);
  CHECK(continued == draw(half, 5));
  for (const std::int32_t id : draw(full, 3 * kTinyContext)) CHECK((id >= 0 && id < kTinyVocab));
}

TEST_CASE("prompts of no token, or of a token that the model does not know, are refused") {
  Backend& backend = *GENERATE(from_range(backends()));
  const auto model = tiny_model(backend, 1);
  Generator generator(*model, {});
  CHECK_THROWS_WITH(generator.next(), ContainsSubstring("prompt: found no token; allowed: at least one"));
  for (const std::int32_t bad : {-1, 40}) {  // 40 lies in the padding of the vocabulary
    CHECK_THROWS_AS(generator.feed(std::vector{0, bad}), RequestError);
    CHECK_THROWS_WITH(generator.feed(std::vector{bad}), ContainsSubstring("allowed: 0 to 39"));
  }
}
