// memory_usage.cpp - the kernel's account of this process (proc(5)).
#include "memory_usage.h"

#include <fstream>
#include <malloc.h>
#include <string>

namespace octavo {
namespace {

/// A field of /proc/self/status, given in kB there, as bytes.
std::uint64_t status_field(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) != 0) continue;
    return std::stoull(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

}  // namespace

std::uint64_t resident_bytes() {
  return status_field("VmRSS");
}

std::uint64_t peak_resident_bytes() {
  return status_field("VmHWM");
}

bool reset_peak_resident() {
  ::malloc_trim(0);
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush;  // proc(5): "5" resets the peak resident set size
  return clear.good();
}

}  // namespace octavo
