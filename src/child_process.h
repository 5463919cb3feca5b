// child_process.h - this very program, started once more as a process of its own: its memory, its threads and
// its end touch nobody else.
#pragma once

#include <string>
#include <vector>

#include "stop_signal.h"

namespace octavo {

/// How a child ended.
struct ChildEnd {
  int status = 0;    // its exit status; of one that a signal ended, as a shell gives it: 128 + signal
  int signal = 0;    // that signal; 0: it ended by itself
  std::string said;  // all that it wrote into its socket
};

/// Starts this program with `arguments` and, as the last one, the number of a socket from which the child
/// reads `input` until its end, and which takes its answer. Waits for its end; so none is left as a zombie.
/// The three standard streams are shared. A signal that `stop` remembers is sent on to the child, once. Where
/// this process ends first, in whatever way, the child gets SIGTERM. Throws RunError where it cannot start.
ChildEnd run_child(std::vector<std::string> arguments, const std::string& input, const StopSignal& stop);

/// The child's side: all of the input, and the answer. Where the parent is gone nothing is lost: writing then
/// does nothing.
std::string read_from_parent(int socket);
void write_to_parent(int socket, const std::string& text);

}  // namespace octavo
