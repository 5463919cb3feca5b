// plot.h - curves of loss: as a picture by gnuplot, or in the terminal.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "metrics.h"

namespace octavo {

/// One run's curves.
struct Curve {
  std::string name;
  std::vector<StepRecord> records;
  std::optional<double> unigram_entropy, known_entropy;  // reference lines, nats per token
  // Curves of one series (repeats of a run) share a colour, and the first stands for all in the legend.
  std::optional<std::size_t> series;
};

/// A value that stands across a plot.
struct ReferenceLine {
  std::string label;
  double value = 0;
};

/// Reads a run's folder: metrics.jsonl, and name and reference lines from run.json (where that is missing the
/// folder's name stands). Throws RequestError where there are no metrics, or they hold no row.
Curve load_curve(const std::filesystem::path& run_folder);

/// What plot_curves() left behind.
struct PlotResult {
  std::filesystem::path picture, script;
  bool drawn = false;
  std::string message;  // why not, in one line, where drawn is false
};

/// Over what the losses are drawn: steps, or besides them, in a second panel, the time trained.
enum class PlotPanels { steps, steps_and_time };

/// Draws the curves into `picture` (PNG) with gnuplot: the training loss smoothed over the pale raw one,
/// validation losses as points, a line for each reference value. The script (picture's name with .gp) and its
/// data (.dat) stay beside it. Where gnuplot is missing or fails, drawn is false and the run goes on. Throws
/// RunError where files cannot be written.
PlotResult plot_curves(const std::vector<Curve>& curves, const std::filesystem::path& picture,
                       PlotPanels panels = PlotPanels::steps);

/// The same curves in characters, `width` x `height` columns and lines (axes included). `unicode`: Braille
/// dots, two by four a character; else ASCII letters. Of the runs, the first is A with its validation losses
/// as a, the second B and b, ... A legend follows. Ends with a line end.
std::string terminal_plot(const std::vector<Curve>& curves, int width, int height, bool unicode = true);

/// Exponential mean with bias correction over about `span` rows; rows that are not finite are passed over.
/// One value a row.
std::vector<double> smoothed(const std::vector<double>& values, double span);
/// The training loss smoothed over a fiftieth of the run, as both kinds of plot draw it.
std::vector<double> smoothed_loss(const Curve& curve);
/// The reference values of all curves, each once.
std::vector<ReferenceLine> reference_lines(const std::vector<Curve>& curves);

}  // namespace octavo
