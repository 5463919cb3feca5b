// rng.h - counter-based random numbers: Philox4x32-10 and what is keyed from it.
//
// Everything random in Octavo is a function of (seed, what for, index), never of a stream's position: the
// same run gives the same numbers at any thread count, rank count, after a resume, and in a recomputed
// forward pass. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <cstdint>

#include "tensor.h"

namespace octavo {

struct PhiloxKey {
  std::uint32_t k0, k1;
};
struct Philox4 {
  std::uint32_t v[4];
};

/// Ten rounds of Philox4x32 over counter (c0, c1, c2, c3).
OCTAVO_HOST_DEVICE inline Philox4 philox(PhiloxKey key, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                                         std::uint32_t c3) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(0xD2511F53u) * c0;
    const std::uint64_t p1 = static_cast<std::uint64_t>(0xCD9E8D57u) * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ key.k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ key.k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// SplitMix64's finaliser: a bijection of 64-bit integers that spreads every bit (Steele, Lea, Flood 2014).
OCTAVO_HOST_DEVICE inline std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// Key of one use of randomness: `purpose` and `index` separate initialisation, dropout places, orders.
OCTAVO_HOST_DEVICE inline PhiloxKey philox_key(std::uint64_t seed, std::uint32_t purpose,
                                               std::uint64_t index = 0) {
  const std::uint64_t h = mix64(mix64(seed + 0x9E3779B97F4A7C15ull) ^
                                mix64((static_cast<std::uint64_t>(purpose) << 40) + index + 1));
  return {static_cast<std::uint32_t>(h), static_cast<std::uint32_t>(h >> 32)};
}

enum RandomPurpose : std::uint32_t {
  kRandomInit = 1,     // index = parameter
  kRandomDropout = 2,  // index = layer, place, head
  kRandomOrder = 3,    // index = epoch (order of windows)
  kRandomOffset = 4,   // index = epoch (shift of the windows)
  kRandomSample = 5,   // generation
  kRandomSynth = 6,    // synthetic corpora
};

/// Key of one dropout mask. `place` is a DropPlace; `head` is the query head in attention, else 0.
OCTAVO_HOST_DEVICE inline PhiloxKey dropout_key(std::uint64_t seed, std::uint32_t layer, std::uint32_t place,
                                                std::uint32_t head) {
  return philox_key(seed, kRandomDropout,
                    (static_cast<std::uint64_t>(layer) << 20) | (place << 16) | head);  // head < 2^16
}
/// An element is dropped where its byte is below this: round(256 p).
OCTAVO_HOST_DEVICE inline std::uint32_t dropout_threshold(float p) {
  return static_cast<std::uint32_t>(256.0f * p + 0.5f);
}
/// What kept elements are multiplied by.
OCTAVO_HOST_DEVICE inline float dropout_scale(std::uint32_t threshold) {
  return 256.0f / static_cast<float>(256u - threshold);
}

/// Uniform in [0, 1) with 53 bits.
OCTAVO_HOST_DEVICE inline double uniform53(std::uint32_t hi, std::uint32_t lo) {
  return static_cast<double>((static_cast<std::uint64_t>(hi) << 21) ^ (lo >> 11)) * 0x1p-53;
}

}  // namespace octavo
