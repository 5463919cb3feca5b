// plot.cpp - `octavo plot RUN... [--terminal] [--out FILE]`: curves of one or several runs.
//
// Exit status 1 where the picture asked for cannot be drawn (no gnuplot): the script is left behind, the
// message says how to draw it. A training run, for which the picture is a by-product, succeeds without.
#include "plot.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <sys/ioctl.h>

#include "commands/commands.h"
#include "error.h"
#include "files.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::vector<std::string> runs;
  std::string out;
  bool terminal = false;
};

/// A run's folder stands for itself, a sweep's folder for the runs in it.
std::vector<fs::path> expand_runs(const std::vector<std::string>& arguments) {
  std::vector<fs::path> folders;
  for (const std::string& argument : arguments) {
    if (!is_folder(argument)) {
      refuse("{}: {}; allowed: the folder of a run or of a sweep", argument,
             path_exists(argument) ? "found a file" : "no such folder");
    }
    std::vector<fs::path> inside;
    if (!path_exists(fs::path(argument) / "metrics.jsonl")) {
      std::error_code error;
      for (fs::directory_iterator at(argument, error), end; !error && at != end; at.increment(error)) {
        if (path_exists(at->path() / "metrics.jsonl")) inside.push_back(at->path());
      }
      if (error) refuse("cannot read {}: {}", argument, error.message());
      std::sort(inside.begin(), inside.end());
    }
    if (inside.empty()) inside.emplace_back(argument);
    folders.insert(folders.end(), inside.begin(), inside.end());
  }
  return folders;
}

/// The runs' curves; where names collide, each takes its folder as its name.
std::vector<Curve> load_curves(const std::vector<fs::path>& folders) {
  std::vector<Curve> curves;
  for (const fs::path& folder : folders) curves.push_back(load_curve(folder));
  std::vector<std::string> names;
  for (const Curve& curve : curves) names.push_back(curve.name);
  for (std::size_t i = 0; i < curves.size(); ++i) {
    if (std::count(names.begin(), names.end(), names[i]) > 1) curves[i].name = folders[i].string();
  }
  return curves;
}

bool speaks_utf8() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(variable);
    if (value == nullptr || *value == '\0') continue;
    std::string locale = value;
    std::transform(locale.begin(), locale.end(), locale.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return false;
}

void draw_in_terminal(const std::vector<Curve>& curves) {
  int width = 80, height = 24;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    width = size.ws_col;
    height = size.ws_row;
  }
  // The legend and the shell's prompt need lines, too.
  height = std::clamp(height - static_cast<int>(curves.size()) - 3, 10, 40);
  std::fputs(terminal_plot(curves, width, height, speaks_utf8()).c_str(), stdout);
}

fs::path picture_for(const Arguments& arguments) {
  if (arguments.out.empty()) {
    return arguments.runs.size() == 1 ? fs::path(arguments.runs[0]) / "curves.png" : fs::path("curves.png");
  }
  const fs::path out = arguments.out;
  if (out.extension() != ".png")
    refuse("--out: found {}; allowed: a file whose name ends in .png", out.string());
  if (out.has_parent_path() && !is_folder(out.parent_path())) {
    refuse("--out: no folder {}; allowed: a file in a folder that exists", out.parent_path().string());
  }
  return out;
}

int plot(const Arguments& arguments) {
  const fs::path picture = picture_for(arguments);
  const std::vector<Curve> curves = load_curves(expand_runs(arguments.runs));
  if (arguments.terminal) {
    draw_in_terminal(curves);
    if (arguments.out.empty()) return 0;
  }
  const PlotResult result = plot_curves(curves, picture);
  if (!result.drawn) throw RunError(result.message);
  std::printf("%s\n", result.picture.c_str());
  return 0;
}

}  // namespace

void register_plot(CLI::App& app, Action& action) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("plot", "Draw the curves of runs, as a picture or in the terminal");
  command->add_option("RUN", arguments->runs, "Folders of runs, or of a sweep")->required();
  command
      ->add_option("--out", arguments->out,
                   "The picture, a .png file (default: RUN/curves.png; of several runs ./curves.png)")
      ->type_name("FILE");
  command->add_flag("--terminal", arguments->terminal,
                    "Draw in the terminal (and a picture only with --out)");
  command->callback([arguments, &action] { action = [arguments] { return plot(*arguments); }; });
}

}  // namespace octavo
