// fp8_support.cpp - what a compute capability and a shape allow, and the capability that a test pretends.
#include "precision/fp8_support.h"

#include "catch.h"
#include "environment.h"
#include "refusal.h"

using namespace octavo;
using namespace octavo::testing;

TEST_CASE("FP8 products need capability 8.9 and multiples of 16, but for the rows of the result", "[fp8]") {
  for (const Capability able : {Capability{8, 9}, Capability{9, 0}, Capability{10, 0}, Capability{12, 0}}) {
    CHECK(why_no_fp8(able, 768, 768).empty());
    CHECK(why_no_fp8(able, 0, 0).empty());  // not known yet
    CHECK(why_no_fp8(able, 768, 37) ==
          "FP8 products need an inner dimension that is a multiple of 16, not 37");
    CHECK(why_no_fp8(able, 40, 768) == "FP8 products need result rows of a multiple of 16, not 40");
  }
  for (const Capability unable : {Capability{7, 5}, Capability{8, 0}, Capability{8, 6}})
    CHECK(why_no_fp8(unable, 768, 768) ==
          "FP8 products need compute capability 8.9, this device has " + text_of(unable));
}

TEST_CASE("the pretended capability is read from the environment, or refused", "[fp8]") {
  {
    const ScopedVariable unset("OCTAVO_PRETEND_CAPABILITY", "");
    CHECK_FALSE(pretended_capability().has_value());
  }
  const ScopedVariable set("OCTAVO_PRETEND_CAPABILITY", "8.9");
  CHECK(pretended_capability() == Capability{8, 9});
  for (const char* bad : {"8", "8.", ".9", "8.9x", "hopper", "-1.0", "0.0"}) {
    const ScopedVariable wrong("OCTAVO_PRETEND_CAPABILITY", bad);
    CHECK_THAT(
        refusal([] { pretended_capability(); }),
        ContainsSubstring(std::string("found \"") + bad + "\"; allowed: a compute capability such as 8.9"));
  }
}
