// output_folder.cpp - a folder is there complete, or not at all.
#include "data/output_folder.h"

#include <filesystem>
#include <fstream>

#include "catch.h"
#include "refusal.h"
#include "temp_dir.h"

using namespace octavo;
namespace fs = std::filesystem;

namespace {
std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}
}  // namespace

TEST_CASE("output folder: appears when published, with everything in it") {
  const testing::TempDir dir;
  const fs::path out = dir.path / "made" / "here";
  {
    NewFolder folder(out.string() + "/");
    std::ofstream(folder.file("a")) << "content";
    CHECK_FALSE(fs::exists(out));
    folder.publish();
  }
  CHECK(fs::exists(out / "a"));
  CHECK(entries(dir.path / "made") == 1);
}

TEST_CASE("output folder: leaves nothing behind when it is not published") {
  const testing::TempDir dir;
  {
    NewFolder folder((dir.path / "out").string());
    std::ofstream(folder.file("a")) << "content";
  }
  CHECK(entries(dir.path) == 0);
}

TEST_CASE("output folder: an empty one is taken, a used one is not") {
  const testing::TempDir dir;
  fs::create_directory(dir.path / "empty");
  NewFolder((dir.path / "empty").string()).publish();
  CHECK(entries(dir.path) == 1);
  dir.file("used/a", "mine");
  const std::string used = (dir.path / "used").string();
  CHECK(testing::refusal([&] { NewFolder folder(used); }) ==
        "output folder " + used + ": exists and is not an empty folder; allowed: a new or empty folder");
  const std::string file = dir.file("file", "mine");
  CHECK_THAT(testing::refusal([&] { NewFolder folder(file); }), ContainsSubstring("not an empty folder"));
  CHECK(entries(dir.path) == 3);

  // Somebody fills the place while the folder is being made: their files stay.
  NewFolder late((dir.path / "late").string());
  dir.file("late/theirs", "theirs");
  CHECK_THROWS_AS(late.publish(), RunError);
  CHECK(fs::exists(dir.path / "late" / "theirs"));
}
