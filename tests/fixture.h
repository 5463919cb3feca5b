// fixture.h - where the tests find files of the source tree, from whatever folder they are run.
#pragma once

#include <filesystem>
#include <string>

namespace octavo::testing {

/// The root of the source tree.
std::filesystem::path source_tree();

inline std::string fixture(const std::string& name) {
  return (source_tree() / "tests" / "fixtures" / name).string();
}

}  // namespace octavo::testing
