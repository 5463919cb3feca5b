// diff.cpp - `octavo diff RUN RUN`: what differs between two runs. It is a report: exit status 0 whether they
// differ or not, 2 where one of them is no run.
#include "diff.h"

#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "commands/commands.h"

namespace octavo {

void register_diff(CLI::App& app, Action& action) {
  struct Arguments {
    std::string left, right;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("diff", "Show where two runs part: config, paths, the first differing number");
  command->add_option("A", arguments->left, "Folder of a run")->required();
  command->add_option("B", arguments->right, "Folder of another run")->required();
  command->callback([arguments, &action] {
    action = [arguments] {
      std::fputs(diff_runs(arguments->left, arguments->right).c_str(), stdout);
      return 0;
    };
  });
}

}  // namespace octavo
