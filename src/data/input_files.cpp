// input_files.cpp - see input_files.h.

#include "data/input_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fnmatch.h>
#include <glob.h>
#include <unistd.h>
#include <utility>

#include <sys/mman.h>
#include <sys/stat.h>

#include "error.h"
#include "files.h"

namespace octavo {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kDeep = "/**/";

// Files and folders that an ordinary glob matches, in no particular order.
std::vector<std::string> glob_once(const std::string& pattern) {
  glob_t found{};
  const int rc = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + (rc == 0 ? found.gl_pathc : 0));
  globfree(&found);
  if (rc == GLOB_NOSPACE) fail("glob {}: out of memory", pattern);
  return paths;
}

// BASE/**/NAME: every file below the folders BASE whose name matches NAME.
std::vector<std::string> glob_deep(const std::string& pattern, std::string_view what) {
  const std::size_t at = pattern.find(kDeep);
  const std::string base = at == 0 ? "/" : pattern.substr(0, at);
  const std::string name = pattern.substr(at + kDeep.size());
  if (name.empty() || name.find('/') != std::string::npos) {
    refuse("{}: '{}' in the glob {}; allowed: /**/ once, with one file name or pattern behind it", what, name,
           pattern);
  }
  std::vector<std::string> paths;
  for (const std::string& folder : glob_once(base)) {
    std::error_code error;
    fs::recursive_directory_iterator it(folder, error);
    for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      const std::string file = it->path().filename().string();
      const bool hidden = file.front() == '.';
      std::error_code ignored;
      if (hidden && it->is_directory(ignored)) it.disable_recursion_pending();
      if (!hidden && fnmatch(name.c_str(), file.c_str(), 0) == 0) paths.push_back(it->path().string());
    }
    if (error) refuse("{}: cannot read a folder below {}: {}", what, folder, error.message());
  }
  return paths;
}

bool is_glob(const std::string& pattern) {
  return pattern.find_first_of("*?[") != std::string::npos;
}

/// The files that a path or a glob stands for, in order; none where nothing of that name exists.
std::vector<std::string> matches_of(const std::string& pattern, std::string_view what) {
  std::error_code ignored;
  if (is_glob(pattern) ? fs::exists(pattern, ignored) : path_exists(pattern)) {
    if (is_folder(pattern)) {
      refuse("{}: {} is a folder; allowed: a file, or a glob such as {}", what, pattern,
             (fs::path(pattern) / "*").string());
    }
    return {pattern};
  }
  if (!is_glob(pattern)) return {};
  std::vector<std::string> matches =
      pattern.find(kDeep) == std::string::npos ? glob_once(pattern) : glob_deep(pattern, what);
  std::erase_if(matches, is_folder);
  std::sort(matches.begin(), matches.end());
  return matches;
}

}  // namespace

std::string missing_input(const std::vector<std::string>& patterns, std::string_view what) {
  for (const std::string& pattern : patterns)
    if (matches_of(pattern, what).empty()) return pattern;
  return "";
}

std::vector<std::string> expand_inputs(const std::vector<std::string>& patterns, std::string_view what) {
  std::vector<std::string> files;
  for (const std::string& pattern : patterns) {
    const std::vector<std::string> matches = matches_of(pattern, what);
    if (matches.empty() && is_glob(pattern))
      refuse("{}: the glob {} matches 0 files; allowed: at least 1", what, pattern);
    if (matches.empty()) refuse("{}: {} does not exist; allowed: a readable file or a glob", what, pattern);
    files.insert(files.end(), matches.begin(), matches.end());
  }
  if (files.empty()) refuse("{}: 0 files named; allowed: at least 1", what);
  return files;
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) refuse("{}: cannot be read: {}; allowed: a readable file", path, std::strerror(errno));
  struct stat status {};
  int error = fstat(fd, &status) == 0 ? 0 : errno;
  const bool regular = error == 0 && S_ISREG(status.st_mode);
  if (regular && status.st_size > 0) {
    size_ = static_cast<std::size_t>(status.st_size);
    void* const p = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
      error = errno;
    } else {
      data_ = static_cast<const std::uint8_t*>(p);
    }
  }
  ::close(fd);
  if (error != 0) {
    refuse(
        "{}: cannot be mapped ({} bytes): {}; allowed: a readable file (very many small ones: pack them "
        "with octavo data pack)",
        path, size_, std::strerror(error));
  }
  if (!regular) {
    refuse("{}: is {}; allowed: a file", path, S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::uint8_t*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

}  // namespace octavo
