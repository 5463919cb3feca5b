// configs.cpp - every file of configs/ is a config or a sweep that loads.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "catch.h"
#include "config.h"
#include "files.h"
#include "fixture.h"
#include "sweep.h"

namespace octavo {
namespace {

TEST_CASE("every file of configs/ loads, each run of a sweep with a folder of its own", "[configs]") {
  const std::filesystem::path folder = testing::source_tree() / "configs";
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = entry.path().string();
    INFO(file);
    ++seen;
    if (!parse_json_with_comments(read_whole_file(file), file).contains("base")) {
      CHECK(load_config(file).name == entry.path().stem().string());
      continue;
    }
    std::vector<std::string> folders;
    for (const SweepRun& run : load_sweep(file, {}).runs)
      folders.push_back(load_config(load_sweep(file, {}).base, run.overrides).output.dir);
    CHECK(folders.size() >= 2);
    std::sort(folders.begin(), folders.end());
    CHECK(std::adjacent_find(folders.begin(), folders.end()) == folders.end());
  }
  CHECK(seen >= 8);
}

}  // namespace
}  // namespace octavo
