// captured_output.h - what a command prints on standard output, as text.
#pragma once

#include <cstdio>
#include <string>
#include <unistd.h>

namespace octavo::testing {

/// Runs `work` with standard output going into a file, and returns what it printed. An exception passes
/// through.
template <typename Work>
std::string captured_output(Work work) {
  struct Redirection {
    std::FILE* file = std::tmpfile();
    int former = -1;
    Redirection() {
      std::fflush(stdout);
      former = ::dup(STDOUT_FILENO);
      ::dup2(::fileno(file), STDOUT_FILENO);
    }
    ~Redirection() {
      std::fflush(stdout);
      ::dup2(former, STDOUT_FILENO);
      ::close(former);
      std::fclose(file);
    }
  } redirection;
  work();
  std::fflush(stdout);
  std::string text;
  std::rewind(redirection.file);
  for (int c = 0; (c = std::fgetc(redirection.file)) != EOF;) text += static_cast<char>(c);
  return text;
}

}  // namespace octavo::testing
