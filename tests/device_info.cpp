// device_info.cpp - tests of cuda/device_info.h: on a machine with a GPU the devices, on any other one the
// reason. In a build without CUDA this file holds no test.
#ifdef OCTAVO_WITH_CUDA
#include "device_info.h"

#include <regex>

#include "catch.h"

namespace octavo {
namespace {

TEST_CASE("CUDA devices are listed, or one line says why there are none", "[device_info]") {
  std::string why = "left over";
  const std::vector<CudaDevice> devices = cuda_devices(why);
  CHECK(devices.empty() == !why.empty());
  CHECK(why.find('\n') == std::string::npos);

  std::string again;
  CHECK(cuda_devices(again).size() == devices.size());  // the first call left no error behind
  CHECK(again == why);
}

TEST_CASE("CUDA versions read as versions, the driver's also as none", "[device_info]") {
  const CudaVersions versions = cuda_versions();
  CHECK(std::regex_match(versions.runtime, std::regex("[0-9]+\\.[0-9]+")));
  CHECK(std::regex_match(versions.cublaslt, std::regex("[0-9]+\\.[0-9]+\\.[0-9]+")));
  CHECK(std::regex_match(versions.driver, std::regex("none|[0-9]+\\.[0-9]+")));
}

TEST_CASE("a CUDA device has a name, a capability and memory", "[device_info][gpu]") {
  std::string why;
  const std::vector<CudaDevice> devices = cuda_devices(why);
  if (devices.empty()) {
    WARN("SKIPPED: no CUDA device: " << why);
    return;
  }
  for (const CudaDevice& device : devices) {
    INFO(device.name);
    CHECK_FALSE(device.name.empty());
    CHECK(device.capability_major >= 3);
    CHECK(device.multiprocessors > 0);
    CHECK(device.memory_bytes > (std::uint64_t{1} << 30));
    CHECK(device.available_bytes <= device.memory_bytes);
    CHECK(device.unusable_because.empty() == (device.capability_major >= 8));
  }
}

}  // namespace
}  // namespace octavo
#endif
