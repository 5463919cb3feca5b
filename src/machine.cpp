// machine.cpp - what Linux, the compiler and the libraries say of themselves.
#include "machine.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <dnnl.h>
#include <fstream>
#include <set>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/utsname.h>

#include "console.h"
#include "error.h"
#include "process_limits.h"
#include "version.h"

namespace octavo {
namespace {

using Json = nlohmann::ordered_json;

#if defined(__x86_64__)
constexpr const char* kArchitecture = "x86-64 baseline, hot loops also for AVX2 and AVX-512";
#elif defined(__aarch64__)
constexpr const char* kArchitecture = "aarch64";
#else
constexpr const char* kArchitecture = "the one built on";
#endif

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\"");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\"\r") - first + 1);
}

/// Model name and the number of distinct (package, core) pairs.
void read_processor(Machine& machine) {
  std::ifstream info("/proc/cpuinfo");
  std::set<std::pair<std::string, std::string>> cores;
  std::string package;
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = trimmed(line.substr(0, colon)), value = trimmed(line.substr(colon + 1));
    if (key == "model name" && machine.processor.empty()) machine.processor = value;
    if (key == "physical id") package = value;
    if (key == "core id") cores.emplace(package, value);
  }
  machine.cores = static_cast<int>(cores.size());
}

std::string operating_system() {
  std::ifstream release("/etc/os-release");
  for (std::string line; std::getline(release, line);) {
    if (line.rfind("PRETTY_NAME=", 0) == 0) return trimmed(line.substr(12));
  }
  return "Linux";
}

}  // namespace

Machine this_machine() {
  Machine machine;
  read_processor(machine);
  utsname system{};
  ::uname(&system);
  if (machine.processor.empty()) machine.processor = std::string("unnamed ") + system.machine;
  machine.usable_threads = usable_cores();
  machine.memory_bytes = memory_limit();
  machine.os = operating_system();
  machine.kernel = fmt::format("{} {} {}", system.sysname, system.release, system.machine);
  return machine;
}

std::string describe(const Machine& machine) {
  std::string text = machine.processor;
  if (machine.cores > 0) text += fmt::format(", {} core{}", machine.cores, machine.cores == 1 ? "" : "s");
  return text + fmt::format(" ({} usable thread{}), {}, {}", machine.usable_threads,
                            machine.usable_threads == 1 ? "" : "s",
                            format_bytes(static_cast<double>(machine.memory_bytes)), machine.os);
}

Json machine_json() {
  const Machine machine = this_machine();
  Json json;
  json["processor"] = machine.processor;
  json["cores"] = machine.cores;
  json["usable_threads"] = machine.usable_threads;
  json["memory_bytes"] = machine.memory_bytes;
  json["os"] = machine.os;
  json["kernel"] = machine.kernel;
  return json;
}

std::string onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
}

Json versions_json() {
  Json json;
  json["octavo"] = OCTAVO_VERSION;
  json["commit"] = OCTAVO_COMMIT;
#if defined(__clang__)
  json["compiler"] = "Clang " __clang_version__;
#else
  json["compiler"] = "GCC " __VERSION__;
#endif
#ifdef NDEBUG
  json["assertions"] = false;
#else
  json["assertions"] = true;
#endif
  json["onednn"] = onednn_version();
  return json;
}

Json environment_json() {
  constexpr std::array<std::string_view, 6> kPrefixes{"CUBLAS_", "DNNL_", "KMP_", "NCCL_", "OMP_", "ONEDNN_"};
  constexpr std::array<std::string_view, 2> kNames{"GLIBC_TUNABLES", "NVIDIA_TF32_OVERRIDE"};
  std::vector<std::pair<std::string, std::string>> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool wanted = std::any_of(kPrefixes.begin(), kPrefixes.end(),
                                    [&](std::string_view prefix) { return name.rfind(prefix, 0) == 0; }) ||
                        std::find(kNames.begin(), kNames.end(), name) != kNames.end();
    if (wanted && name.size() < text.size()) found.emplace_back(name, text.substr(name.size() + 1));
  }
  std::sort(found.begin(), found.end());
  Json json = Json::object();
  for (const auto& [name, value] : found) json[name] = value;
  return json;
}

std::string version_text() {
  return OCTAVO_VERSION " (commit " OCTAVO_COMMIT ")";
}

std::string build_text() {
  const Json versions = versions_json();
  const std::string cuda = OCTAVO_CUDA_VERSION;
  return fmt::format("octavo {}\nbackends: CPU, {}\nprocessors: {}\ncompiler: {}\noneDNN: {}", version_text(),
                     cuda.empty() ? "no CUDA in this build" : "CUDA " + cuda, kArchitecture,
                     versions["compiler"].get<std::string>(), versions["onednn"].get<std::string>());
}

}  // namespace octavo
