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
  const fs::path parent = fs::absolute(path_).parent_path();
  for (fs::path p = parent; !path_exists(p) && p.has_relative_path(); p = p.parent_path())
    parents_.push_back(p);
  fs::create_directories(parent, error);
  if (error) {
    remove_parents();
    refuse("output folder {}: cannot make {}: {}", path_, parent.string(), error.message());
  }
  temporary_ = path_ + ".partial-XXXXXX";
  if (mkdtemp(temporary_.data()) == nullptr) {
    const int reason = errno;
    remove_parents();
    refuse("output folder {}: cannot make a folder in {}: {}", path_, parent.string(), std::strerror(reason));
  }
  // mkdtemp's folder is private; the published one gets what a plain mkdir would have given.
  const mode_t mask = umask(0);
  umask(mask);
  chmod(temporary_.c_str(), 0777 & ~mask);
}

NewFolder::~NewFolder() {
  if (published_) return;
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
  remove_parents();
}

void NewFolder::remove_parents() const {
  // Only empty ones: somebody else may have begun to use them.
  std::error_code ignored;
  for (const fs::path& parent : parents_) fs::remove(parent, ignored);
}

void NewFolder::publish() {
  sync_folder(temporary_);
  // rename() replaces an empty folder and refuses a used one, so nobody's files are ever overwritten.
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("output folder {}: cannot rename {}: {}", path_, temporary_, std::strerror(errno));
  }
  published_ = true;
  sync_folder(fs::absolute(path_).parent_path());
  for (const fs::path& parent : parents_) sync_folder(parent.parent_path());
}

}  // namespace octavo
