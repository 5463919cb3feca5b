// CRC-32 against published values, in every alignment and length, and against one flipped bit.
#include "crc32.h"

#include <string>

#include "catch.h"
#include "error.h"
#include "temp_dir.h"

using namespace octavo;

namespace {

/// Bit by bit, as the definition says.
std::string slow_crc32(const std::string& bytes) {
  std::uint32_t r = 0xffffffffu;
  for (const char c : bytes) {
    r ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) r = (r & 1u) != 0 ? r >> 1 ^ 0xedb88320u : r >> 1;
  }
  return fmt::format("{:08x}", ~r);
}

}  // namespace

TEST_CASE("CRC-32: published values") {
  CHECK(crc32_hex("") == "00000000");
  CHECK(crc32_hex("123456789") == "cbf43926");
  CHECK(crc32_hex("The quick brown fox jumps over the lazy dog") == "414fa339");
  CHECK(crc32_hex(std::string(32, '\xff')) == "ff6cab0b");
}

TEST_CASE("CRC-32: every length and alignment, and every flipped bit is seen") {
  std::string text;
  for (int i = 0; i < 64; ++i) text += static_cast<char>(i * 37 + 129);
  for (std::size_t from = 0; from < 9; ++from)
    for (std::size_t n = 0; from + n <= text.size(); ++n)
      REQUIRE(crc32_hex(std::string_view(text).substr(from, n)) == slow_crc32(text.substr(from, n)));
  const std::string right = crc32_hex(text);
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string wrong = text;
    wrong[bit / 8] = static_cast<char>(wrong[bit / 8] ^ (1 << bit % 8));
    REQUIRE(crc32_hex(wrong) != right);
  }
}

TEST_CASE("CRC-32: files") {
  const testing::TempDir dir;
  CHECK(crc32_file(dir.file("a", "123456789")) == "cbf43926");
  CHECK(crc32_file(dir.file("empty", "")) == "00000000");
  CHECK_THROWS_AS(crc32_file(dir.path / "none"), RequestError);
}
