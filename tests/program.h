// program.h - the octavo program as a user runs it: a process with arguments, an exit status and two streams.
#pragma once

#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#include <sys/wait.h>

#include "temp_dir.h"

namespace octavo::testing {

struct ProgramResult {
  int status = -1;
  std::string out, err;
};

inline std::string slurp(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Runs `octavo arguments...` in `directory`. `while_running` gets the process id before the wait for its
/// end.
inline ProgramResult run_program(const std::filesystem::path& directory, std::vector<std::string> arguments,
                                 const std::function<void(pid_t)>& while_running = {},
                                 const std::vector<std::pair<std::string, std::string>>& environment = {}) {
  const TempDir streams;
  const std::string out = (streams.path / "out").string(), err = (streams.path / "err").string();
  arguments.insert(arguments.begin(), OCTAVO_PROGRAM);
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    const int o = open(out.c_str(), O_CREAT | O_WRONLY, 0600),
              e = open(err.c_str(), O_CREAT | O_WRONLY, 0600);
    if (o < 0 || e < 0 || chdir(directory.c_str()) != 0) _exit(99);
    dup2(o, STDOUT_FILENO);
    dup2(e, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(98);
  }
  if (while_running) while_running(child);
  int wait_status = 0;
  waitpid(child, &wait_status, 0);
  ProgramResult result;
  result.status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
  result.out = slurp(out);
  result.err = slurp(err);
  return result;
}

}  // namespace octavo::testing
