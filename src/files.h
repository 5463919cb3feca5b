// files.h - small files, written whole or not at all. Everything that a run leaves as one file
// (resolved.json, run.json, receipt.md, state.json, ...) goes through here, so that a killed run or a full
// disk never leaves half of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace octavo {

/// Version of the layout of the JSON files that Octavo writes; each holds it as "format_version".
inline constexpr int kFormatVersion = 1;

/// A file written piece by piece that is there whole or not at all: the bytes go into a temporary file in the
/// same folder, which commit() puts on the disk and into the file's place. Everything that must survive a
/// power cut is written through it. Each failure is a RunError naming the file and the system's reason.
class AtomicFile {
 public:
  /// Creates the temporary file.
  explicit AtomicFile(std::filesystem::path file);
  /// Removes the temporary file unless commit() succeeded; a former file then stays as it was.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::filesystem::path& path() const { return file_; }
  /// Appends.
  void write(const void* data, std::size_t bytes);
  /// Writes again over bytes that are there from `offset` on: a header that is known only at the end.
  void overwrite(std::uint64_t offset, const void* data, std::size_t bytes);
  /// fsync, rename, fsync of the folder. Nothing may be written afterwards.
  void commit();

 private:
  [[noreturn]] void give_up(int error);

  std::filesystem::path file_, temporary_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

/// Replaces `file` by `content`, or leaves it as it was, as AtomicFile does it.
void write_file_atomically(const std::filesystem::path& file, std::string_view content);

/// Writes a JSON object atomically, indented by two, with "format_version" as its first key (where it has
/// none). Non-finite numbers become null; bytes that are no UTF-8 are replaced.
void write_json_atomically(const std::filesystem::path& file, const nlohmann::ordered_json& object);

/// The file's bytes. Throws RequestError naming the file and the system's reason.
std::string read_whole_file(const std::filesystem::path& file);

/// Whether something lies at `path`, and whether it is a folder (a link counts as what it points to). Throw
/// RequestError naming the path where the system cannot tell: permission denied, a name too long.
bool path_exists(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);

/// Reads a JSON object written by Octavo. Throws RequestError naming the file where it is missing, is no JSON
/// object, or has a format_version other than kFormatVersion.
nlohmann::ordered_json read_json_object(const std::filesystem::path& file);

/// A JSON value's text for a one-line message: ASCII, cut where it is long. For values of foreign files.
std::string json_excerpt(const nlohmann::ordered_json& value);

/// fsync of a folder, so that a rename inside it survives a power cut. Quiet where the file system cannot.
void sync_folder(const std::filesystem::path& folder) noexcept;

}  // namespace octavo
