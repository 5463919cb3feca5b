// crc32.cpp - eight bytes at a time by eight tables ("slicing by 8"; Kounavis, Berry 2008).
#include "crc32.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "data/input_files.h"
#include "error.h"

namespace octavo {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[k][b]: what the byte b leaves in the remainder after k further zero bytes.
constexpr Tables make_tables() {
  constexpr std::uint32_t kPolynomial = 0xedb88320u;  // reflected
  Tables tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t r = b;
    for (int bit = 0; bit < 8; ++bit) r = r >> 1 ^ ((r & 1u) != 0 ? kPolynomial : 0u);
    tables[0][b] = r;
  }
  for (std::size_t k = 1; k < tables.size(); ++k)
    for (std::size_t b = 0; b < 256; ++b)
      tables[k][b] = tables[k - 1][b] >> 8 ^ tables[0][tables[k - 1][b] & 0xffu];
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::string crc32_hex(std::string_view bytes) {
  std::uint32_t r = 0xffffffffu;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof word);
    word ^= r;
    r = 0;
    for (std::size_t i = 0; i < 8; ++i) r ^= kTables[7 - i][word >> 8 * i & 0xffu];
  }
  for (const char c : bytes) r = r >> 8 ^ kTables[0][(r ^ static_cast<unsigned char>(c)) & 0xffu];
  return fmt::format("{:08x}", ~r);
}

std::string crc32_file(const std::filesystem::path& file) {
  return crc32_hex(MappedFile(file.string()).text());
}

}  // namespace octavo
