// safetensors files: what is written is what the format says, and no damaged file gets past the reader.
#include "safetensors.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "catch.h"
#include "error.h"
#include "file_size_limit.h"
#include "temp_dir.h"

using namespace octavo;
using octavo::testing::FileSizeLimit;
using octavo::testing::TempDir;
namespace fs = std::filesystem;

namespace {

std::string length_bytes(std::uint64_t n) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(n >> (8 * i) & 0xff);
  return bytes;
}

// A file of this header and so many bytes of data.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  return length_bytes(header.size()) + header + std::string(data_bytes, '\1');
}

std::string reading_fails(const std::string& path) {
  try {
    const SafetensorsFile file(path);
  } catch (const RequestError& e) {
    return e.what();
  }
  return "no error";
}

std::string content_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("a safetensors file is written as the format says, byte for byte") {
  const TempDir dir;
  const fs::path path = dir.path / "x.safetensors";
  const std::vector<TensorSpec> specs{{"b", "F32", {2, 3}}, {"a", "BF16", {1}}};
  SafetensorsWriter writer(path, specs, {{"format", "pt"}});
  const float values[6] = {1, 2, 3, 4, 5, 6};
  const std::uint16_t one = 0x3f80;
  writer.write(values, 10);  // any split
  writer.write(reinterpret_cast<const char*>(values) + 10, 14);
  CHECK(!fs::exists(path));
  writer.write(&one, 2);
  writer.finish();

  std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("a":{"dtype":"BF16","shape":[1],"data_offsets":[24,26]}})";
  while (header.size() % 8 != 0) header += ' ';
  std::string expected = length_bytes(header.size()) + header;
  expected.append(reinterpret_cast<const char*>(values), 24).append("\x80\x3f");
  CHECK(content_of(path) == expected);
  CHECK(SafetensorsWriter::file_size(specs, {{"format", "pt"}}) == expected.size());
  CHECK(entries(dir.path) == 1);

  const SafetensorsFile file(path);
  CHECK(file.metadata().at("format") == "pt");
  REQUIRE(file.tensors().size() == 2);
  CHECK(file.tensors()[0].name == "b");
  CHECK(file.find("c") == nullptr);
  const SavedTensor* b = file.find("b");
  REQUIRE(b != nullptr);
  CHECK(b->shape == std::vector<std::int64_t>{2, 3});
  float part[2] = {};
  file.read_f32(*b, 3, 2, part);
  CHECK(part[0] == 4);
  CHECK(part[1] == 5);
  CHECK_THROWS_AS(file.read_f32(*b, 5, 2, part), std::logic_error);
}

TEST_CASE("the header of many tensors takes time in their number, not in its square") {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 100000; ++i) specs.push_back({"layer" + std::to_string(i) + ".bias", "F32", {1}});
  const std::clock_t start = std::clock();
  CHECK(SafetensorsWriter::file_size(specs, {}) > 100000 * 60);
  CHECK(std::clock() - start <
        5 * CLOCKS_PER_SEC);  // under 1 s; looking each key up from the front, over 20 s
}

