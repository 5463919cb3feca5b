// Files are written whole or not at all, and a damaged one is named.
#include "files.h"

#include <cmath>
#include <filesystem>
#include <iterator>
#include <string>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "catch.h"
#include "error.h"
#include "file_size_limit.h"
#include "temp_dir.h"

using namespace octavo;
namespace fs = std::filesystem;

namespace {

long entries(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

}  // namespace

TEST_CASE("files: a file is replaced whole, any bytes survive") {
  const testing::TempDir dir;
  const std::string first("a\0b\n\xff", 5), second(100000, 'x');
  write_file_atomically(dir.path / "f", first);
  CHECK(read_whole_file(dir.path / "f") == first);
  write_file_atomically(dir.path / "f", second);
  CHECK(read_whole_file(dir.path / "f") == second);
  write_file_atomically(dir.path / "f", "");
  CHECK(read_whole_file(dir.path / "f").empty());
  CHECK(entries(dir.path) == 1);
}

TEST_CASE("files: a full disk leaves the former file and no other") {
  const testing::TempDir dir;
  write_file_atomically(dir.path / "f", "former");
  {
    const testing::FileSizeLimit limit(1000);
    CHECK_THROWS_WITH(write_file_atomically(dir.path / "f", std::string(5000, 'x')),
                      ContainsSubstring("cannot write " + (dir.path / "f").string() + ": File too large"));
  }
  CHECK(read_whole_file(dir.path / "f") == "former");
  CHECK(entries(dir.path) == 1);
}

TEST_CASE("files: a missing folder is a failed run, a missing input a wrong request") {
  const testing::TempDir dir;
  CHECK_THROWS_AS(write_file_atomically(dir.path / "none" / "f", "x"), RunError);
  CHECK_FALSE(fs::exists(dir.path / "none"));
  CHECK_THROWS_AS(read_whole_file(dir.path / "none"), RequestError);
  CHECK_THROWS_WITH(read_whole_file(dir.path / "none"), ContainsSubstring("No such file"));
  CHECK_THROWS_WITH(read_whole_file(dir.path), ContainsSubstring("it is a folder"));
}

TEST_CASE("files: what the system does not say is an error with the path, no \"no\"") {
  const testing::TempDir dir;
  const fs::path file = dir.file("f", "x"), link = dir.path / "loop";
  CHECK(path_exists(file));
  CHECK_FALSE(path_exists(file / "below a file"));
  CHECK_FALSE(path_exists(dir.path / "none"));
  CHECK(is_folder(dir.path));
  CHECK_FALSE(is_folder(file));
  fs::create_symlink(link, link);
  for (const fs::path& path : {link, dir.path / std::string(300, 'n')}) {
    CHECK_THROWS_AS(path_exists(path), RequestError);
    CHECK_THROWS_WITH(is_folder(path), ContainsSubstring("cannot read " + path.string() + ": "));
  }
  if (geteuid() == 0) return;  // to whom nothing is denied
  fs::create_directory(dir.path / "closed");
  fs::permissions(dir.path / "closed", fs::perms::none);
  CHECK_THROWS_WITH(path_exists(dir.path / "closed" / "f"), ContainsSubstring("Permission denied"));
  fs::permissions(dir.path / "closed", fs::perms::owner_all);
}

TEST_CASE("files: JSON has its version first, non-finite numbers are null, odd bytes are replaced") {
  const testing::TempDir dir;
  write_json_atomically(dir.path / "f.json", {{"b", 1}, {"a", std::nan("")}, {"name", "caf\xe9"}});
  CHECK(read_whole_file(dir.path / "f.json")
            .rfind("{\n  \"format_version\": 1,\n  \"b\": 1,\n  \"a\": null", 0) == 0);
  const nlohmann::ordered_json read = read_json_object(dir.path / "f.json");
  CHECK(read["name"] == "caf\xef\xbf\xbd");
  CHECK(read["format_version"] == 1);
}

TEST_CASE("files: damaged JSON is refused with file and fault") {
  const testing::TempDir dir;
  const std::string torn = dir.file("torn.json", "{\"format_version\": 1, \"a\": [1, 2");
  CHECK_THROWS_WITH(read_json_object(torn), ContainsSubstring(torn) && ContainsSubstring("not valid JSON"));
  CHECK_THROWS_WITH(read_json_object(dir.file("list.json", "[1]")), ContainsSubstring("found array"));
  CHECK_THROWS_WITH(read_json_object(dir.file("old.json", "{}")),
                    ContainsSubstring("found none; allowed: 1"));
  CHECK_THROWS_WITH(read_json_object(dir.file("new.json", "{\"format_version\": 7}")),
                    ContainsSubstring("found 7; allowed: 1"));
}
