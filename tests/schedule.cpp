// Learning rates against values computed by hand from the definitions in schedule.h.
#include "schedule.h"

#include <cmath>

#include "catch.h"
#include "error.h"

using namespace octavo;

namespace {

OptimizerConfig optimizer(const std::string& schedule) {
  OptimizerConfig c{};
  c.lr = 1.0;
  c.schedule = schedule;
  return c;
}

}  // namespace

TEST_CASE("warm-up moves at step 1 and reaches lr at its end") {
  OptimizerConfig c = optimizer("cosine");
  c.warmup_steps = 4;
  const Schedule s = make_schedule(c, 100);
  CHECK(s.at(1) == 0.25);
  CHECK(s.at(2) == 0.5);
  CHECK(s.at(4) == 1.0);
  CHECK(s.at(5) < 1.0);
}

TEST_CASE("cosine ends at min_lr, passing the middle at the middle") {
  OptimizerConfig c = optimizer("cosine");
  c.warmup_steps = 0;
  c.min_lr = 0.2;
  const Schedule s = make_schedule(c, 100);
  CHECK(s.at(50) == Approx(0.6));
  CHECK(s.at(25) == Approx(0.2 + 0.8 * 0.5 * (1 + std::sqrt(0.5))));
  CHECK(s.at(100) == Approx(0.2));
  CHECK(s.at(1) < 1.0);
}

TEST_CASE("defaults: 2 % warm-up, min_lr a tenth, decay over the rest") {
  const Schedule s = make_schedule(optimizer("linear"), 1000);
  CHECK(s.warmup_steps == 20);
  CHECK(s.decay_steps == 980);
  CHECK(s.min_lr == Approx(0.1));
  CHECK(s.at(20) == 1.0);
  CHECK(s.at(20 + 490) == Approx(0.55));
  CHECK(s.at(1000) == Approx(0.1));
  CHECK(make_schedule(optimizer("linear"), 1).warmup_steps == 1);
}

TEST_CASE("a decay shorter than the rest is kept at min_lr") {
  OptimizerConfig c = optimizer("linear");
  c.warmup_steps = 0;
  c.decay_steps = 10;
  const Schedule s = make_schedule(c, 100);
  CHECK(s.at(5) == Approx(0.55));
  CHECK(s.at(10) == Approx(0.1));
  CHECK(s.at(90) == Approx(0.1));
}

TEST_CASE("a decay may be longer than the run") {
  OptimizerConfig c = optimizer("linear");
  c.warmup_steps = 0;
  c.decay_steps = 90;
  CHECK(make_schedule(c, 10).at(9) == Approx(0.91));
}

TEST_CASE("wsd is stable until its last fifth") {
  OptimizerConfig c = optimizer("wsd");
  c.warmup_steps = 10;
  c.min_lr = 0.0;
  const Schedule s = make_schedule(c, 100);
  CHECK(s.at(11) == 1.0);
  CHECK(s.at(80) == 1.0);
  CHECK(s.at(90) == Approx(0.5));
  CHECK(s.at(100) == Approx(0.0).margin(1e-12));
}

TEST_CASE("constant stays") {
  OptimizerConfig c = optimizer("constant");
  c.warmup_steps = 2;
  const Schedule s = make_schedule(c, 10);
  CHECK(s.at(1) == 0.5);
  for (int i = 2; i <= 10; ++i) CHECK(s.at(i) == 1.0);
}

TEST_CASE("warm-up and decay must fit into the steps") {
  OptimizerConfig c = optimizer("wsd");
  c.warmup_steps = 11;
  CHECK_THROWS_WITH(make_schedule(c, 10), ContainsSubstring("optimizer.warmup_steps: found 11"));
  c.warmup_steps = 5;
  c.decay_steps = 6;
  CHECK_THROWS_WITH(make_schedule(c, 10), ContainsSubstring("allowed: 0 to 5"));
  CHECK_THROWS_AS(make_schedule(c, 10), RequestError);
}
