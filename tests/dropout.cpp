// Dropout: Philox by its published vectors, the mask by its definition, its frequencies, its independence.
#include "cpu/dropout.h"

#include <cmath>
#include <set>

#include "backend.h"
#include "backends.h"
#include "catch.h"
#include "masks.h"
#include "oracle_ops.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

struct Draw {
  template <int W>
  static OCTAVO_INLINE void run(const cpu::DropoutMask* mask, std::uint32_t sample, std::int64_t row,
                                std::int64_t first, std::int64_t columns, std::uint8_t* bytes) {
    cpu::draw_mask<W>(*mask, sample, row, first, columns, bytes);
  }
};

struct Drop {
  template <int W>
  static OCTAVO_INLINE void run(const float* x, const std::uint8_t* bytes, std::uint32_t threshold,
                                float scale, float* y) {
    cpu::store(y, cpu::drop(cpu::load<W>(x), bytes, threshold, scale));
  }
};

template <typename F>
void with_each_instruction_set(F f) {
  const cpu::InstructionSet best = cpu::native_instruction_set();
  for (const auto set :
       {cpu::InstructionSet::baseline, cpu::InstructionSet::avx2, cpu::InstructionSet::avx512}) {
    if (set > best) continue;
    cpu::limit_instruction_set(set);
    f();
  }
  cpu::limit_instruction_set(best);
}

/// The mask of one row of 4096 columns, through an operator: 1 where kept.
std::vector<int> kept(Backend& b, double p, std::uint64_t seed, std::uint32_t layer, DropPlace place,
                      std::int64_t sample, std::int64_t step) {
  const std::int64_t C = 4096;
  DeviceArray<std::int32_t> token(b, {0}, {1, 1});
  DeviceArray<float> table(b, std::vector<float>(static_cast<std::size_t>(C), 1.0f), {1, C});
  DeviceArray<float> positions(b, std::vector<float>(static_cast<std::size_t>(C), 0.0f), {1, C}),
      x(b, {1, C});
  const DeviceMask mask(
      b,
      {.p = p, .seed = seed, .layer = layer, .place = place, .samples = {sample}, .step = step, .head = 0});
  b.run(EmbeddingForward{.tokens = token.tensor,
                         .wte = table.tensor,
                         .wpe = positions.tensor,
                         .x = x.tensor,
                         .dropout = mask.dropout});
  std::vector<int> k;
  for (const float v : x.read()) {
    const double scale = 256 / (256 - std::round(256 * p));
    if (v != 0 && v != Approx(scale).epsilon(1e-6)) FAIL(v << " is neither 0 nor " << scale);
    k.push_back(v != 0 ? 1 : 0);
  }
  return k;
}

}  // namespace

