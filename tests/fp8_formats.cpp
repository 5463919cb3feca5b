// E4M3 and E5M2: every code both ways, every tie and its neighbours, and all that is not an ordinary number;
// against the definition and against CUDA's own conversions on the host.
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#if __has_include(<cuda_fp8.h>)
#include <cuda_fp8.h>
#define HAVE_CUDA_FP8
#endif

#include "catch.h"
#include "fp8_reference.h"
#include "precision/fp8_formats.h"
#include "rng.h"
#include "sha256.h"

using namespace octavo;
using namespace octavo::testing;
using reference::kFormats;

namespace {

float from_bits(std::uint32_t u) {
  return std::bit_cast<float>(u);
}
float infinity() {
  return std::numeric_limits<float>::infinity();
}

/// Both ways of calling agree with the reference.
bool encodes_right(DType format, float x) {
  const std::uint8_t code = encode_fp8(format, x);
  const std::uint8_t by_type =
      format == DType::e4m3 ? encode_fp8<DType::e4m3>(x) : encode_fp8<DType::e5m2>(x);
  return code == reference::nearest(format, static_cast<double>(x)) && by_type == code;
}

/// Floats with a random bit pattern, and floats of exponents that the formats can see.
float random_float(std::uint32_t i, bool in_range) {
  const std::uint32_t bits = philox({99, 0xf8}, i, 0, 0, 0).v[0];
  if (!in_range) return from_bits(bits);
  const std::uint32_t exponent = 127 - 20 + (bits >> 23) % 40;
  return from_bits((bits & 0x807fffffu) | exponent << 23);
}

/// Codes of all 65536 bf16 patterns, in order.
template <typename Encode>
std::string codes_of_all_bf16(Encode encode) {
  std::string codes;
  for (std::uint32_t u = 0; u < 65536; ++u) codes += static_cast<char>(encode(from_bits(u << 16)));
  return codes;
}

}  // namespace

TEST_CASE("every FP8 code has the value that its bits say, and comes back", "[fp8]") {
  for (const DType format : kFormats)
    for (int code = 0; code < 256; ++code) {
      INFO(name_of(format) << " code " << code);
      const std::uint8_t c = static_cast<std::uint8_t>(code);
      const float value = decode_fp8(format, c);
      const float by_type = format == DType::e4m3 ? decode_fp8<DType::e4m3>(c) : decode_fp8<DType::e5m2>(c);
      CHECK(std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(by_type));
      const double expected = reference::value_of(format, code);
      if (std::isnan(expected)) {
        CHECK(std::isnan(value));
        CHECK(encode_fp8(format, value) == 0x7f);
        continue;
      }
      CHECK(static_cast<double>(value) == expected);
      CHECK(std::signbit(value) == (code >= 0x80));
      CHECK(to_float(to_bf16(value)) == value);
      // An infinity is beyond the largest value.
      const int back = std::isinf(value) ? code - 1 : code;
      CHECK(encode_fp8(format, value) == back);
    }
}

TEST_CASE("the FP8 formats' constants are those of their codes", "[fp8]") {
  CHECK(reference::largest_of(DType::e4m3) == 448);
  CHECK(reference::largest_of(DType::e5m2) == 57344);
  CHECK(fp8_max(DType::e4m3) == 448.0f);
  CHECK(fp8_max(DType::e5m2) == 57344.0f);
  CHECK(Fp8Format<DType::e4m3>::kMinDenormal == 0x1p-9f);
  CHECK(Fp8Format<DType::e5m2>::kMinDenormal == 0x1p-16f);
  CHECK(reference::finite_values(DType::e4m3).size() == Fp8Format<DType::e4m3>::kMaxCode + 1);
  CHECK(reference::finite_values(DType::e5m2).size() == Fp8Format<DType::e5m2>::kMaxCode + 1);
  for (const DType type : {DType::f32, DType::bf16, DType::i32, DType::i64, DType::u8}) CHECK(!is_fp8(type));
  CHECK((is_fp8(DType::e4m3) && is_fp8(DType::e5m2)));
}

TEST_CASE("FP8 ties go to the even code, their neighbours to the nearer one", "[fp8]") {
  for (const DType format : kFormats) {
    const std::vector<double>& values = reference::finite_values(format);
    for (std::size_t low = 0; low + 1 < values.size(); ++low)
      for (const int sign : {0, 0x80}) {
        const float middle = static_cast<float>((values[low] + values[low + 1]) / 2);
        REQUIRE(static_cast<double>(middle) == (values[low] + values[low + 1]) / 2);
        INFO(name_of(format) << " between codes " << low << " and " << low + 1 << ", sign " << sign);
        const auto code = [&](float x) { return encode_fp8(format, sign != 0 ? -x : x); };
        const int below = static_cast<int>(low) | sign, above = static_cast<int>(low + 1) | sign;
        CHECK(code(middle) == (low % 2 == 0 ? below : above));
        CHECK(code(std::nextafter(middle, 0.0f)) == below);
        CHECK(code(std::nextafter(middle, infinity())) == above);
        // A value's own neighbours belong to it.
        CHECK(code(std::nextafter(static_cast<float>(values[low + 1]), 0.0f)) == above);
        CHECK(code(std::nextafter(static_cast<float>(values[low + 1]), infinity())) == above);
      }
  }
}

