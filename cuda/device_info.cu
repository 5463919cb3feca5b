// device_info.cu - asks the CUDA runtime what devices there are. Runs no kernel.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include "device_info.h"

namespace octavo {
namespace {

// The kernels are built for this capability and later ones.
constexpr int kOldestMajor = 8;

std::string dotted(int version) {  // 13000 -> "13.0"
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string reason_of(cudaError_t status) {
  cudaGetLastError();  // the runtime keeps the error until somebody fetches it
  return std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status);
}

std::uint64_t attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, device) == cudaSuccess ? static_cast<std::uint64_t>(value) : 0;
}

CudaDevice describe(int index) {
  CudaDevice device;
  device.index = index;
  cudaDeviceProp properties{};
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, index); status != cudaSuccess) {
    device.unusable_because = reason_of(status);
    return device;
  }
  device.name = properties.name;
  device.capability_major = properties.major;
  device.capability_minor = properties.minor;
  device.multiprocessors = properties.multiProcessorCount;
  device.memory_bytes = properties.totalGlobalMem;
  device.l2_bytes = attribute(cudaDevAttrL2CacheSize, index);
  device.shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  if (properties.major < kOldestMajor) {
    device.unusable_because = "capability " + std::to_string(properties.major) + "." +
                              std::to_string(properties.minor) +
                              "; allowed: 8.0 or later, or \"device\": \"cpu\"";
    return device;
  }

  // Asking for free memory makes a context on the device, so the caller's current device is put back.
  int former = 0;
  std::size_t available = 0, total = 0;
  cudaError_t status = cudaGetDevice(&former);
  if (status == cudaSuccess) status = cudaSetDevice(index);
  if (status == cudaSuccess) status = cudaMemGetInfo(&available, &total);
  if (status != cudaSuccess) device.unusable_because = reason_of(status);
  device.available_bytes = available;
  if (cudaSetDevice(former) != cudaSuccess) cudaGetLastError();
  return device;
}

}  // namespace

std::vector<CudaDevice> cuda_devices(std::string& why_none) {
  why_none.clear();
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    why_none = reason_of(status);
    int driver = 0;
    // Without a driver the runtime says "insufficient" as well.
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
      why_none = "no NVIDIA driver is installed";
    return {};
  }
  if (count == 0) why_none = "the driver shows no device";
  std::vector<CudaDevice> devices;
  for (int i = 0; i < count; ++i) devices.push_back(describe(i));
  return devices;
}

CudaVersions cuda_versions() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const std::size_t cublaslt = cublasLtGetVersion();  // 130100 is 13.1.0
  cudaGetLastError();
  return {.driver = driver == 0 ? "none" : dotted(driver),
          .runtime = dotted(runtime),
          .cublaslt = std::to_string(cublaslt / 10000) + "." + std::to_string(cublaslt / 100 % 100) + "." +
                      std::to_string(cublaslt % 100)};
}

}  // namespace octavo
