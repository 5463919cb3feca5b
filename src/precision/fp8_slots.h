// fp8_slots.h - the scale state of all FP8 tensors of a model: where it lies, what each slot is called, what
// it looked like in the last step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend.h"
#include "precision/fp8_plan.h"

namespace octavo {

/// What a slot scales.
struct Fp8SlotInfo {
  std::string name;  // "layer3.qkv.input"
  std::size_t layer;
  Linear linear;
  Fp8Role role;
  DType format;
};

/// The slots that a plan needs, by layer, linear layer and role.
std::vector<Fp8SlotInfo> fp8_slots(const Fp8Plan& plan, bool training);

/// The numbers of all slots in backend memory: one array a quantity, so that amaxes are reduced over ranks in
/// one call and the update is one launch.
struct Fp8Arrays {
  Tensor scale, scale_inv, scaled_max, last;  // [S] f32
  Tensor amax, own_amax, frozen;              // [S] i32
  Tensor saturated, underflowed;              // [S] i64
  Tensor history;                             // [S,L] f32; absent under current scaling
};

/// One slot's part of a checkpoint. history[0] is the amax that was being collected.
struct Fp8SlotState {
  std::string name;
  float scale = 1;
  float scaled_max = 0;  // that the scale was made for: format and margin
  std::vector<float> history;
};

/// What happened to one slot's tensor in a step.
struct Fp8SlotHealth {
  float scale = 1, amax = 0;  // amax of the step, 0: nothing was cast
  std::int64_t saturated = 0, underflowed = 0;
  bool frozen = false;  // the scale stayed because of inf or NaN
};

class Fp8Slots {
 public:
  Fp8Slots() = default;
  /// Scales are 1, histories empty.
  Fp8Slots(Backend& backend, const Fp8Plan& plan, bool training, const Fp8Arrays& arrays);

  std::size_t size() const { return infos_.size(); }
  const std::vector<Fp8SlotInfo>& infos() const { return infos_; }
  /// The slot of an operand; null where its codes do not exist.
  const Fp8Slot* find(std::size_t layer, Linear linear, Fp8Role role) const;

  /// The update of all slots, once a step, of a model that trains.
  Fp8Update update(const StepState* state) const;
  /// How scales are chosen from now on: the plan's way, or `current` for calibration.
  void set_scaling(Fp8Scaling scaling);
  /// Counts of saturated and underflowed values start at zero again.
  void clear_counts();

  std::vector<Fp8SlotHealth> health() const;
  std::vector<Fp8SlotState> save() const;
  /// Takes over the slots of the same name. A history of another length keeps its newest amaxes; a scale made
  /// for another format or margin is converted (by a power of two, so exactly). Returns the names of slots
  /// that `states` lacks; these are left as they are.
  std::vector<std::string> load(const std::vector<Fp8SlotState>& states);

 private:
  Backend* backend_ = nullptr;
  Fp8Recipe recipe_;
  std::vector<Fp8SlotInfo> infos_;
  std::vector<Fp8Slot> slots_;
  std::vector<int> index_;  // by (layer * 4 + linear) * 3 + role; -1: no slot
  Fp8Arrays arrays_;
};

}  // namespace octavo
