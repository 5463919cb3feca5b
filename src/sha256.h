// sha256.h - SHA-256 (FIPS 180-4): the identity of tokenizers, shards and datasets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace octavo {

/// Incremental SHA-256. update() any number of times, then hex() once.
class Sha256 {
 public:
  void update(const void* data, std::size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  /// Finishes and returns the digest as 64 lower-case hexadecimal digits. The object is spent afterwards.
  std::string hex();

 private:
  void block(const std::uint8_t* p);

  std::array<std::uint32_t, 8> state_{0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                      0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
  std::array<std::uint8_t, 64> pending_{};
  std::uint64_t total_ = 0;  // bytes so far
};

/// Digest of a piece of memory.
std::string sha256_hex(std::string_view text);
/// Digest of a whole file. Throws RequestError when it cannot be read.
std::string sha256_file(const std::string& path);

}  // namespace octavo
