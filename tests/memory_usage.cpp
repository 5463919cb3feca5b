// The peak follows what was touched, and falls back after a reset.
#include "memory_usage.h"

#include <cstring>

#include <sys/mman.h>

#include "catch.h"

using namespace octavo;

TEST_CASE("memory_usage: resident memory and its peak, reset between runs") {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  constexpr std::uint64_t kSlack = std::uint64_t{16} << 20;  // other threads of the test program
  if (!reset_peak_resident()) {
    WARN("this system does not let a process reset its peak: only the reading is tested");
    CHECK(peak_resident_bytes() >= resident_bytes());
    return;
  }
  const std::uint64_t before = resident_bytes();
  REQUIRE(before > 0);
  // Pages straight from the system: an allocator might keep what it is given back.
  void* block = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(block != MAP_FAILED);
  std::memset(block, 1, kBytes);
  CHECK(resident_bytes() + kSlack >= before + kBytes);
  munmap(block, kBytes);
  CHECK(peak_resident_bytes() + kSlack >= before + kBytes);
  REQUIRE(reset_peak_resident());
  CHECK(peak_resident_bytes() <= before + kSlack);
}