TEST_CASE("every F16 and BF16 value is read exactly") {
  const TempDir dir;
  const fs::path path = dir.path / "all.safetensors";
  std::vector<std::uint16_t> codes(65536);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
  SafetensorsWriter writer(path, {{"h", "F16", {65536}}, {"b", "BF16", {65536}}}, {});
  writer.write(codes.data(), 131072);
  writer.write(codes.data(), 131072);
  writer.finish();

  const SafetensorsFile file(path);
  std::vector<float> half(65536), brain(65536);
  file.read_f32(*file.find("h"), 0, 65536, half.data());
  file.read_f32(*file.find("b"), 0, 65536, brain.data());
  std::size_t wrong = 0;
  for (std::uint32_t code = 0; code < 65536; ++code) {
    // IEEE 754 by its definition: sign * 2^(exponent - bias) * 1.fraction, subnormals without the one.
    const auto value = [code](int exponent_bits, int fraction_bits) {
      const int exponent = static_cast<int>(code >> fraction_bits) & ((1 << exponent_bits) - 1);
      const double fraction =
          std::ldexp(static_cast<double>(code & ((1u << fraction_bits) - 1)), -fraction_bits);
      const int bias = (1 << (exponent_bits - 1)) - 1;
      double magnitude = std::ldexp(exponent == 0 ? fraction : 1 + fraction, std::max(exponent, 1) - bias);
      if (exponent == (1 << exponent_bits) - 1)
        magnitude = fraction == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
      return (code & 0x8000u) != 0 ? -magnitude : magnitude;
    };
    const auto same = [](float got, double expected) {
      return std::isnan(expected)
                 ? std::isnan(got)
                 : static_cast<double>(got) == expected && std::signbit(got) == std::signbit(expected);
    };
    wrong += same(half[code], value(5, 10)) ? 0 : 1;
    wrong += same(brain[code], value(8, 7)) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("files of other writers are read: order of keys, spaces, empty tensors, every dtype, scalars") {
  const TempDir dir;
  const std::string path =
      dir.file("x.safetensors", file_of(R"({ "z": {"shape":[], "data_offsets":[1,9], "dtype":"F64"},
    "m": {"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}, "e": {"dtype":"F32","shape":[0,7],"data_offsets":[1,1]} }    )",
                                        9));
  const SafetensorsFile file(path);
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.tensors()[0].name == "m");
  CHECK(file.tensors()[1].name == "e");
  CHECK(file.tensors()[2].name == "z");
  CHECK(file.find("z")->size() == 1);
  CHECK(file.find("e")->size() == 0);
  float out = 0;
  CHECK_THROWS_WITH(file.read_f32(*file.find("z"), 0, 1, &out),
                    ContainsSubstring("dtype F64; allowed: F32, F16, BF16"));
  CHECK(SafetensorsFile(dir.file("empty.safetensors", file_of("{}", 0))).tensors().empty());
}

TEST_CASE("damaged safetensors files are refused by name, fault and what is allowed") {
  struct Case {
    const char* what;
    std::string content, message;
  };
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::string good = tensor("\"F32\"", "[2]", "[0,8]");
  const std::string deep = "{\"w\":" + std::string(100000, '[') + std::string(100000, ']') + "}";
  const std::vector<Case> cases{
      {"empty file", "", "found 0 bytes"},
      {"no whole length", "1234567", "found 7 bytes"},
      {"length huge", length_bytes(0x8000000000000000u) + good,
       "header length is 9223372036854775808; allowed: at most"},
      {"length over 100 MB", length_bytes(100000001) + good,
       "header length is 100000001; allowed: at most 100000000"},
      {"header cut short", length_bytes(good.size()) + good.substr(0, 20), "but only 20 bytes follow"},
      {"data cut short", file_of(good, 7), "begin <= end <= 7"},
      {"data too long", file_of(good, 9), "9 bytes follow the header, its tensors end at 8"},
      {"data without tensors", file_of("{}", 1), "1 bytes follow the header, its tensors end at 0"},
      {"length zero", file_of("", 8), "does not begin with a brace"},
      {"list", file_of("[]", 0), "does not begin with a brace"},
      {"leading space", file_of(" {}", 0), "does not begin with a brace"},
      {"no JSON", file_of("{\"w\":", 0), "not valid JSON at its byte"},
      {"two objects", file_of("{}{}", 0), "not valid JSON"},
      {"trailing comma", file_of("{\"__metadata__\":{},}", 0), "not valid JSON"},
      {"comment", file_of("{/* */}", 0), "not valid JSON"},
      {"not UTF-8", file_of("{\"w\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8),
       "not valid JSON"},
      {"number too large", file_of(tensor("\"F32\"", "[1e999]", "[0,8]"), 8), "not valid JSON"},
      {"nested deeply", file_of(deep, 0), "nested more than 8 deep"},
      {"tensor twice", file_of(good.substr(0, good.size() - 1) + "," + good.substr(1), 8),
       "names \"w\" twice"},
      {"shape twice", file_of(R"({"w":{"dtype":"F32","shape":[9],"shape":[2],"data_offsets":[0,8]}})", 8),
       "names \"shape\" twice"},
      {"metadata no object", file_of(R"({"__metadata__":3})", 0), "__metadata__ is 3"},
      {"metadata no text", file_of(R"({"__metadata__":{"a":1}})", 0),
       "__metadata__.\"a\" is 1; allowed: a text"},
      {"tensor no object", file_of(R"({"w":[1]})", 0), "tensor \"w\": found [1]"},
      {"no dtype", file_of(R"({"w":{"shape":[2],"data_offsets":[0,8]}})", 8), "tensor \"w\": has no dtype"},
      {"no shape", file_of(R"({"w":{"dtype":"F32","data_offsets":[0,8]}})", 8), "tensor \"w\": has no shape"},
      {"no offsets", file_of(R"({"w":{"dtype":"F32","shape":[2]}})", 8), "tensor \"w\": has no data_offsets"},
      {"key too much", file_of(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", 8),
       "found the key \"x\""},
      {"dtype unknown", file_of(tensor("\"F12\"", "[2]", "[0,8]"), 8), "dtype is \"F12\"; allowed: BOOL"},
      {"dtype in small letters", file_of(tensor("\"f32\"", "[2]", "[0,8]"), 8), "dtype is \"f32\""},
      {"dtype a number", file_of(tensor("4", "[2]", "[0,8]"), 8), "dtype is 4"},
      {"dtype of other size", file_of(tensor("\"F16\"", "[2]", "[0,8]"), 8), "8 bytes; allowed: 4 bytes"},
      {"shape of other size", file_of(tensor("\"F32\"", "[3]", "[0,8]"), 8), "8 bytes; allowed: 12 bytes"},
      {"shape a number", file_of(tensor("\"F32\"", "2", "[0,8]"), 8), "shape is 2; allowed: a list"},
      {"shape of many sizes", file_of(tensor("\"F32\"", "[2,1,1,1,1,1,1,1,1]", "[0,8]"), 8),
       "at most 8 sizes"},
      {"shape negative", file_of(tensor("\"F32\"", "[-2]", "[0,8]"), 8), "shape is [-2]; allowed: integers"},
      {"shape of two negatives", file_of(tensor("\"F32\"", "[-1,-2]", "[0,8]"), 8), "shape is [-1,-2]"},
      {"shape fractional", file_of(tensor("\"F32\"", "[2.0]", "[0,8]"), 8), "shape is [2.0]"},
      {"shape text", file_of(tensor("\"F32\"", "[\"2\"]", "[0,8]"), 8), "shape is [\"2\"]"},
      {"shape beyond 63 bits", file_of(tensor("\"F32\"", "[18446744073709551615]", "[0,8]"), 8),
       "shape is [18446744073709551615]"},
      {"shape wraps to its bytes", file_of(tensor("\"F32\"", "[4611686018427387904,2]", "[0,0]"), 0),
       "overflows 64 bits"},
      {"offset negative", file_of(tensor("\"F32\"", "[2]", "[-8,0]"), 8), "data_offsets is [-8,0]"},
      {"offset fractional", file_of(tensor("\"F32\"", "[2]", "[0,8.0]"), 8), "data_offsets is [0,8.0]"},
      {"one offset", file_of(tensor("\"F32\"", "[2]", "[8]"), 8), "data_offsets is [8]"},
      {"three offsets", file_of(tensor("\"F32\"", "[2]", "[0,8,8]"), 8), "data_offsets is [0,8,8]"},
      {"offsets backwards", file_of(tensor("\"F32\"", "[2]", "[8,0]"), 8), "data_offsets is [8,0]"},
      {"offset beyond the file", file_of(tensor("\"F32\"", "[2]", "[4,12]"), 8), "begin <= end <= 8"},
      {"offset that wraps", file_of(tensor("\"F32\"", "[2]", "[18446744073709551608,0]"), 8),
       "begin <= end <= 8"},
      {"gap in front", file_of(tensor("\"F32\"", "[1]", "[4,8]"), 8), "begins at byte 4; allowed: 0"},
      {"overlap",
       file_of(
           R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
           12),
       "tensor \"b\" begins at byte 4; allowed: 8"},
      {"two at one place",
       file_of(
           R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
           8),
       "tensor \"b\" begins at byte 0; allowed: 8"},
      {"gap between",
       file_of(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
           12),
       "tensor \"b\" begins at byte 8; allowed: 4"},
      {"line break in a name", file_of(R"({"a\nb":7})", 0), "tensor \"a\\nb\": found 7"},
  };
  const TempDir dir;
  for (const Case& c : cases) {
    INFO(c.what);
    const std::string path = dir.file("bad.safetensors", c.content);
    const std::string message = reading_fails(path);
    CHECK_THAT(message, ContainsSubstring(c.message));
    CHECK_THAT(message, ContainsSubstring(path));
    CHECK_THAT(message, ContainsSubstring("allowed"));
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.size() < path.size() + 400);
  }
  CHECK(reading_fails(dir.file("good.safetensors", file_of(good, 8))) == "no error");
  CHECK_THAT(reading_fails((dir.path / "none.safetensors").string()), ContainsSubstring("No such file"));
  CHECK_THAT(reading_fails(dir.path.string()), ContainsSubstring("folder"));
}

TEST_CASE("a safetensors file cut at any byte is refused") {
  const TempDir dir;
  const fs::path path = dir.path / "x.safetensors";
  SafetensorsWriter writer(path, {{"a", "F32", {2}}, {"b", "U8", {3}}}, {});
  writer.write("elevenbytes", 11);
  writer.finish();
  const std::string whole = content_of(path);
  for (std::size_t n = 0; n < whole.size(); ++n) {
    INFO(n);
    CHECK(reading_fails(dir.file("cut.safetensors", whole.substr(0, n))) != "no error");
  }
}

TEST_CASE("a writer that is given up or fails leaves the older file and no temporary one") {
  const TempDir dir;
  const std::string path = dir.file("x.safetensors", "older");
  const std::vector<TensorSpec> specs{{"a", "F32", {4096}}};
  const std::vector<float> values(4096, 1.0f);

  SECTION("abandoned") {
    SafetensorsWriter writer(path, specs, {});
    writer.write(values.data(), 100);
  }
  SECTION("finished too early, or too long") {
    SafetensorsWriter writer(path, specs, {});
    writer.write(values.data(), 100);
    CHECK_THROWS_AS(writer.finish(), std::logic_error);
    CHECK_THROWS_AS(writer.write(values.data(), 16384), std::logic_error);
  }
  SECTION("disk full") {
    const FileSizeLimit limit(4096);
    SafetensorsWriter writer(path, specs, {});
    CHECK_THROWS_AS(writer.write(values.data(), 16384), RunError);
  }
  SECTION("disk full, the message") {
    const FileSizeLimit limit(4096);
    SafetensorsWriter writer(path, specs, {});
    CHECK_THROWS_WITH(writer.write(values.data(), 16384),
                      ContainsSubstring("cannot write " + path + ": File too large"));
  }
  SECTION("full while the header is written") {
    const FileSizeLimit limit(10);
    CHECK_THROWS_AS(SafetensorsWriter(path, specs, {}), RunError);
  }
  CHECK(content_of(path) == "older");
  CHECK(entries(dir.path) == 1);
}

TEST_CASE("a folder that is missing and a place taken by a folder are run errors") {
  const TempDir dir;
  CHECK_THROWS_WITH(SafetensorsWriter(dir.path / "no" / "x", {{"a", "U8", {1}}}, {}),
                    ContainsSubstring("No such file"));
  dir.file("taken/inside", "");
  SafetensorsWriter writer(dir.path / "taken", {{"a", "U8", {1}}}, {});
  writer.write("1", 1);
  CHECK_THROWS_AS(writer.finish(), RunError);
  CHECK(fs::exists(dir.path / "taken" / "inside"));
  CHECK(entries(dir.path) == 1);
}

TEST_CASE("a header that could not be read back is not written") {
  const TempDir dir;
  const fs::path path = dir.path / "x";
  CHECK_THROWS_AS(SafetensorsWriter(path, {{"a", "F32", {1}}, {"a", "F32", {1}}}, {}), std::logic_error);
  CHECK_THROWS_AS(SafetensorsWriter(path, {{"a", "float", {1}}}, {}), std::logic_error);
  CHECK(entries(dir.path) == 0);
}
