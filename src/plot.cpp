// plot.cpp - curves for gnuplot: data, script, and the call. terminal_plot.cpp draws the same in characters.
#include "plot.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <spawn.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "comparison_statistics.h"
#include "error.h"
#include "files.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// Okabe and Ito's palette, told apart by colour-blind readers as well.
constexpr std::array<const char*, 7> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                              "#56b4e9", "#e69f00", "#000000"};

/// A name as a gnuplot string: single quotes doubled, control characters out.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) continue;
    result += c == '\'' ? "''" : std::string(1, c);
  }
  return result + "'";
}

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.8g}", value) : "NaN";
}

/// Two blocks a run: step, loss, smoothed loss, seconds; and step, validation loss, seconds. gnuplot counts
/// blocks from 0.
std::string plot_data(const std::vector<Curve>& curves) {
  std::string text = fmt::format("# format_version {}\n", kFormatVersion);
  for (const Curve& curve : curves) {
    const std::vector<double> smooth = smoothed_loss(curve), seconds = training_seconds(curve.records);
    text += fmt::format("# {} training: step loss smoothed seconds\n", quoted(curve.name));
    for (std::size_t i = 0; i < smooth.size(); ++i) {
      text += fmt::format("{} {} {} {}\n", curve.records[i].step, number(curve.records[i].loss),
                          number(smooth[i]), number(seconds[i]));
    }
    text += fmt::format("\n\n# {} validation: step loss seconds\n", quoted(curve.name));
    bool any = false;
    for (std::size_t i = 0; i < smooth.size(); ++i) {
      const StepRecord& record = curve.records[i];
      if (!record.val_loss) continue;
      text += fmt::format("{} {} {}\n", record.step, number(*record.val_loss), number(seconds[i]));
      any = true;
    }
    if (!any) text += "NaN NaN NaN\n";  // an empty block would shift the count of those behind it
    text += "\n\n";
  }
  return text;
}

/// What a panel draws over: its label, and the columns of both blocks as gnuplot writes them.
struct Axis {
  std::string label, train, val;
};

/// The time trained in a unit in which the longest run has a handy number.
Axis time_axis(const std::vector<Curve>& curves) {
  double longest = 0;
  for (const Curve& curve : curves)
    if (!curve.records.empty()) longest = std::max(longest, training_seconds(curve.records).back());
  const auto axis = [](const char* unit, int seconds) -> Axis {
    return {fmt::format("training time, {}", unit), fmt::format("($4/{})", seconds),
            fmt::format("($3/{})", seconds)};
  };
  if (longest < 300) return axis("seconds", 1);
  return longest < 4 * 3600 ? axis("minutes", 60) : axis("hours", 3600);
}

/// The plot command of one panel.
std::string plot_panel(const std::vector<Curve>& curves, const std::string& data, const Axis& axis) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const Curve& curve = curves[i];
    const std::size_t series = curve.series.value_or(i);
    const bool first = !curve.series || std::none_of(curves.begin(), curves.begin() + static_cast<long>(i),
                                                     [&](const Curve& c) { return c.series == series; });
    const auto title = [&](const char* what) {
      return first ? "title " + quoted(curve.name + what) : std::string("notitle");
    };
    const char* colour = kColours[series % kColours.size()];
    parts.push_back(
        fmt::format("  {} index {} using {}:2 with lines linewidth 0.5 linecolor rgb '#90{}' notitle",
                    i == 0 ? data : "''", 2 * i, axis.train, colour + 1));  // '#AARRGGBB', ff is invisible
    parts.push_back(fmt::format("  '' index {} using {}:3 with lines linewidth 2 linecolor rgb '{}' {}",
                                2 * i, axis.train, colour, title(" training, smoothed")));
    const bool evaluated = last_val_loss(curve.records).has_value();
    if (!evaluated) continue;
    parts.push_back(fmt::format(
        "  '' index {} using {}:2 with linespoints pointtype 7 pointsize 1 linewidth 1 dashtype 3 "
        "linecolor rgb '{}' {}",
        2 * i + 1, axis.val, colour, title(" validation")));
  }
  for (const ReferenceLine& line : reference_lines(curves)) {
    parts.push_back(
        fmt::format("  {:.8g} with lines dashtype 2 linewidth 1.5 linecolor rgb '#808080' title {}",
                    line.value, quoted(fmt::format("{} {:.3f}", line.label, line.value))));
  }
  return fmt::format("set xlabel '{}'\nplot \\\n{}\n", axis.label, fmt::join(parts, ", \\\n"));
}

std::string plot_script(const std::vector<Curve>& curves, const fs::path& picture, const fs::path& data,
                        PlotPanels panels) {
  const bool time = panels == PlotPanels::steps_and_time;
  const std::string name = quoted(data.filename().string());
  std::string text = fmt::format(
      "# Curves of an Octavo run, format_version {}. To draw again, in this folder: gnuplot {}\n"
      "if (!exists('picture')) picture = {}\n"
      "if (strstrt(GPVAL_TERMINALS, 'pngcairo') > 0) {{\n"
      "  set terminal pngcairo size {},650 noenhanced font ',11'\n"
      "}} else {{\n"
      "  set terminal png size {},650 noenhanced\n"
      "}}\n"
      "set output picture\n"
      "set datafile missing 'NaN'\n"
      "set ylabel 'loss, nats per token'\n"
      "set grid linecolor rgb '#dddddd'\n"
      "set key top right\n"
      "set xrange [0:*]\n",
      kFormatVersion, fs::path(picture).replace_extension(".gp").filename().string(),
      quoted(picture.filename().string()), time ? 1700 : 1000, time ? 1700 : 1000);
  if (time) text += "set multiplot layout 1,2\n";
  text += plot_panel(curves, name, {"step", "1", "1"});
  if (time) text += "unset key\n" + plot_panel(curves, name, time_axis(curves)) + "unset multiplot\n";
  return text;
}

