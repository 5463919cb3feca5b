// process_limits.cpp - reads proc and the control groups' files.
#include "process_limits.h"

#include <algorithm>
#include <fstream>
#include <sched.h>
#include <string>
#include <unistd.h>
#include <vector>

namespace octavo {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kNoLimit = UINT64_MAX;

/// The number that a file begins with; `otherwise` where there is none ("max", "-1", or no such file).
std::uint64_t number_in(const fs::path& file, std::uint64_t otherwise) {
  std::ifstream in(file);
  std::int64_t value = 0;
  return in >> value && value >= 0 ? static_cast<std::uint64_t>(value) : otherwise;
}

/// The number behind a key in a file of lines "key number"; 0 where it is missing.
std::uint64_t number_of(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.compare(0, key.size(), key) == 0 && (line[key.size()] == ' ' || line[key.size()] == ':'))
      return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10);
  return 0;
}

/// The folders of this process's control groups, of version 2 and of one controller of version 1, innermost
/// first. In a container the path may not exist below the mount; the mount itself is then the group.
std::vector<fs::path> control_groups(const fs::path& root, const std::string& controller) {
  std::vector<fs::path> folders;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/path"; version 2: "0::/path"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers = ",";
    controllers.append(line, first + 1, second - first - 1).push_back(',');
    fs::path mount = root / "sys/fs/cgroup";
    if (controllers.find("," + controller + ",") != std::string::npos)
      mount /= controller;
    else if (controllers != ",,")
      continue;
    for (fs::path path = line.substr(second + 1);; path = path.parent_path()) {
      const fs::path below = path.relative_path();
      folders.push_back(below.empty() ? mount : mount / below);
      if (below.empty()) break;
    }
  }
  return folders;
}

std::uint64_t limit_of(const fs::path& group) {
  return std::min(number_in(group / "memory.max", kNoLimit),
                  number_in(group / "memory.limit_in_bytes", kNoLimit));
}

}  // namespace

int usable_cores(const fs::path& root) {
  std::uint64_t cores = static_cast<std::uint64_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  cpu_set_t set;
  CPU_ZERO(&set);  // fails on machines of more than 1024 processors
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cores = static_cast<std::uint64_t>(CPU_COUNT(&set));
  for (const fs::path& group : control_groups(root, "cpu")) {
    std::uint64_t quota = number_in(group / "cpu.cfs_quota_us", 0);
    std::uint64_t period = number_in(group / "cpu.cfs_period_us", 0);
    if (std::ifstream both(group / "cpu.max"); both >> quota) both >> period;  // "200000 100000"
    if (quota > 0 && period > 0) cores = std::min(cores, (quota + period - 1) / period);
  }
  return static_cast<int>(cores);
}

std::uint64_t memory_limit(const fs::path& root) {
  std::uint64_t bytes = number_of(root / "proc/meminfo", "MemTotal") * 1024;
  for (const fs::path& group : control_groups(root, "memory")) bytes = std::min(bytes, limit_of(group));
  return bytes;
}

std::uint64_t available_memory(const fs::path& root) {
  std::uint64_t bytes = number_of(root / "proc/meminfo", "MemAvailable") * 1024;
  for (const fs::path& group : control_groups(root, "memory")) {
    const std::uint64_t limit = limit_of(group);
    if (limit == kNoLimit) continue;
    const std::uint64_t held = std::max(number_in(group / "memory.current", 0),  // one of the two exists
                                        number_in(group / "memory.usage_in_bytes", 0));
    const fs::path statistics = group / "memory.stat";
    const std::uint64_t cache = std::max(number_of(statistics, "file"), number_of(statistics, "total_cache"));
    const std::uint64_t kept = held - std::min(held, cache);
    bytes = std::min(bytes, limit - std::min(limit, kept));
  }
  return bytes;
}

}  // namespace octavo