TEST_CASE("Philox4x32-10 gives the published vectors") {
  // Random123's kat_vectors (Salmon et al.)
  const auto check = [](PhiloxKey key, std::array<std::uint32_t, 4> c,
                        std::array<std::uint32_t, 4> expected) {
    const Philox4 r = philox(key, c[0], c[1], c[2], c[3]);
    for (std::size_t i = 0; i < 4; ++i) CHECK(r.v[i] == expected[i]);
  };
  check({0, 0}, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  check({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
        {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  check({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
        {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("the vectorised mask is the mask of the contract, byte by byte, on every instruction set") {
  StepState state{.step = (std::int64_t{5} << 32) + 9};
  std::int64_t samples[] = {3};
  Dropout d{.p = 0.25f, .seed = 0x123456789abcdef, .layer = 11, .place = DropPlace::attention};
  d.samples = Tensor(samples, DType::i64, {1});
  d.state = &state;
  with_each_instruction_set([&] {
    for (const std::uint32_t head : {0u, 5u})
      for (const std::int64_t columns : {1, 16, 255, 256, 300, 1024})
        for (const std::int64_t first : {0, 16, 4096}) {
          const cpu::DropoutMask mask(d, head);
          std::vector<std::uint8_t> bytes(static_cast<std::size_t>(cpu::mask_bytes(columns)) + 64, 0xee);
          cpu::dispatch<Draw>(&mask, 0xfffffff0u, std::int64_t{77}, first, columns, bytes.data());
          const PhiloxKey key = dropout_key(d.seed, 11, 1, head);
          for (std::int64_t c = 0; c < columns; ++c) {
            const std::int64_t column = first + c;
            const Philox4 r = philox(key, static_cast<std::uint32_t>(column / 16), 77, 0xfffffff0u, 9);
            if (bytes[static_cast<std::size_t>(c)] != ((r.v[column % 16 / 4] >> (8 * (column % 4))) & 0xff))
              FAIL("column " << column << " head " << head);
          }
          for (std::size_t i = bytes.size() - 64; i < bytes.size(); ++i) REQUIRE(bytes[i] == 0xee);
        }
  });
}

TEST_CASE("an element is dropped exactly where its byte is below the threshold") {
  with_each_instruction_set([] {
    for (const std::uint32_t threshold : {1u, 26u, 128u, 255u})
      for (int base = 0; base < 256; base += 16) {
        float x[16], y[16];
        std::uint8_t bytes[16];
        for (int i = 0; i < 16; ++i) x[i] = -1.5f, bytes[i] = static_cast<std::uint8_t>(base + i);
        cpu::dispatch<Drop>(static_cast<const float*>(x), static_cast<const std::uint8_t*>(bytes), threshold,
                            2.0f, static_cast<float*>(y));
        for (int i = 0; i < 16; ++i)
          if (y[i] != (static_cast<std::uint32_t>(base + i) >= threshold ? -3.0f : 0.0f))
            FAIL("byte " << base + i << " threshold " << threshold << ": " << y[i]);
      }
  });
}

TEST_CASE("threshold and scale are those of p in steps of 1/256") {
  CHECK(dropout_threshold(0.1f) == 26);
  CHECK(dropout_threshold(0.5f) == 128);
  CHECK(dropout_threshold(0.001f) == 0);
  CHECK(dropout_scale(128) == 2.0f);
  CHECK(dropout_scale(26) == 256.0f / 230.0f);
  CHECK(dropout_scale(0) == 1.0f);
}

TEST_CASE("the share of dropped elements is the threshold's") {
  for (Backend* b : backends())
    for (const double p : {0.1, 0.5, 0.9}) {
      int dropped = 0;
      const int rows = 16, columns = 4096;
      for (int i = 0; i < rows; ++i)
        for (const int k : kept(*b, p, 7, 0, DropPlace::embedding, i, 1)) dropped += 1 - k;
      const double exact = std::round(256 * p) / 256, n = rows * columns;
      CHECK(std::abs(dropped - n * exact) < 5 * std::sqrt(n * exact * (1 - exact)));
    }
}

TEST_CASE("a p that rounds to nothing drops nothing") {
  for (Backend* b : backends())
    for (const int k : kept(*b, 0.0015, 7, 0, DropPlace::embedding, 0, 1)) REQUIRE(k == 1);
}

TEST_CASE("seed, layer, place, sample and step each give another mask, the same ones the same mask") {
  for (Backend* b : backends()) {
    std::set<std::vector<int>> masks;
    const auto add = [&](std::uint64_t seed, std::uint32_t layer, DropPlace place, std::int64_t sample,
                         std::int64_t step) {
      masks.insert(kept(*b, 0.5, seed, layer, place, sample, step));
    };
    add(1, 0, DropPlace::embedding, 0, 1);
    add(1, 0, DropPlace::embedding, 0, 1);
    CHECK(masks.size() == 1);
    add(2, 0, DropPlace::embedding, 0, 1);
    add(1, 1, DropPlace::embedding, 0, 1);
    add(1, 2, DropPlace::embedding, 0, 1);
    add(1, 0, DropPlace::attention_out, 0, 1);
    add(1, 0, DropPlace::mlp_out, 0, 1);
    add(1, 0, DropPlace::embedding, 1, 1);
    add(1, 0, DropPlace::embedding, 0, 2);
    CHECK(masks.size() == 8);
    // Unrelated masks agree in half of their elements.
    for (const auto& x : masks)
      for (const auto& y : masks) {
        if (x == y) continue;
        int same = 0;
        for (std::size_t i = 0; i < x.size(); ++i) same += x[i] == y[i];
        CHECK(std::abs(same - 2048) < 5 * 32);
      }
    add(1, 0, DropPlace::embedding, std::int64_t{1} << 32, 1);  // only the low 32 bits of the index count
    CHECK(masks.size() == 8);
  }
}
