// main.cpp - one program, one subcommand a job; each registers itself and leaves an action to run.
#include <cstdio>
#include <exception>
#include <functional>
#include <new>
#include <string>

#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "error.h"
#include "machine.h"

namespace {

// CLI11 reports with its own codes and in several lines; a wrong request is one line and status 2 here.
int report(const std::string& message, int status) {
  std::fprintf(stderr, "octavo: %s\n", message.c_str());
  return status;
}

}  // namespace

int main(int argc, char** argv) {
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

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    const CLI::App* where = &app;
    while (!where->get_subcommands().empty()) where = where->get_subcommands().front();
    const std::string command = where == &app ? "octavo" : "octavo " + where->get_name();
    return report(std::string(e.what()) + "; see " + command + " --help", 2);
  }

  try {
    return action();
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
