// Column sums against the oracle, over sizes around the blocks and chunks that they are cut into.
#include "backend.h"
#include "backends.h"
#include "catch.h"
#include "oracle_ops.h"
#include "parallel.h"
#include "tolerance.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

template <typename T>
std::vector<float> run(Backend& b, std::int64_t N, std::int64_t O, bool accumulate) {
  const std::vector<T> dy = random_values<T>(N * O, 1);
  DeviceArray<T> device_dy(b, dy, {N, O}, "dy");
  DeviceArray<float> db(b, random_values<float>(O, 2, 3), {O}, "db");
  b.run(BiasGradient{.dy = device_dy.tensor, .db = db.tensor, .accumulate = accumulate});
  CHECK(bits_of(device_dy.read()) == bits_of(dy));
  return db.read();
}

template <typename T>
void against_oracle(Backend& b, std::int64_t N, std::int64_t O) {
  INFO(b.name() << " N=" << N << " O=" << O);
  const std::vector<double> dy = widen(random_values<T>(N * O, 1)),
                            old = widen(random_values<float>(O, 2, 3));
  CHECK(mismatch(run<T>(b, N, O, false), oracle::column_sums(dy, N, O), {.terms = N}) == "");
  CHECK(mismatch(run<T>(b, N, O, true), oracle::column_sums(dy, N, O, old), {.terms = N}) == "");
}

}  // namespace

TEST_CASE("bias gradient agrees with the oracle") {
  for (Backend* b : backends())
    for (const std::int64_t N : {1, 3, 16, 17, 1023, 1025, 2100})
      for (const std::int64_t O : {1, 15, 16, 37, 144}) {
        against_oracle<float>(*b, N, O);
        against_oracle<bf16>(*b, N, O);
      }
  for (Backend* b : backends()) against_oracle<float>(*b, 5, 1500);
}

TEST_CASE("bias gradient has the same bits on any number of threads and any instruction set") {
  check_same_bits_everywhere([](Backend& b) {
    return bits_of(run<float>(b, 1999, 53, true)) + bits_of(run<bf16>(b, 1999, 53, false)) +
           bits_of(run<float>(b, 20, 1500, false));
  });
}

TEST_CASE("blocks cover every row once, and their number is bounded") {
  for (std::int64_t n = 1; n < 5000; n += 7) {
    const Blocks blocks = row_blocks(n);
    std::int64_t next = 0;
    for (std::int64_t i = 0; i < blocks.count(); ++i) {
      REQUIRE(blocks.begin(i) == next);
      REQUIRE(blocks.end(i) > next);
      next = blocks.end(i);
    }
    REQUIRE(next == n);
    REQUIRE(blocks.count() <= 64);
  }
}
