// `octavo info`: what this machine is, which libraries the program uses, which precisions run here, and why
// not.
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "backend.h"
#include "commands/commands.h"
#include "error.h"
#include "files.h"
#include "machine.h"
#include "precision/fp8_support.h"

#ifdef OCTAVO_WITH_CUDA
#include "device_info.h"
#endif

namespace octavo {
namespace {

using Json = nlohmann::ordered_json;

/// Whether a mode of precision.mode runs on a backend, by the path of its products.
Json precision_row(const Backend& backend, const std::string& mode) {
  OpDesc product{.op = "matmul", .dtype = DType::f32, .m = 1024, .n = 1024, .k = 1024};
  product.tf32 = mode == "tf32";
  if (mode == "bf16") product.dtype = DType::bf16;
  if (mode == "fp8") product.dtype = DType::e4m3;
  const Support support = backend.supports(product);
  return {{"mode", mode}, {"runs", support.yes}, {"path", support.path}, {"reason", support.reason}};
}

/// CUDA devices of this machine, or why there are none to train on.
Json cuda_json() {
  Json cuda{{"built", false}, {"devices", Json::array()}};
#ifdef OCTAVO_WITH_CUDA
  std::string why_none;
  cuda["built"] = true;
  const CudaVersions versions = cuda_versions();
  cuda["versions"] = {
      {"driver", versions.driver}, {"runtime", versions.runtime}, {"cublaslt", versions.cublaslt}};
  for (const CudaDevice& d : cuda_devices(why_none))
    cuda["devices"].push_back({{"name", d.name},
                               {"capability", fmt::format("{}.{}", d.capability_major, d.capability_minor)},
                               {"multiprocessors", d.multiprocessors},
                               {"memory_bytes", d.memory_bytes},
                               {"available_bytes", d.available_bytes},
                               {"l2_bytes", d.l2_bytes},
                               {"shared_bytes_per_block", d.shared_bytes_per_block},
                               {"unusable_because", d.unusable_because}});
  cuda["why_none"] = why_none;
#else
  cuda["why_none"] = "this program was built without CUDA (preset cpu)";
#endif
  return cuda;
}

Json info_json() {
  const std::unique_ptr<Backend> cpu = make_cpu_backend(0, pretended_capability());
  Json precisions = Json::array();
  for (const char* mode : {"fp32", "tf32", "bf16", "fp8"}) precisions.push_back(precision_row(*cpu, mode));
  return {{"format_version", kFormatVersion},
          {"machine", machine_json()},
          {"versions", versions_json()},
          {"environment", environment_json()},
          {"backends",
           {{{"name", cpu->name()}, {"description", cpu->description()}, {"precisions", precisions}}}},
          {"cuda", cuda_json()}};
}

void print_object(const Json& object, const std::string& indent) {
  for (const auto& [key, value] : object.items()) {
    if (value == "") continue;  // nothing to say
    std::printf("%s%-22s %s\n", indent.c_str(), key.c_str(),
                value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
  }
}

void print_text(const Json& info) {
  std::printf("machine\n");
  print_object(info["machine"], "  ");
  std::printf("versions\n");
  print_object(info["versions"], "  ");
  if (!info["environment"].empty()) {
    std::printf("environment variables that change numbers\n");
    print_object(info["environment"], "  ");
  }
  for (const Json& backend : info["backends"]) {
    std::printf("%s: %s\n", backend["name"].get<std::string>().c_str(),
                backend["description"].get<std::string>().c_str());
    for (const Json& p : backend["precisions"]) {
      const bool runs = p["runs"].get<bool>();
      std::printf("  %-6s %-4s %s\n", p["mode"].get<std::string>().c_str(), runs ? "yes" : "no",
                  p[runs ? "path" : "reason"].get<std::string>().c_str());
    }
  }
  const Json& cuda = info["cuda"];
  if (cuda["devices"].empty()) std::printf("cuda: none: %s\n", cuda["why_none"].get<std::string>().c_str());
  if (cuda.contains("versions")) {
    std::printf("cuda versions\n");
    print_object(cuda["versions"], "  ");
  }
  for (const Json& d : cuda["devices"]) {
    std::printf("cuda device\n");
    print_object(d, "  ");
  }
}

}  // namespace

void register_info(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("info", "Show devices, libraries, which precisions run here, and why not");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([&action, json] {
    action = [json] {
      const Json info = info_json();
      if (*json)
        std::printf("%s\n", info.dump(2).c_str());
      else
        print_text(info);
      return 0;
    };
  });
}

}  // namespace octavo
