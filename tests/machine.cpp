// What run.json says of its surroundings.
#include "machine.h"

#include <nlohmann/json.hpp>

#include "catch.h"
#include "environment.h"

using namespace octavo;

TEST_CASE("machine: processor, threads, memory and system are known") {
  const Machine machine = this_machine();
  CHECK_FALSE(machine.processor.empty());
  CHECK(machine.usable_threads >= 1);
  CHECK(machine.memory_bytes > (std::uint64_t{64} << 20));
  CHECK_THAT(machine.kernel, ContainsSubstring("Linux "));
  CHECK_THAT(describe(machine), ContainsSubstring(machine.processor) && ContainsSubstring("GiB"));
  const nlohmann::ordered_json versions = versions_json();
  CHECK(versions["onednn"].get<std::string>().find('.') != std::string::npos);
  CHECK_THAT(version_text(), ContainsSubstring(versions["octavo"].get<std::string>()));
  CHECK_THAT(build_text(),
             ContainsSubstring("octavo " + version_text()) && ContainsSubstring("backends: CPU"));
}

TEST_CASE("machine: only variables that change numbers are recorded, sorted") {
  const testing::ScopedVariable isa("ONEDNN_MAX_CPU_ISA", "AVX2"), old_isa("DNNL_MAX_CPU_ISA", "AVX"),
      tf32("NVIDIA_TF32_OVERRIDE", "0"), cublas("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
      libc("GLIBC_TUNABLES", "a=b"), secret("OCTAVO_TEST_SECRET", "no"),
      near("NVIDIA_TF32_OVERRIDE_NOT", "no");
  const nlohmann::ordered_json found = environment_json();
  CHECK(found["ONEDNN_MAX_CPU_ISA"] == "AVX2");
  CHECK(found["DNNL_MAX_CPU_ISA"] == "AVX");
  CHECK(found["NVIDIA_TF32_OVERRIDE"] == "0");
  CHECK(found["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8");
  CHECK(found["GLIBC_TUNABLES"] == "a=b");
  CHECK_FALSE(found.contains("OCTAVO_TEST_SECRET"));
  CHECK_FALSE(found.contains("NVIDIA_TF32_OVERRIDE_NOT"));
  CHECK_FALSE(found.contains("PATH"));
  std::string last;
  for (const auto& [key, value] : found.items()) {
    CHECK(last < key);
    last = key;
  }
}
