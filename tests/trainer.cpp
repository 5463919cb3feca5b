// The training step: where it stands, what a step that is not finite leaves alone, and going on from a state.
#include "trainer.h"

#include <cmath>
#include <limits>

#include "backends.h"
#include "catch.h"
#include "error.h"
#include "tiny_model.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

std::vector<float> read(Backend& backend, const Tensor& t) {
  const HostCopy copy(backend, t);
  return {copy.data(), copy.data() + t.numel()};
}

void write(Backend& backend, const Tensor& t, const std::vector<float>& values) {
  backend.copy_to_device(t.data, values.data(), t.bytes());
}

}  // namespace

TEST_CASE("a step counts itself, its sequences and its update, and the loss falls") {
  Backend& backend = *GENERATE(from_range(backends()));
  const Dataset data = tiny_dataset();
  const RunPlan plan = make_run_plan(tiny_config(), data, backend, {});
  Trainer trainer(backend, plan, data);
  trainer.initialise();
  const StepResult first = trainer.train_step();
  CHECK(first.loss == Approx(std::log(static_cast<double>(kTinyVocab))).epsilon(0.01));
  CHECK(first.lr == plan.schedule.at(1));
  CHECK(first.grad_norm > 0);
  CHECK(first.finite);
  CHECK(trainer.state().step == 1);
  CHECK(trainer.state().samples == 4);
  CHECK(trainer.state().updates == 1);
  StepResult last = first;
  while (trainer.state().step < 20) last = trainer.train_step();
  CHECK(last.loss < first.loss);
  CHECK(trainer.state().samples == 80);
}

TEST_CASE("weights, moments and state are all that a step depends on") {
  Backend& backend = *GENERATE(from_range(backends()));
  const Dataset data = tiny_dataset();
  const RunPlan plan = make_run_plan(tiny_config({{"model.dropout", "0.25"}}), data, backend, {});
  Trainer a(backend, plan, data), b(backend, plan, data);
  a.initialise();
  for (int i = 0; i < 7; ++i) a.train_step();
  for (const auto tensor : {&Model::masters, &Model::moment1, &Model::moment2})
    write(backend, (b.model().*tensor)(), read(backend, (a.model().*tensor)()));
  b.model().refresh_working(/*record=*/true);
  b.set_state(a.state());
  for (int i = 0; i < 3; ++i) {
    const StepResult x = a.train_step(), y = b.train_step();
    CHECK(x.loss == y.loss);
    CHECK(x.grad_norm == y.grad_norm);
    CHECK(x.lr == y.lr);
  }
  CHECK(read(backend, a.model().masters()) == read(backend, b.model().masters()));
}

TEST_CASE("a step that is not finite moves step and data, and leaves weights and moments") {
  Backend& backend = *GENERATE(from_range(backends()));
  const Dataset data = tiny_dataset();
  const RunPlan plan = make_run_plan(tiny_config(), data, backend, {});
  Trainer trainer(backend, plan, data);
  trainer.initialise();
  trainer.train_step();
  const std::vector<float> good = read(backend, trainer.model().masters());
  std::vector<float> bad = good;
  bad[0] = std::numeric_limits<float>::infinity();
  write(backend, trainer.model().masters(), bad);
  trainer.model().refresh_working(/*record=*/true);
  const std::vector<float> moment = read(backend, trainer.model().moment1());
  for (int i = 1; i <= 2; ++i) {
    CHECK_FALSE(trainer.train_step().finite);
    CHECK(trainer.state().step == 1 + i);
    CHECK(trainer.state().samples == 4 * (1 + i));
    CHECK(trainer.state().updates == 1);
    CHECK(trainer.state().skipped == i);
    CHECK(trainer.state().bad_in_row == i);
  }
  CHECK(read(backend, trainer.model().masters()) == bad);
  CHECK(read(backend, trainer.model().moment1()) == moment);
  write(backend, trainer.model().masters(), good);
  trainer.model().refresh_working(/*record=*/true);
  CHECK(trainer.train_step().finite);
  CHECK(trainer.state().bad_in_row == 0);
  CHECK(trainer.state().skipped == 2);
}

TEST_CASE("a token outside the vocabulary that the start did not see fails the run") {
  Backend& backend = *GENERATE(from_range(backends()));
  Dataset data = tiny_dataset();
  const RunPlan plan = make_run_plan(tiny_config(), data, backend, {});
  data.train.set_vocab(3);
  Trainer trainer(backend, plan, data);
  trainer.initialise();
  CHECK_THROWS_AS(trainer.train_step(), RunError);
}
