// `octavo info`: what runs here and why not, as text and as JSON.
#include <nlohmann/json.hpp>

#include "catch.h"
#include "program.h"

using namespace octavo::testing;

TEST_CASE("info: every precision runs or has a reason, and so has CUDA") {
  const TempDir dir;
  const ProgramResult r = run_program(dir.path, {"info", "--json"});
  REQUIRE(r.status == 0);
  const nlohmann::json info = nlohmann::json::parse(r.out);
  const auto& precisions = info["backends"][0]["precisions"];
  REQUIRE(precisions.size() == 4);
  for (const auto& p : precisions)
    CHECK_FALSE(p[p["runs"].get<bool>() ? "path" : "reason"].get<std::string>().empty());
  const auto& cuda = info["cuda"];
  if (cuda["devices"].empty()) CHECK_FALSE(cuda["why_none"].get<std::string>().empty());
  CHECK(cuda.contains("versions") == cuda["built"].get<bool>());
  const ProgramResult text = run_program(dir.path, {"info"});
  CHECK_THAT(text.out, ContainsSubstring("fp32   yes  onednn f32"));
  if (!cuda["built"].get<bool>()) {
    CHECK_THAT(text.out, ContainsSubstring("cuda: none: this program was built without CUDA (preset cpu)"));
    return;
  }
  for (const char* key : {"driver", "runtime", "cublaslt"}) {
    CHECK_FALSE(cuda["versions"][key].get<std::string>().empty());
    CHECK_THAT(text.out, ContainsSubstring(key));
  }
}
