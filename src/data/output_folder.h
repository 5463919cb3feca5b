// output_folder.h - a folder of results that appears whole or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace octavo {

/// A folder that is written under a temporary name beside its place and appears there complete, or not at
/// all. Its files are written by AtomicFile, so that a folder that is there survives a power cut whole.
class NewFolder {
 public:
  /// Refuses a `path` that exists and is not an empty folder.
  explicit NewFolder(const std::string& path);
  /// Removes the temporary folder, and the folders that were made for it, unless publish() was called.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Path of a file inside the temporary folder.
  std::string file(const std::string& name) const { return temporary_ + "/" + name; }
  const std::string& folder() const { return temporary_; }
  /// Puts the folder on the disk and renames it to its final name. Throws RunError.
  void publish();

 private:
  void remove_parents() const;

  std::string path_, temporary_;
  std::vector<std::filesystem::path> parents_;  // that were not there before, the innermost first
  bool published_ = false;
};

}  // namespace octavo
