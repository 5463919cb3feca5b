#include "trainer.h"

#include <cmath>

#include "error.h"

namespace octavo {

Trainer::Trainer(Backend& backend, const RunPlan& plan, const Dataset& data)
    : backend_(backend),
      plan_(plan),
      data_(data),
      order_(data.train.size(), plan.model.T,
             static_cast<std::uint64_t>(plan.config.data.seed.value_or(plan.config.train.seed))),
      model_(backend, plan.model),
      calibrates_(plan.model.fp8.on() && plan.model.fp8.calibrate &&
                  plan.model.fp8.recipe.scaling == Fp8Scaling::delayed),
      batch_(model_.batch()) {
  const std::size_t N = static_cast<std::size_t>(plan.model.B * plan.model.T);
  tokens_.resize(N);
  targets_.resize(N);
  samples_.resize(static_cast<std::size_t>(plan.model.B));
}

void Trainer::initialise() {
  std::vector<float> weights(static_cast<std::size_t>(model_.table().arena_size));
  initialise_parameters(model_.table(), plan_.model.shape, plan_.config.model.init_std,
                        static_cast<std::uint64_t>(plan_.config.train.seed), weights.data());
  backend_.copy_to_device(model_.masters().data, weights.data(), weights.size() * sizeof(float));
  model_.refresh_working(/*record=*/true);
}

std::vector<std::string> Trainer::load_fp8(std::vector<Fp8SlotState> states) {
  std::vector<std::string> missing = model_.fp8().load(states);
  calibrates_ = calibrates_ && !missing.empty();
  restored_ = std::move(states);
  return missing;
}

/// The first scales: this step's whole batch once under current scaling; its gradients are discarded, its
/// amaxes make the first entry of every history.
void Trainer::calibrate() {
  begin_step();
  model_.fp8().set_scaling(Fp8Scaling::current);
  model_.refresh_working(/*record=*/true);
  for (std::int64_t micro = 0; micro < plan_.accumulate; ++micro) {
    load_micro_batch(micro);
    model_.forward(batch_, Model::Pass::train);
    model_.backward(batch_, /*accumulate=*/false);
  }
  backend_.run(model_.fp8().update(model_.state()));
  model_.fp8().set_scaling(Fp8Scaling::delayed);
  model_.fp8().load(restored_);
  model_.refresh_working(/*record=*/true);
  calibrates_ = false;
}

StepResult Trainer::train_step() {
  if (calibrates_) calibrate();
  begin_step();
  for (std::int64_t micro = 0; micro < plan_.accumulate; ++micro) {
    load_micro_batch(micro);
    model_.forward(batch_, Model::Pass::train);
    model_.backward(batch_, /*accumulate=*/micro > 0);
  }
  const OptimizerConfig& o = plan_.config.optimizer;
  backend_.run(
      GradientNorm{.grad = model_.gradients(), .clip = static_cast<float>(o.clip), .state = model_.state()});
  if (plan_.model.fp8.on()) backend_.run(model_.fp8().update(model_.state()));
  backend_.run(AdamW{.param = model_.masters(),
                     .grad = model_.gradients(),
                     .m = model_.moment1(),
                     .v = model_.moment2(),
                     .working = model_.working(),
                     .segments = model_.segments(),
                     .beta1 = static_cast<float>(o.betas[0]),
                     .beta2 = static_cast<float>(o.betas[1]),
                     .eps = static_cast<float>(o.eps),
                     .weight_decay = static_cast<float>(o.weight_decay),
                     .state = model_.state()});
  return end_step();
}

void Trainer::begin_step() {
  StepState s;
  s.step = state_.step + 1;
  s.lr = static_cast<float>(plan_.schedule.at(s.step));
  // Every target of a training window is real, so the normaliser is known before the step.
  s.grad_scale = static_cast<float>(1.0 / static_cast<double>(plan_.tokens_per_step()));
  s.updates = state_.updates;
  backend_.copy_to_device(model_.state(), &s, sizeof s);
  model_.fp8().clear_counts();
}

StepResult Trainer::end_step() {
  StepState s;
  backend_.copy_to_host(&s, model_.state(), sizeof s);
  StepResult result;
  result.loss = s.loss_sum / static_cast<double>(plan_.tokens_per_step());
  result.lr = plan_.schedule.at(s.step);
  result.grad_norm = static_cast<double>(s.grad_norm);
  result.finite = s.skip == 0;
  result.fp8 = model_.fp8().health();
  state_.step = s.step;
  state_.samples += plan_.sequences_per_step;
  state_.updates = s.updates;
  state_.skipped += result.finite ? 0 : 1;
  state_.bad_in_row = result.finite ? 0 : state_.bad_in_row + 1;
  return result;
}

void Trainer::load_micro_batch(std::int64_t micro) {
  const std::int64_t first = state_.samples + micro * plan_.model.B;
  for (std::size_t b = 0; b < samples_.size(); ++b) samples_[b] = first + static_cast<std::int64_t>(b);
  try {
    fill_batch(data_.train, order_, samples_, tokens_.data(), targets_.data());
  } catch (const RequestError& e) {
    throw RunError(e.what());  // a token that the check at the start did not sample: the run has begun
  }
  backend_.copy_to_device(batch_.tokens.data, tokens_.data(), batch_.tokens.bytes());
  backend_.copy_to_device(batch_.targets.data, targets_.data(), batch_.targets.bytes());
  backend_.copy_to_device(batch_.samples.data, samples_.data(), batch_.samples.bytes());
}

}  // namespace octavo
