// trainer.h - the training step, and everything that a checkpoint must hold to go on from one.
#pragma once

#include <cstdint>
#include <vector>

#include "backend.h"
#include "data/dataset.h"
#include "data/window_order.h"
#include "model.h"
#include "run_plan.h"

namespace octavo {

/// Where a run stands. With the weights, the moments and the config it determines everything that follows.
struct TrainState {
  std::int64_t step = 0;        // steps done, skipped ones included
  std::int64_t samples = 0;     // sequences consumed: the data order's whole state
  std::int64_t updates = 0;     // AdamW updates done
  std::int64_t skipped = 0;     // steps whose update was skipped
  std::int64_t bad_in_row = 0;  // of those, the ones since the last good step
};

struct StepResult {
  double loss = 0;  // mean over the step's tokens, nats
  double lr = 0;
  double grad_norm = 0;            // before clipping
  bool finite = true;              // false: nothing was updated
  std::vector<Fp8SlotHealth> fp8;  // of each slot of the model; empty outside FP8
};

class Trainer {
 public:
  /// Allocates the model; weights are zero until initialise() or a checkpoint fills them.
  Trainer(Backend& backend, const RunPlan& plan, const Dataset& data);

  /// Fresh weights of train.seed, as in the GPT-2 paper.
  void initialise();

  /// Scales and histories of a run to go on with, before the model's working weights are made. Returns the
  /// slots that `states` lacks; with these the next step begins by calibrating, where the plan calibrates.
  std::vector<std::string> load_fp8(std::vector<Fp8SlotState> states);

  /// One optimizer step: micro-batches, clip, scales, AdamW.
  StepResult train_step();

  Model& model() { return model_; }
  const TrainState& state() const { return state_; }
  void set_state(const TrainState& state) { state_ = state; }

 private:
  void begin_step();
  void calibrate();
  void load_micro_batch(std::int64_t micro);
  StepResult end_step();

  Backend& backend_;
  const RunPlan& plan_;
  const Dataset& data_;
  WindowOrder order_;
  Model model_;
  TrainState state_;
  bool calibrates_;                     // before the next step
  std::vector<Fp8SlotState> restored_;  // scales that calibration must leave
  Batch batch_;                         // in backend memory
  std::vector<std::int32_t> tokens_, targets_;
  std::vector<std::int64_t> samples_;
};

}  // namespace octavo
