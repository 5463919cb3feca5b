#include "fixture.h"

namespace octavo::testing {

// From the build, not from __FILE__: a compiler cache may make that relative to the build folder.
std::filesystem::path source_tree() {
  return OCTAVO_SOURCE_TREE;
}

}  // namespace octavo::testing
