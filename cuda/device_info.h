// device_info.h - the CUDA devices of this machine and the versions of the libraries that drive them. Holds
// no CUDA header, so that host code may include it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octavo {

struct CudaDevice {
  int index = 0;     // as CUDA_VISIBLE_DEVICES leaves them
  std::string name;  // "NVIDIA H200"
  int capability_major = 0, capability_minor = 0;
  int multiprocessors = 0;
  std::uint64_t memory_bytes = 0;            // of the device
  std::uint64_t available_bytes = 0;         // not in use by any process now
  std::uint64_t l2_bytes = 0;                // level-2 cache
  std::uint64_t shared_bytes_per_block = 0;  // most shared memory that one block may ask for
  std::string unusable_because;              // why Octavo cannot train on it; empty where it can
};

/// The devices of this machine, in CUDA's order. Where there are none, `why_none` says why in one line (no
/// driver, a driver older than the runtime, none visible); else it is emptied. Throws nothing but
/// std::bad_alloc, and leaves no error behind for later CUDA calls.
std::vector<CudaDevice> cuda_devices(std::string& why_none);

/// Versions as text, "13.0"; `driver` is the newest CUDA that the installed driver serves, "none" without a
/// driver.
struct CudaVersions {
  std::string driver, runtime, cublaslt;
};
CudaVersions cuda_versions();

}  // namespace octavo
