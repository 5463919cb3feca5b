#include "precision/fp8_slots.h"

#include <algorithm>
#include <bit>
#include <map>

namespace octavo {
namespace {

std::size_t key_of(std::size_t layer, Linear linear, Fp8Role role) {
  return (layer * kLinears.size() + static_cast<std::size_t>(linear)) * kFp8Roles.size() +
         static_cast<std::size_t>(role);
}

template <class T>
std::vector<T> read(Backend& backend, const Tensor& t) {
  std::vector<T> values(static_cast<std::size_t>(t.numel()));
  backend.copy_to_host(values.data(), t.data, t.bytes());
  return values;
}

template <class T>
void write(Backend& backend, const Tensor& t, const std::vector<T>& values) {
  backend.copy_to_device(t.data, values.data(), t.bytes());
}

}  // namespace

std::vector<Fp8SlotInfo> fp8_slots(const Fp8Plan& plan, bool training) {
  std::vector<Fp8SlotInfo> infos;
  for (std::size_t l = 0; l < plan.layers.size(); ++l)
    for (Linear linear : kLinears)
      for (Fp8Role role : kFp8Roles) {
        if (role == Fp8Role::gradient && !training) continue;
        if (!plan.forms(l, linear, role, training).codes()) continue;
        infos.push_back({.name = "layer" + std::to_string(l) + "." + name_of(linear) + "." + name_of(role),
                         .layer = l,
                         .linear = linear,
                         .role = role,
                         .format = role == Fp8Role::gradient ? plan.recipe.gradient_format() : DType::e4m3});
      }
  return infos;
}

Fp8Slots::Fp8Slots(Backend& backend, const Fp8Plan& plan, bool training, const Fp8Arrays& arrays)
    : backend_(&backend),
      recipe_(plan.recipe),
      infos_(fp8_slots(plan, training)),
      index_(key_of(plan.layers.size(), Linear::qkv, Fp8Role::input), -1),
      arrays_(arrays) {
  std::vector<float> scaled_max;
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    const Fp8SlotInfo& info = infos_[i];
    index_[key_of(info.layer, info.linear, info.role)] = static_cast<int>(i);
    scaled_max.push_back(fp8_scaled_max(info.format, recipe_.margin));
    slots_.push_back({.format = info.format,
                      .scaling = recipe_.scaling,
                      .scale = arrays.scale.as<float>() + i,
                      .scale_inv = arrays.scale_inv.as<float>() + i,
                      .amax = arrays.amax.as<std::int32_t>() + i,
                      .own_amax = arrays.own_amax.as<std::int32_t>() + i,
                      .saturated = arrays.saturated.as<std::int64_t>() + i,
                      .underflowed = arrays.underflowed.as<std::int64_t>() + i});
  }
  if (infos_.empty()) return;
  const std::vector<float> ones(infos_.size(), 1.0f);
  write(backend, arrays_.scale, ones);
  write(backend, arrays_.scale_inv, ones);
  write(backend, arrays_.scaled_max, scaled_max);
}

const Fp8Slot* Fp8Slots::find(std::size_t layer, Linear linear, Fp8Role role) const {
  const std::size_t key = key_of(layer, linear, role);
  if (key >= index_.size() || index_[key] < 0) return nullptr;
  return &slots_[static_cast<std::size_t>(index_[key])];
}

Fp8Update Fp8Slots::update(const StepState* state) const {
  return {.amax = arrays_.amax,
          .history = arrays_.history,
          .scale = arrays_.scale,
          .scaled_max = arrays_.scaled_max,
          .last = arrays_.last,
          .frozen = arrays_.frozen,
          .scaling = recipe_.scaling,
          .algorithm = recipe_.algorithm,
          .state = state};
}

void Fp8Slots::set_scaling(Fp8Scaling scaling) {
  for (Fp8Slot& slot : slots_) slot.scaling = scaling;
}

void Fp8Slots::clear_counts() {
  if (slots_.empty()) return;
  backend_->fill_zero(arrays_.saturated.data, arrays_.saturated.bytes());
  backend_->fill_zero(arrays_.underflowed.data, arrays_.underflowed.bytes());
}

std::vector<Fp8SlotHealth> Fp8Slots::health() const {
  if (slots_.empty()) return {};
  const auto scale = read<float>(*backend_, arrays_.scale), last = read<float>(*backend_, arrays_.last);
  const auto frozen = read<std::int32_t>(*backend_, arrays_.frozen);
  const auto saturated = read<std::int64_t>(*backend_, arrays_.saturated);
  const auto underflowed = read<std::int64_t>(*backend_, arrays_.underflowed);
  std::vector<Fp8SlotHealth> out;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    out.push_back({.scale = scale[i],
                   .amax = last[i],
                   .saturated = saturated[i],
                   .underflowed = underflowed[i],
                   .frozen = frozen[i] != 0});
  return out;
}

std::vector<Fp8SlotState> Fp8Slots::save() const {
  if (slots_.empty() || !arrays_.history) return {};  // current scaling has no state
  const auto scale = read<float>(*backend_, arrays_.scale), history = read<float>(*backend_, arrays_.history);
  const auto amax = read<std::int32_t>(*backend_, arrays_.amax);
  const std::size_t length = static_cast<std::size_t>(recipe_.history);
  std::vector<Fp8SlotState> states;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const auto first = history.begin() + static_cast<std::ptrdiff_t>(i * length);
    Fp8SlotState s{.name = infos_[i].name,
                   .scale = scale[i],
                   .scaled_max = fp8_scaled_max(infos_[i].format, recipe_.margin),
                   .history = std::vector<float>(first, first + static_cast<std::ptrdiff_t>(length))};
    s.history[0] = std::bit_cast<float>(amax[i]);
    states.push_back(std::move(s));
  }
  return states;
}

std::vector<std::string> Fp8Slots::load(const std::vector<Fp8SlotState>& states) {
  std::vector<std::string> missing;
  if (slots_.empty() || recipe_.scaling == Fp8Scaling::current) return missing;
  std::map<std::string, const Fp8SlotState*> by_name;
  for (const Fp8SlotState& s : states) by_name[s.name] = &s;
  // A model that does not train has scales, but no histories.
  auto scale = read<float>(*backend_, arrays_.scale);
  auto history = arrays_.history ? read<float>(*backend_, arrays_.history) : std::vector<float>();
  auto amax = read<std::int32_t>(*backend_, arrays_.amax);
  const std::size_t length = history.size() / slots_.size();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const auto found = by_name.find(infos_[i].name);
    if (found == by_name.end()) {
      missing.push_back(infos_[i].name);
      continue;
    }
    const Fp8SlotState& s = *found->second;
    scale[i] = std::min(FLT_MAX, s.scale * (fp8_scaled_max(infos_[i].format, recipe_.margin) / s.scaled_max));
    amax[i] = std::bit_cast<std::int32_t>(s.history[0]);
    if (length == 0) continue;
    // The newest amaxes stand last, in both.
    float* to = history.data() + i * length;
    std::fill(to, to + length, 0.0f);
    const std::size_t kept = std::min(length, s.history.size()) - 1;
    std::copy(s.history.end() - static_cast<std::ptrdiff_t>(kept), s.history.end(), to + length - kept);
  }
  write(*backend_, arrays_.scale, scale);
  write(*backend_, arrays_.amax, amax);
  if (arrays_.history) write(*backend_, arrays_.history, history);
  return missing;
}

}  // namespace octavo
