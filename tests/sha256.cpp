// sha256.cpp - the vectors of FIPS 180-4's examples, and every way to cut a message.
#include "sha256.h"

#include "catch.h"
#include "refusal.h"
#include "temp_dir.h"

using namespace octavo;

TEST_CASE("SHA-256: published vectors") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_hex(std::string(1000000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256: lengths around the block, in any pieces") {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i * 7);
  for (std::size_t length = 0; length <= text.size(); ++length) {
    const std::string message = text.substr(0, length);
    const std::string whole = sha256_hex(message);
    for (const std::size_t step : {1, 3, 63, 64, 65}) {
      Sha256 hash;
      for (std::size_t at = 0; at < length; at += step) hash.update(message.substr(at, step));
      REQUIRE(hash.hex() == whole);
    }
  }
  // 55, 56 and 64 bytes are where the padding changes its number of blocks (values from coreutils'
  // sha256sum).
  CHECK(sha256_hex(std::string(55, 'a')) ==
        "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  CHECK(sha256_hex(std::string(56, 'a')) ==
        "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  CHECK(sha256_hex(std::string(64, 'a')) ==
        "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

TEST_CASE("SHA-256: files") {
  const testing::TempDir dir;
  CHECK(sha256_file(dir.file("abc", "abc")) == sha256_hex("abc"));
  CHECK(sha256_file(dir.file("empty", "")) == sha256_hex(""));
  CHECK_THAT(testing::refusal([&] { sha256_file((dir.path / "none").string()); }),
             ContainsSubstring("none: cannot be read: No such file"));
}
