#include "child_process.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "error.h"

namespace octavo {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";  // also where the file has been replaced since
constexpr int kLookForSignals = 100;                    // milliseconds
constexpr int kNotStarted = 127;

void send_all(int socket, const std::string& text) {
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t n = ::send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;  // the other side is gone
    sent += static_cast<std::size_t>(n);
  }
}

/// Appends what is there to read; false at the end.
bool read_some(int socket, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t n = ::read(socket, buffer.data(), buffer.size());
  if (n < 0) return errno == EINTR;
  text.append(buffer.data(), static_cast<std::size_t>(n));
  return n > 0;
}

/// Between fork and exec: only calls that are safe there, the parent may have had threads.
[[noreturn]] void become_child(char** argv, int socket, pid_t parent, const sigset_t& mask) {
  // As long as the parent lives, and no longer; it may have died before the kernel was asked.
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(kNotStarted);
  ::fcntl(socket, F_SETFD, 0);
  // A signal that has come since the fork ends the child now, and is not lost with the parent's handlers.
  struct sigaction former {};
  for (const int signal : kStopSignals)
    if (::sigaction(signal, nullptr, &former) == 0 && former.sa_handler != SIG_IGN) ::signal(signal, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execv(kThisProgram, argv);
  ::_exit(kNotStarted);
}

}  // namespace

ChildEnd run_child(std::vector<std::string> arguments, const std::string& input, const StopSignal& stop) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    fail("no socket for a further process: {}", std::strerror(errno));
  arguments.insert(arguments.begin(), "octavo");
  arguments.push_back(std::to_string(ends[1]));
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  sigset_t all, former;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &former);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  const int error = errno;
  if (child == 0) become_child(argv.data(), ends[1], parent, former);
  ::sigprocmask(SIG_SETMASK, &former, nullptr);
  ::close(ends[1]);
  if (child < 0) {
    ::close(ends[0]);
    fail("no further process: {}", std::strerror(error));
  }

  send_all(ends[0], input);
  ::shutdown(ends[0], SHUT_WR);
  ChildEnd end;
  bool told = false;
  for (bool open = true; open;) {
    if (!told && stop.received() != 0) {
      ::kill(child, stop.received());
      told = true;
    }
    pollfd ready{.fd = ends[0], .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, kLookForSignals) > 0) open = read_some(ends[0], end.said);
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  end.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + end.signal;
  if (end.status == kNotStarted && end.said.empty()) fail("{} cannot be started again", kThisProgram);
  return end;
}

std::string read_from_parent(int socket) {
  ::fcntl(socket, F_SETFD, FD_CLOEXEC);  // no process that this one starts is to hold it open
  std::string text;
  while (read_some(socket, text)) {
  }
  return text;
}

void write_to_parent(int socket, const std::string& text) {
  send_all(socket, text);
  ::shutdown(socket, SHUT_WR);
}

}  // namespace octavo
