// What a process may use, read from made-up control groups of both versions.
#include "process_limits.h"

#include <fstream>

#include "catch.h"
#include "temp_dir.h"

using namespace octavo;
namespace fs = std::filesystem;

namespace {

/// A root with proc/meminfo (1000 MiB, 600 MiB of them available) and whatever a test adds.
struct Root {
  testing::TempDir folder;

  Root() {
    write("proc/meminfo", "MemTotal:        1024000 kB\nMemFree: 1 kB\nMemAvailable:     614400 kB\n");
  }
  void write(const std::string& file, const std::string& text) {
    fs::create_directories((folder.path / file).parent_path());
    std::ofstream(folder.path / file) << text;
  }
  const fs::path& path() const { return folder.path; }
};

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

}  // namespace

TEST_CASE("without control groups the machine is the limit") {
  const Root root;
  CHECK(memory_limit(root.path()) == 1000 * kMiB);
  CHECK(available_memory(root.path()) == 600 * kMiB);
  CHECK(usable_cores(root.path()) >= 1);
}

TEST_CASE("a group of version 2 holds the process to its quota and memory, at any level") {
  Root root;
  root.write("proc/self/cgroup", "0::/batch/job7\n");
  root.write("sys/fs/cgroup/batch/job7/cpu.max", "max 100000\n");
  root.write("sys/fs/cgroup/batch/cpu.max", "50000 100000\n");
  CHECK(usable_cores(root.path()) == 1);
  root.write("sys/fs/cgroup/batch/job7/memory.max", "max\n");
  root.write("sys/fs/cgroup/batch/memory.max", std::to_string(500 * kMiB));
  root.write("sys/fs/cgroup/batch/memory.current", std::to_string(450 * kMiB));
  root.write("sys/fs/cgroup/batch/memory.stat",
             "anon 1\nfile " + std::to_string(350 * kMiB) + "\nfile_mapped 5\n");
  CHECK(memory_limit(root.path()) == 500 * kMiB);
  CHECK(available_memory(root.path()) == 400 * kMiB);  // of the 450 held, 350 are cache
  root.write("sys/fs/cgroup/batch/memory.stat", "anon 1\nfile 0\n");
  CHECK(available_memory(root.path()) == 50 * kMiB);
}

TEST_CASE("a group of version 1 likewise, also where its folder is not visible in the container") {
  Root root;
  root.write("proc/self/cgroup", "9:name=systemd:/\n4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "70000\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(usable_cores(root.path()) == 1);
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(200 * kMiB));
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(60 * kMiB));
  root.write("sys/fs/cgroup/memory/memory.stat", "cache 3\ntotal_cache " + std::to_string(20 * kMiB) + "\n");
  CHECK(memory_limit(root.path()) == 200 * kMiB);
  CHECK(available_memory(root.path()) == 160 * kMiB);
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(900 * kMiB));
  CHECK(available_memory(root.path()) == 0);
}

TEST_CASE("a quota of -1 and the largest memory limit mean none") {
  Root root;
  root.write("proc/self/cgroup", "4:memory:/\n3:cpu:/\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
  CHECK(usable_cores(root.path()) == usable_cores(Root().path()));
  CHECK(memory_limit(root.path()) == 1000 * kMiB);
  CHECK(available_memory(root.path()) == 600 * kMiB);
}
