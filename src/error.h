// error.h - the two ways a command can fail, and how every message reads.
//
// A message is one line: what, where, the value found, what is allowed, e.g.
//   model.heads in gpt.json: 7 does not divide model.channels = 768; allowed: a divisor of 768
// main() prints "octavo: <message>" on standard error and exits with the class's status. Errors are raised
// where the value is known, and never caught on the way up except to add the place (file, key).
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <spdlog/fmt/fmt.h>

namespace octavo {

/// The request was wrong (config, arguments, files). Exit status 2; nothing has been written.
class RequestError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The request is right, but this machine or build cannot do it. Alone it is refused like any other; a sweep
/// marks the run and does the others.
class UnsupportedError : public RequestError {
 public:
  UnsupportedError(const std::string& message, std::string reason)
      : RequestError(message), reason_(std::move(reason)) {}

  /// The reason alone, without what is allowed instead.
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/// The run failed (disk full, non-finite loss, out of memory). Exit status 1.
class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Raises a RequestError with a formatted message.
template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw RequestError(fmt::format(format, std::forward<Args>(args)...));
}

/// Raises an UnsupportedError: its reason, and the formatted message.
template <typename... Args>
[[noreturn]] void refuse_unsupported(std::string reason, fmt::format_string<Args...> format, Args&&... args) {
  throw UnsupportedError(fmt::format(format, std::forward<Args>(args)...), std::move(reason));
}

/// Raises a RunError with a formatted message.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw RunError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace octavo
