// output_folder.h - a folder of results that appears whole or not at all.
#pragma once

#include <string>

namespace octavo {

/// A folder that is written under a temporary name beside its place and appears there complete, or not at
/// all.
class NewFolder {
 public:
  /// Refuses a `path` that exists and is not an empty folder.
  explicit NewFolder(const std::string& path);
  /// Removes the temporary folder unless publish() was called.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Path of a file inside the temporary folder.
  std::string file(const std::string& name) const { return temporary_ + "/" + name; }
  const std::string& folder() const { return temporary_; }
  /// Renames the folder to its final name. Throws RunError.
  void publish();

 private:
  std::string path_, temporary_;
  bool published_ = false;
};

}  // namespace octavo
