#include "precision/fp8_support.h"

#include <cstdio>
#include <cstdlib>

#include "error.h"

namespace octavo {

std::string text_of(Capability capability) {
  return fmt::format("{}.{}", capability.major, capability.minor);
}

std::string why_no_fp8(Capability capability, std::int64_t n, std::int64_t k) {
  if (capability < kLeastFp8Capability)
    return fmt::format("FP8 products need compute capability {}, this device has {}",
                       text_of(kLeastFp8Capability), text_of(capability));
  constexpr std::int64_t kMultiple = 16;
  if (k % kMultiple != 0)
    return fmt::format("FP8 products need an inner dimension that is a multiple of {}, not {}", kMultiple, k);
  if (n % kMultiple != 0)
    return fmt::format("FP8 products need result rows of a multiple of {}, not {}", kMultiple, n);
  return "";
}

std::optional<Capability> pretended_capability() {
  const char* text = std::getenv("OCTAVO_PRETEND_CAPABILITY");
  if (text == nullptr || *text == '\0') return std::nullopt;
  Capability c;
  char rest = 0;
  if (std::sscanf(text, "%2d.%1d%c", &c.major, &c.minor, &rest) != 2 || c.major < 1)
    refuse("OCTAVO_PRETEND_CAPABILITY: found \"{}\"; allowed: a compute capability such as 8.9", text);
  return c;
}

}  // namespace octavo
