#include "fp8_monitor.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "error.h"
#include "files.h"

namespace octavo {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSaturationWarning = 0.01;

/// Rows of steps up to `step`, as text; what is no row (a torn last line) is left out.
std::string rows_through(const std::filesystem::path& file, std::int64_t step) {
  std::string kept;
  if (step == 0 || !path_exists(file)) return kept;
  const std::string text = read_whole_file(file);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("step") || !row["step"].is_number_integer()) continue;
    if (row["step"].get<std::int64_t>() <= step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

Fp8Monitor::Fp8Monitor(const Fp8Slots& slots, const ModelShape& shape, std::int64_t tokens,
                       const std::optional<std::filesystem::path>& file, std::int64_t keep_through_step)
    : infos_(slots.infos()), file_(file) {
  for (const Fp8SlotInfo& info : infos_) {
    const OpDesc product = product_of(shape, info.linear, Gemm::fprop, tokens, DType::e4m3);
    const std::int64_t in = product.k, out = product.n;
    elements_.push_back(static_cast<double>(info.role == Fp8Role::weight  ? in * out
                                            : info.role == Fp8Role::input ? tokens * in
                                                                          : tokens * out));
  }
  if (file_) write_file_atomically(*file_, rows_through(*file_, keep_through_step));
}

double Fp8Monitor::share(std::int64_t count, std::size_t slot) const {
  return static_cast<double>(count) / elements_[slot];
}

std::optional<Fp8Record> Fp8Monitor::record(const std::vector<Fp8SlotHealth>& health) const {
  if (health.empty()) return std::nullopt;
  Fp8Record r{.scale_min = INFINITY, .amax_min = INFINITY};
  double saturated = 0, underflowed = 0, all = 0;
  for (std::size_t i = 0; i < health.size(); ++i) {
    const Fp8SlotHealth& h = health[i];
    const double scale = static_cast<double>(h.scale), amax = static_cast<double>(h.amax);
    r.scale_min = std::min(r.scale_min, scale), r.scale_max = std::max(r.scale_max, scale);
    saturated += static_cast<double>(h.saturated), underflowed += static_cast<double>(h.underflowed);
    all += elements_[i];
    if (h.amax == 0) continue;  // not cast in this step, or all zero
    if (amax < r.amax_min) r.amax_min = amax;
    if (!(amax <= r.amax_max) && !std::isnan(r.amax_max)) r.amax_max = amax;  // NaN stays
  }
  if (std::isinf(r.amax_min)) r.amax_min = r.amax_max;
  r.saturated = saturated / all, r.underflowed = underflowed / all;
  return r;
}

std::vector<std::string> Fp8Monitor::warnings(const std::vector<Fp8SlotHealth>& health) {
  std::vector<std::string> lines;
  std::size_t worst = 0, saturating = 0, frozen = 0, first_frozen = 0;
  for (std::size_t i = 0; i < health.size(); ++i) {
    if (share(health[i].saturated, i) > share(health[worst].saturated, worst)) worst = i;
    if (share(health[i].saturated, i) > kSaturationWarning) ++saturating;
    if (health[i].frozen && frozen++ == 0) first_frozen = i;
  }
  const auto others = [](std::size_t count) {
    return count > 1 ? fmt::format(" (and of {} other tensor{})", count - 1, count > 2 ? "s" : "")
                     : std::string();
  };
  if (saturating > 0 && !warned_saturated_) {
    warned_saturated_ = true;
    lines.push_back(
        fmt::format("fp8: {:.1f} % of the values of {}{} lie beyond the format at its scale; "
                    "precision.fp8.margin leaves room for an amax that grows",
                    100 * share(health[worst].saturated, worst), infos_[worst].name, others(saturating)));
  }
  if (frozen > 0 && !warned_frozen_) {
    warned_frozen_ = true;
    lines.push_back(
        fmt::format("fp8: the scale of {}{} stays at {}, because an amax of its history is not finite",
                    infos_[first_frozen].name, others(frozen), health[first_frozen].scale));
  }
  return lines;
}

void Fp8Monitor::append(std::int64_t step, const std::vector<Fp8SlotHealth>& health) {
  if (!file_ || health.empty()) return;
  Json tensors = Json::object();
  for (std::size_t i = 0; i < health.size(); ++i)
    tensors[infos_[i].name] = {{"scale", health[i].scale},
                               {"amax", health[i].amax},
                               {"saturated", share(health[i].saturated, i)},
                               {"underflowed", share(health[i].underflowed, i)}};
  std::ofstream out(*file_, std::ios::app);
  out << Json{{"step", step}, {"tensors", tensors}, {"format_version", kFormatVersion}}.dump() << '\n'
      << std::flush;
  if (!out) fail("cannot write {}", file_->string());
}

}  // namespace octavo
