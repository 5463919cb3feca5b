// process_limits.h - what this process may use of its machine: cores and memory, as its affinity and its
// control groups (containers, batch systems; version 1 and 2) leave them.
#pragma once

#include <cstdint>
#include <filesystem>

namespace octavo {

/// Cores this process may keep busy: those of its affinity, or fewer where a group's quota of processor time
/// says so (rounded up). `root` is where proc and sys are found; tests give their own.
int usable_cores(const std::filesystem::path& root = "/");

/// Memory of the machine in bytes, or of the control group that holds the process to less.
std::uint64_t memory_limit(const std::filesystem::path& root = "/");

/// Bytes that may still be taken: the kernel's estimate for the machine, or what is left of a group's limit
/// where that is less. What a group holds as cache of files counts as free: the kernel gives it up first.
std::uint64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace octavo