/// Runs gnuplot on a script in `folder`, drawing into `output` there. Empty, or why there is no picture.
std::string run_gnuplot(const fs::path& folder, const std::string& script, const std::string& output) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fmt::format("no pipe to gnuplot: {}", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addchdir_np(&actions, folder.empty() ? "." : folder.c_str());
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
  std::array<std::string, 4> words{"gnuplot", "-e", "picture=" + quoted(output), script};
  std::array<char*, 5> argv{words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, "gnuplot", &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string said;
  if (error == 0) {
    std::array<char, 4096> buffer;
    for (ssize_t n = 0;
         (n = ::read(ends[0], buffer.data(), buffer.size())) > 0 || (n < 0 && errno == EINTR);) {
      if (n > 0) said.append(buffer.data(), static_cast<std::size_t>(n));
    }
  }
  ::close(ends[0]);
  if (error == ENOENT) return "gnuplot is not installed (Debian, Ubuntu: apt-get install gnuplot-nox)";
  if (error != 0) return fmt::format("gnuplot does not start: {}", std::strerror(error));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  // gnuplot repeats the line and points at it with a caret; the words come last.
  const std::size_t last = said.find_last_not_of(" \t\r\n");
  said = last == std::string::npos ? "no message" : said.substr(0, last + 1);
  return "gnuplot failed: " + said.substr(said.find_last_of('\n') + 1);
}

}  // namespace

std::vector<double> smoothed(const std::vector<double>& values, double span) {
  const double keep = 1 - 2 / (std::max(span, 1.0) + 1);
  double sum = 0, weight = 0;
  std::vector<double> result;
  result.reserve(values.size());
  for (const double value : values) {
    if (std::isfinite(value)) {
      sum = keep * sum + (1 - keep) * value;
      weight = keep * weight + (1 - keep);
    }
    result.push_back(weight > 0 ? sum / weight : kNaN);
  }
  return result;
}

std::vector<double> smoothed_loss(const Curve& curve) {
  std::vector<double> losses;
  losses.reserve(curve.records.size());
  for (const StepRecord& record : curve.records) losses.push_back(record.loss);
  return smoothed(losses, static_cast<double>(losses.size()) / 50);
}

std::vector<ReferenceLine> reference_lines(const std::vector<Curve>& curves) {
  std::vector<ReferenceLine> lines;
  const auto add = [&](const char* label, const std::optional<double>& value) {
    if (!value || !std::isfinite(*value)) return;
    const bool known = std::any_of(lines.begin(), lines.end(), [&](const ReferenceLine& line) {
      return line.label == label && line.value == *value;
    });
    if (!known) lines.push_back({label, *value});
  };
  for (const Curve& curve : curves) {
    add("unigram entropy", curve.unigram_entropy);
    add("entropy of the source", curve.known_entropy);
  }
  return lines;
}

Curve load_curve(const fs::path& run_folder) {
  const fs::path file = run_folder / "metrics.jsonl";
  if (!path_exists(file)) {
    refuse("{}: no metrics.jsonl there; allowed: the folder of a run that has done a step",
           run_folder.string());
  }
  Curve curve;
  curve.records = read_metrics(file);
  if (curve.records.empty()) {
    refuse("{}: no step in it yet; allowed: the folder of a run that has done a step", file.string());
  }
  const fs::path normal = (run_folder / "").lexically_normal().parent_path();
  curve.name = normal.filename().string();
  if (!path_exists(run_folder / "run.json")) return curve;
  const nlohmann::ordered_json run = read_json_object(run_folder / "run.json");
  if (const auto name = run.find("name"); name != run.end() && name->is_string()) curve.name = *name;
  const auto entropy = [&](const char* key) {
    const auto found = run.find(key);
    return found != run.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
  };
  curve.unigram_entropy = entropy("unigram_entropy");
  curve.known_entropy = entropy("known_entropy");
  return curve;
}

PlotResult plot_curves(const std::vector<Curve>& curves, const fs::path& picture, PlotPanels panels) {
  PlotResult result;
  result.picture = picture;
  result.script = fs::path(picture).replace_extension(".gp");
  const fs::path data = fs::path(picture).replace_extension(".dat");
  write_file_atomically(data, plot_data(curves));
  write_file_atomically(result.script, plot_script(curves, picture, data, panels));
  // Drawn beside the picture and renamed, so that a picture is whole or absent.
  const std::string output = fmt::format(".{}.tmp{}", picture.filename().string(), ::getpid());
  const fs::path folder = picture.parent_path();
  const std::string fault = run_gnuplot(folder, result.script.filename().string(), output);
  std::error_code error;
  if (fault.empty()) fs::rename(folder / output, picture, error);
  result.drawn = fault.empty() && !error;
  if (result.drawn) return result;
  fs::remove(folder / output, error);
  result.message = fmt::format("no picture {}: {}; to draw it later: cd {} && gnuplot {}", picture.string(),
                               fault.empty() ? "gnuplot left none" : fault,
                               folder.empty() ? "." : folder.string(), result.script.filename().string());
  return result;
}

}  // namespace octavo
