// fixture.h - paths of the files under tests/fixtures.
#pragma once

#include <filesystem>
#include <string>

namespace octavo::testing {

inline std::string fixture(const std::string& name) {
  return (std::filesystem::path(__FILE__).parent_path() / "fixtures" / name).string();
}

}  // namespace octavo::testing
