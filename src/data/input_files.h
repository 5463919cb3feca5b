// input_files.h - what data comes from: globs in a fixed order, and read-only memory maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

/// Paths and globs to files. Entries keep their order; the matches of one glob are sorted bytewise by path.
/// Globs know * ? [...] inside a path component and /**/ for any number of folders, skip folders and names
/// that begin with a dot; a path that exists is never taken for a glob. A file named twice comes twice.
/// `what` names the list in messages ("data.train"). Throws RequestError for a path that is missing, is a
/// folder, or a glob without a match.
std::vector<std::string> expand_inputs(const std::vector<std::string>& patterns, std::string_view what);

/// The first of the patterns that expand_inputs() would refuse because nothing of that name exists; empty
/// where each has a match.
std::string missing_input(const std::vector<std::string>& patterns, std::string_view what);

/// A whole file, mapped read-only. Files over 2 GiB are fine.
class MappedFile {
 public:
  MappedFile() = default;  // of no bytes
  /// Throws RequestError when the file cannot be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }
  const std::string& path() const { return path_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  std::string path_;
  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace octavo
