// output_folder.cpp - a folder is there complete, or not at all.
#include "data/output_folder.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <unistd.h>

#include <sys/stat.h>
#include <sys/syscall.h>

#include "catch.h"
#include "data/pack.h"
#include "refusal.h"
#include "temp_dir.h"

using namespace octavo;
namespace fs = std::filesystem;

namespace {
std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

ino_t inode(const fs::path& path) {
  struct stat status {};
  REQUIRE(stat(path.c_str(), &status) == 0);
  return status.st_ino;
}

std::set<ino_t>* synced = nullptr;  // files and folders that were put on the disk, where a test asks
}  // namespace

// In place of the C library's.
extern "C" int fsync(int fd) {
  struct stat status {};
  if (synced != nullptr && fstat(fd, &status) == 0) synced->insert(status.st_ino);
  return static_cast<int>(syscall(SYS_fsync, fd));
}

TEST_CASE("output folder: every file in it, itself and its place are on the disk when it is there") {
  const testing::TempDir dir;
  const std::string text = dir.file("a.txt", std::string(100, 'x'));
  const fs::path out = dir.path / "made" / "here";
  std::set<ino_t> seen;
  synced = &seen;
  pack_text({{text}, out.string(), "bytes", 60, 0}, [](const std::string&) {});
  synced = nullptr;
  CHECK(entries(out) == 5);  // two shards, dataset.json, two of the tokenizer
  for (const fs::directory_entry& entry : fs::directory_iterator(out)) {
    INFO(entry.path().string());
    CHECK(seen.count(inode(entry.path())) == 1);
  }
  for (const fs::path& folder : {out, out.parent_path(), dir.path}) CHECK(seen.count(inode(folder)) == 1);
}

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
    NewFolder folder((dir.path / "made" / "for" / "out").string());
    std::ofstream(folder.file("a")) << "content";
  }
  CHECK(entries(dir.path) == 0);
  // Folders that somebody else has begun to use stay.
  {
    NewFolder folder((dir.path / "made" / "for" / "out").string());
    dir.file("made/theirs", "theirs");
  }
  CHECK(entries(dir.path / "made") == 1);
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
