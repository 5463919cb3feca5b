// machine.h - the machine, the versions and the environment that a run's numbers depend on. No host name, no
// user name: what stands here is meant to be shared.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace octavo {

struct Machine {
  std::string processor;           // model name
  int cores = 0;                   // physical cores of the machine; 0 where the system does not say
  int usable_threads = 0;          // hardware threads that this process may use
  std::uint64_t memory_bytes = 0;  // of the machine, or of the process's control group where that is smaller
  std::string os;                  // "Debian GNU/Linux 12 (bookworm)"
  std::string kernel;              // "Linux 6.1.0 x86_64"
};
Machine this_machine();

/// Short form for receipts: "AMD EPYC 7B13, 2 of 64 cores ..., 16.0 GiB".
std::string describe(const Machine& machine);

nlohmann::ordered_json machine_json();
/// "2.6.0", of the library that runs.
std::string onednn_version();

/// octavo (version, commit), compiler, oneDNN, and the build's kind.
nlohmann::ordered_json versions_json();
/// Variables that change numbers or their order and are set: CUBLAS_*, DNNL_*, GLIBC_TUNABLES, KMP_*, NCCL_*,
/// NVIDIA_TF32_OVERRIDE, OMP_*, ONEDNN_*; sorted.
nlohmann::ordered_json environment_json();

/// "0.1.0 (commit abc1234)".
std::string version_text();
/// What --version prints, in lines: version and commit, compiler and libraries, and which backends and
/// processors the build holds.
std::string build_text();

}  // namespace octavo