TEST_CASE("zeros, denormals, infinities, NaN and what is beyond have the FP8 codes that they should",
          "[fp8]") {
  for (const DType format : kFormats) {
    INFO(name_of(format));
    const std::uint8_t largest = format == DType::e4m3 ? 0x7e : 0x7b;
    CHECK(encode_fp8(format, 0.0f) == 0);
    CHECK(encode_fp8(format, -0.0f) == 0x80);
    for (const std::uint32_t tiny : {0x00000001u, 0x007fffffu, 0x00800000u, 0x00000100u}) {
      CHECK(encode_fp8(format, from_bits(tiny)) == 0);
      CHECK(encode_fp8(format, from_bits(tiny | 0x80000000u)) == 0x80);
    }
    const float max = fp8_max(format);
    for (const float beyond : {max, std::nextafter(max, infinity()), max * 1.03f, max * 1.0625f, max * 1.07f,
                               max * 1.25f, max * 2, 1e30f, std::numeric_limits<float>::max(), infinity()}) {
      CHECK(encode_fp8(format, beyond) == largest);
      CHECK(encode_fp8(format, -beyond) == (largest | 0x80));
    }
    for (std::uint32_t bit = 0; bit < 23; ++bit)
      for (const std::uint32_t sign : {0u, 0x80000000u}) {
        CHECK(encode_fp8(format, from_bits(0x7f800000u | 1u << bit | sign)) == 0x7f);
        CHECK(encode_fp8(format, from_bits(0x7fffffffu ^ (1u << bit) | sign)) == 0x7f);
      }
    CHECK(encode_fp8(format, from_bits(0xffffffffu)) == 0x7f);
  }
}

TEST_CASE("random floats and floats around every value and tie have the nearest FP8 code", "[fp8]") {
  for (const DType format : kFormats) {
    for (std::uint32_t i = 0; i < 200000; ++i)
      for (const bool in_range : {false, true})
        if (const float x = random_float(i, in_range); !encodes_right(format, x))
          FAIL(name_of(format) << ": " << x << " became " << int{encode_fp8(format, x)});
    const std::vector<double>& values = reference::finite_values(format);
    for (std::size_t i = 0; i + 1 < values.size(); ++i)
      for (const double at : {values[i], (values[i] + values[i + 1]) / 2, values[i + 1]}) {
        const std::uint32_t bits = std::bit_cast<std::uint32_t>(static_cast<float>(at));
        for (std::uint32_t step = 0; step <= 80; ++step) {
          if (bits + step < 40) continue;
          const float x = from_bits(bits + step - 40);
          if (!encodes_right(format, x) || !encodes_right(format, -x)) FAIL(name_of(format) << ": " << x);
        }
      }
  }
}

TEST_CASE("the FP8 codes of all bf16 values are those that CUDA's header gives", "[fp8]") {
  // SHA-256 of 65536 bytes, byte i being __nv_cvt_float_to_fp8(bf16 of bits i, __NV_SATFINITE, format), made
  // with the cuda_fp8.h of CUDA 13.0.
  CHECK(sha256_hex(codes_of_all_bf16([](float x) { return encode_fp8(DType::e4m3, x); })) ==
        "2f8096b3b00699a86e3e44c61fc0287c5111ab4b4e3d1ad604f6f3a5b3eca0db");
  CHECK(sha256_hex(codes_of_all_bf16([](float x) { return encode_fp8(DType::e5m2, x); })) ==
        "69d1394f72425f9b4be7e18c947e02d52e9ca5feb64c8bf06254e46dead83e4f");
}

#ifdef HAVE_CUDA_FP8
namespace {

/// The value of a half's bits.
double half_value(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 0x1f), mantissa = static_cast<int>(bits & 0x3ff);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa == 0 ? sign * static_cast<double>(infinity()) : std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

}  // namespace
#endif

TEST_CASE("FP8 conversions are CUDA's own, bit for bit", "[fp8]") {
#ifdef HAVE_CUDA_FP8
  for (const DType format : kFormats) {
    const __nv_fp8_interpretation_t kind = format == DType::e4m3 ? __NV_E4M3 : __NV_E5M2;
    const auto cuda = [&](float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind); };
    CHECK((codes_of_all_bf16(cuda) == codes_of_all_bf16([&](float x) { return encode_fp8(format, x); })));
    for (int code = 0; code < 256; ++code) {
      INFO(name_of(format) << " code " << code);
      const std::uint8_t c = static_cast<std::uint8_t>(code);
      const double theirs = half_value(__nv_cvt_fp8_to_halfraw(c, kind).x);
      const double ours = static_cast<double>(decode_fp8(format, c));
      CHECK(((std::isnan(ours) && std::isnan(theirs)) ||
             (ours == theirs && std::signbit(ours) == std::signbit(theirs))));
    }
    // Every bit pattern is as likely as any other, so that one in 256 is infinite or NaN.
    std::uint64_t state = 12345;
    for (int i = 0; i < 10000000; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const std::uint32_t bits = static_cast<std::uint32_t>(state >> 32);
      // Half of them with an exponent that the formats can see.
      const float x = from_bits(i % 2 == 0 ? bits : (bits & 0x807fffffu) | (107 + (bits >> 23) % 40) << 23);
      if (cuda(x) != encode_fp8(format, x))
        FAIL(name_of(format) << ": " << x << " is " << int{cuda(x)} << " for CUDA, here "
                             << int{encode_fp8(format, x)});
    }
  }
#else
  WARN("SKIPPED: this build found no cuda_fp8.h (CUDA toolkit 11.8 or later) to compare with");
#endif
}
