// output_folder.cpp - see output_folder.h.

#include "data/output_folder.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <unistd.h>

#include <sys/stat.h>

#include "error.h"
#include "files.h"

namespace octavo {

namespace fs = std::filesystem;

NewFolder::NewFolder(const std::string& path) : path_(path) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  std::error_code error;
  if (path_exists(path_) && (!is_folder(path_) || !fs::is_empty(path_, error))) {
    refuse("output folder {}: exists and is not an empty folder; allowed: a new or empty folder", path_);
  }
  const fs::path parent = fs::path(path_).parent_path();
  if (!parent.empty()) fs::create_directories(parent, error);
  if (error) refuse("output folder {}: cannot make {}: {}", path_, parent.string(), error.message());
  temporary_ = path_ + ".partial-XXXXXX";
  if (mkdtemp(temporary_.data()) == nullptr) {
    refuse("output folder {}: cannot make a folder in {}: {}", path_, parent.empty() ? "." : parent.string(),
           std::strerror(errno));
  }
  // mkdtemp's folder is private; the published one gets what a plain mkdir would have given.
  const mode_t mask = umask(0);
  umask(mask);
  chmod(temporary_.c_str(), 0777 & ~mask);
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!published_) fs::remove_all(temporary_, ignored);
}

void NewFolder::publish() {
  // rename() replaces an empty folder and refuses a used one, so nobody's files are ever overwritten.
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("output folder {}: cannot rename {}: {}", path_, temporary_, std::strerror(errno));
  }
  published_ = true;
  sync_folder(fs::path(path_).parent_path());
}

}  // namespace octavo
