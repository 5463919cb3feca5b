// main.cpp - one program, one subcommand a job; each registers itself and leaves an action to run.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <new>
#include <sstream>
#include <string>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "commands/usage.h"
#include "error.h"
#include "machine.h"

namespace {

/// Prints a message, "octavo: " before each of its lines: a config may have several faults.
int report(const std::string& message, int status) {
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);) std::fprintf(stderr, "octavo: %s\n", line.c_str());
  return status;
}

/// By default libgomp's threads spin for milliseconds at every barrier, which is ruinous where another
/// process wants the core: measured on 2 cores with one of them busy, a sixth of the speed that a short spin
/// gives, and no gain without company. It reads its settings before main(), so the program starts itself once
/// more. What the user set stands.
void spin_briefly(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "2000", 1);
  execv("/proc/self/exe", argv);  // returns only where it failed: the program then works, slower
}

}  // namespace

int main(int argc, char** argv) {
  spin_briefly(argv);
  CLI::App app{"Octavo trains causal GPT models in FP32, BF16 or FP8.", "octavo"};
  app.require_subcommand(1);
  app.set_version_flag("--version", [] { return octavo::build_text(); });
  std::function<int()> action;
  octavo::register_train(app, action);
  octavo::register_sweep(app, action);
  octavo::register_eval(app, action);
  octavo::register_generate(app, action);
  octavo::register_export(app, action);
  octavo::register_plot(app, action);
  octavo::register_diff(app, action);
  octavo::register_data(app, action);
  octavo::register_info(app, action);
  octavo::register_config(app, action);

  // A file-size limit is then an error of the write, with its path, and no sudden end.
  std::signal(SIGXFSZ, SIG_IGN);
  if (argc > 1 && argv[1][0] != '-') {
    const std::string message = octavo::unknown_command(app, argv[1]);  // even before --help
    if (!message.empty()) return report(message, 2);
  }
  // CLI11 reports with its own codes; a wrong request has status 2 here.
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    return report(octavo::usage_fault(app, e), 2);
  }

  try {
    const int status = action();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      return report(fmt::format("standard output: cannot be written: {}", std::strerror(errno)), 1);
    return status;
  } catch (const octavo::RequestError& e) {
    return report(e.what(), 2);
  } catch (const octavo::RunError& e) {
    return report(e.what(), 1);
  } catch (const std::bad_alloc&) {
    return report("out of memory", 1);
  } catch (const std::exception& e) {
    return report(std::string("internal error: ") + e.what(), 1);
  }
}
