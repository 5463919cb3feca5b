// files.cpp - whole files: written through a temporary file and a rename, read with the reason where that
// fails.
#include "files.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "error.h"

namespace octavo {
namespace fs = std::filesystem;

void sync_folder(const fs::path& folder) noexcept {
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

AtomicFile::AtomicFile(fs::path file)
    : file_(std::move(file)),
      temporary_(file_.parent_path() / fmt::format(".{}.tmp{}", file_.filename().string(), ::getpid())) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("cannot write {}: {}", file_.string(), std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::give_up(int error) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  ::unlink(temporary_.c_str());
  fail("cannot write {}: {}", file_.string(), std::strerror(error));
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  overwrite(size_, data, bytes);
  size_ += bytes;
}

void AtomicFile::overwrite(std::uint64_t offset, const void* data, std::size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, p, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) give_up(errno);
    p += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) give_up(errno);
  // close() is checked too: network file systems report a full disk only there.
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) give_up(errno);
  if (::rename(temporary_.c_str(), file_.c_str()) != 0) give_up(errno);
  sync_folder(file_.parent_path());
}

void write_file_atomically(const fs::path& file, std::string_view content) {
  AtomicFile out(file);
  out.write(content.data(), content.size());
  out.commit();
}

void write_json_atomically(const fs::path& file, const nlohmann::ordered_json& object) {
  nlohmann::ordered_json whole;
  whole["format_version"] = kFormatVersion;
  for (const auto& [key, value] : object.items()) whole[key] = value;
  write_file_atomically(file,
                        whole.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

namespace {

fs::file_type type_of(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::none) refuse("cannot read {}: {}", path.string(), error.message());
  return type;
}

}  // namespace

bool path_exists(const fs::path& path) {
  return type_of(path) != fs::file_type::not_found;
}

bool is_folder(const fs::path& path) {
  return type_of(path) == fs::file_type::directory;
}

std::string read_whole_file(const fs::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) refuse("cannot read {}: {}", file.string(), std::strerror(errno));
  if (S_ISDIR(status.st_mode)) refuse("cannot read {}: it is a folder; allowed: a file", file.string());
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  std::ostringstream content;
  // An empty file makes operator<< set failbit, so only the stream's own state tells an error.
  if (in && status.st_size != 0) content << in.rdbuf();
  if (!in.is_open() || in.bad() || content.bad()) {
    refuse("cannot read {}: {}", file.string(), errno != 0 ? std::strerror(errno) : "input error");
  }
  return content.str();
}

nlohmann::ordered_json read_json_object(const fs::path& file) {
  const std::string text = read_whole_file(file);
  nlohmann::ordered_json object;
  try {
    object = nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::json::exception& error) {  // of the parser, or a number that no double holds
    const auto* at = dynamic_cast<const nlohmann::json::parse_error*>(&error);
    refuse("{}: not valid JSON{}; allowed: the file as Octavo wrote it", file.string(),
           at != nullptr ? fmt::format(" at byte {} of {}", at->byte, text.size()) : "");
  }
  if (!object.is_object()) {
    refuse("{}: found {}; allowed: a JSON object as Octavo writes it", file.string(), object.type_name());
  }
  const auto version = object.find("format_version");
  if (version == object.end() || *version != kFormatVersion) {
    refuse("format_version in {}: found {}; allowed: {}", file.string(),
           version == object.end() ? "none" : json_excerpt(*version), kFormatVersion);
  }
  return object;
}

namespace {

bool nested_deeper_than(const nlohmann::ordered_json& value, int levels) {
  if (!value.is_structured()) return false;
  if (levels == 0) return true;
  for (const auto& child : value) {
    if (nested_deeper_than(child, levels - 1)) return true;
  }
  return false;
}

}  // namespace

std::string json_excerpt(const nlohmann::ordered_json& value) {
  constexpr std::size_t kLongest = 80;
  // dump() recurses, and a hostile file nests as deeply as it likes.
  if (nested_deeper_than(value, 8)) return fmt::format("a deeply nested {}", value.type_name());
  std::string text = value.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest - 3) + "...";
  return text;
}

}  // namespace octavo
