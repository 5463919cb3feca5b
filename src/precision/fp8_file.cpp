#include "precision/fp8_file.h"

#include <charconv>
#include <map>

#include "error.h"
#include "files.h"
#include "safetensors.h"

namespace octavo {
namespace {

constexpr const char* kFormatVersion = "1";

std::map<std::string, std::string> metadata_of(const Fp8Recipe& r) {
  return {{"format_version", kFormatVersion},
          {"recipe", r.scaling == Fp8Scaling::delayed ? "delayed" : "current"},
          {"format", r.hybrid ? "hybrid" : "e4m3"},
          {"amax_history_len", std::to_string(r.history)},
          {"amax_compute_algo", r.algorithm == Fp8AmaxAlgorithm::max ? "max" : "most_recent"},
          {"margin", std::to_string(r.margin)}};
}

Fp8Recipe recipe_of(const std::map<std::string, std::string>& metadata, const std::filesystem::path& file) {
  const auto value = [&](const char* key) {
    const auto found = metadata.find(key);
    if (found == metadata.end())
      refuse("{}: metadata lack {}; allowed: scales that octavo wrote", file.string(), key);
    return found->second;
  };
  const auto number = [&](const char* key) {
    const std::string text = value(key);
    std::int64_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc() || end != text.data() + text.size())
      refuse("{}: {}: found \"{}\"; allowed: an integer", file.string(), key, text);
    return n;
  };
  if (value("format_version") != kFormatVersion)
    refuse("{}: format_version: found {}; allowed: {}", file.string(), value("format_version"),
           kFormatVersion);
  return {.scaling = value("recipe") == "delayed" ? Fp8Scaling::delayed : Fp8Scaling::current,
          .hybrid = value("format") == "hybrid",
          .history = number("amax_history_len"),
          .algorithm =
              value("amax_compute_algo") == "max" ? Fp8AmaxAlgorithm::max : Fp8AmaxAlgorithm::most_recent,
          .margin = number("margin")};
}

std::vector<TensorSpec> specs_of(const SavedFp8& state) {
  std::vector<TensorSpec> specs;
  for (const Fp8SlotState& s : state.slots) {
    specs.push_back({s.name + ".scale", "F32", {1}});
    specs.push_back({s.name + ".scaled_max", "F32", {1}});
    specs.push_back({s.name + ".history", "F32", {static_cast<std::int64_t>(s.history.size())}});
  }
  return specs;
}

}  // namespace

void write_fp8_file(const std::filesystem::path& file, const SavedFp8& state) {
  SafetensorsWriter writer(file, specs_of(state), metadata_of(state.recipe));
  for (const Fp8SlotState& s : state.slots) {
    writer.write(&s.scale, sizeof s.scale);
    writer.write(&s.scaled_max, sizeof s.scaled_max);
    writer.write(s.history.data(), s.history.size() * sizeof(float));
  }
  writer.finish();
}

std::uint64_t fp8_file_size(const SavedFp8& state) {
  return state.slots.empty() ? 0 : SafetensorsWriter::file_size(specs_of(state), metadata_of(state.recipe));
}

std::uint64_t fp8_file_size(const Fp8Plan& plan) {
  if (plan.recipe.scaling == Fp8Scaling::current) return 0;
  SavedFp8 state{.recipe = plan.recipe, .slots = {}};
  for (const Fp8SlotInfo& info : fp8_slots(plan, /*training=*/true))
    state.slots.push_back({.name = info.name,
                           .scale = 1,
                           .scaled_max = 1,
                           .history = std::vector<float>(static_cast<std::size_t>(plan.recipe.history))});
  return fp8_file_size(state);
}

SavedFp8 read_fp8_file(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  SavedFp8 out{.recipe = recipe_of(file.metadata(), path), .slots = {}};
  const auto read = [&](const std::string& name) {
    const SavedTensor* t = file.find(name);
    if (t == nullptr || t->dtype != "F32" || t->shape.size() != 1 || t->size() < 1)
      refuse("{}: {}: found {}; allowed: an F32 tensor of rank 1", path.string(), name,
             t == nullptr ? "nothing" : fmt::format("{} [{}]", t->dtype, fmt::join(t->shape, ",")));
    std::vector<float> values(static_cast<std::size_t>(t->size()));
    file.read_f32(*t, 0, t->size(), values.data());
    return values;
  };
  const std::string ending = ".scale";
  for (const SavedTensor& t : file.tensors()) {
    if (!t.name.ends_with(ending)) continue;
    Fp8SlotState s{.name = t.name.substr(0, t.name.size() - ending.size())};
    s.scale = read(t.name)[0];
    s.scaled_max = read(s.name + ".scaled_max")[0];
    s.history = read(s.name + ".history");
    if (!fp8_usable(s.scale) || !fp8_usable(s.scaled_max))
      refuse("{}: {}: found {} made for {}; allowed: finite scales above 0", path.string(), t.name, s.scale,
             s.scaled_max);
    for (float amax : s.history)
      if (amax < 0)
        refuse("{}: {}.history: found {}; allowed: amaxes, at least 0", path.string(), s.name, amax);
    out.slots.push_back(std::move(s));
  }
  return out;
}

std::optional<SavedFp8> find_fp8_state(const std::filesystem::path& folder) {
  if (!path_exists(folder / kFp8File)) return std::nullopt;
  return read_fp8_file(folder / kFp8File);
}

std::vector<std::string> fp8_conversions(const Fp8Recipe& saved, const Fp8Recipe& now) {
  std::vector<std::string> lines;
  if (saved.scaling != now.scaling) return lines;  // the state of one recipe says nothing to the other
  if (saved.history > now.history)
    lines.push_back(
        fmt::format("fp8: histories of {} amaxes keep their newest {}", saved.history, now.history));
  if (saved.history < now.history)
    lines.push_back(fmt::format("fp8: histories of {} amaxes grow to {}", saved.history, now.history));
  if (saved.hybrid != now.hybrid || saved.margin != now.margin)
    lines.push_back("fp8: scales are converted to the new format and margin");
  if (saved.algorithm != now.algorithm)
    lines.push_back("fp8: the next update chooses scales by the new algorithm");
  return lines;
}

}  // namespace octavo
