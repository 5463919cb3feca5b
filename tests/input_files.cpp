// input_files.cpp - the order of globs, and what is refused.
#include "data/input_files.h"

#include <filesystem>

#include "catch.h"
#include "refusal.h"
#include "temp_dir.h"

using namespace octavo;
using testing::refusal;

TEST_CASE("inputs: entries in order, each glob's matches sorted by bytes") {
  const testing::TempDir dir;
  for (const char* name : {"b.txt", "a.txt", "B.txt", "a10.txt", "a2.txt", "sub/c.txt", "sub/deep/a.txt",
                           ".hidden.txt", "sub/.git/x.txt", "a.md"}) {
    dir.file(name, "x");
  }
  std::filesystem::create_directory(dir.path / "folder.txt");
  const std::string root = dir.path.string() + "/";
  const auto names = [&](const std::vector<std::string>& patterns) {
    std::vector<std::string> absolute;
    for (const std::string& p : patterns) absolute.push_back(root + p);
    std::vector<std::string> found = expand_inputs(absolute, "data.train");
    for (std::string& f : found) f = f.substr(root.size());
    return found;
  };
  using Names = std::vector<std::string>;
  CHECK(names({"*.txt"}) == Names{"B.txt", "a.txt", "a10.txt", "a2.txt", "b.txt"});
  CHECK(names({"b.txt", "a?.txt", "a.md"}) == Names{"b.txt", "a2.txt", "a.md"});
  CHECK(names({"a.txt", "[ab].txt"}) == Names{"a.txt", "a.txt", "b.txt"});
  CHECK(names({"**/a*.txt"}) == Names{"a.txt", "a10.txt", "a2.txt", "sub/deep/a.txt"});
  CHECK(names({"sub/**/*"}) == Names{"sub/c.txt", "sub/deep/a.txt"});
  CHECK(names({"s*/**/*"}) == Names{"sub/c.txt", "sub/deep/a.txt"});
}

TEST_CASE("inputs: a file whose name looks like a glob is that file") {
  const testing::TempDir dir;
  dir.file("x1", "");
  const std::string file = dir.file("x[1]", "");
  CHECK(expand_inputs({file}, "data.train") == std::vector<std::string>{file});
}

TEST_CASE("inputs: faults name the list, the entry and what is allowed") {
  const testing::TempDir dir;
  const std::string root = dir.path.string();
  const auto expand = [](const std::string& p) { return refusal([&] { expand_inputs({p}, "data.train"); }); };
  CHECK(expand(root) ==
        "data.train: " + root + " is a folder; allowed: a file, or a glob such as " + root + "/*");
  CHECK(expand(root + "/none") ==
        "data.train: " + root + "/none does not exist; allowed: a readable file or a glob");
  CHECK(expand(root + "/*.txt") ==
        "data.train: the glob " + root + "/*.txt matches 0 files; allowed: at least 1");
  CHECK_THAT(expand(root + "/**/a/b"), ContainsSubstring("'a/b' in the glob"));
  CHECK_THAT(refusal([] { expand_inputs({}, "data.val"); }), ContainsSubstring("data.val: 0 files named"));
}

TEST_CASE("mapped files: content, empty files, faults") {
  const testing::TempDir dir;
  const MappedFile file(dir.file("a", std::string("b\0c", 3)));
  CHECK(file.text() == std::string("b\0c", 3));
  CHECK(MappedFile(dir.file("empty", "")).size() == 0);
  CHECK_THAT(refusal([&] { MappedFile f(dir.path.string()); }),
             ContainsSubstring("is a folder; allowed: a file"));
  CHECK_THAT(refusal([&] { MappedFile f((dir.path / "none").string()); }),
             ContainsSubstring("cannot be read: No such file or directory"));
  CHECK_THAT(refusal([&] { MappedFile f("/dev/null"); }), ContainsSubstring("not a regular file"));
}
