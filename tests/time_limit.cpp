// A wall limit leaves room for what must still be done; no clock is involved.
#include "time_limit.h"

#include "catch.h"

using namespace octavo;

TEST_CASE("a cost is a guess, then the slowest of late") {
  Cost cost;
  CHECK(cost.seconds(7) == 7);
  cost.took(2);
  CHECK(cost.seconds(7) == 2);
  cost.took(10);
  cost.took(1);
  CHECK(cost.seconds(7) == Approx(9));
  cost.took(1);
  CHECK(cost.seconds(7) == Approx(8.1));
  cost.took(8.5);
  CHECK(cost.seconds(7) == Approx(8.5));
}

TEST_CASE("without max_minutes there is no limit") {
  TimeLimit limit({}, 100, 100);
  limit.step.took(1e9);
  CHECK_FALSE(limit.reached(1e12, {.saves = true, .evaluates = true}));
}

TEST_CASE("a further step must fit with its checkpoint, its evaluation, and a save before it") {
  TimeLimit limit(100.0, 0, 0);
  limit.step.took(10);
  limit.evaluation.took(20);
  limit.save.took(5);
  // 2 s to close, and a tenth on 10 + 5, 10 + 20 + 5, 10 + 5 + 5, 10 + 20 + 5 + 5.
  CHECK_FALSE(limit.reached(100 - 2 - 16.6, {}));
  CHECK(limit.reached(100 - 2 - 16.4, {}));
  CHECK_FALSE(limit.reached(100 - 2 - 38.6, {.evaluates = true}));
  CHECK(limit.reached(100 - 2 - 38.4, {.evaluates = true}));
  CHECK_FALSE(limit.reached(100 - 2 - 22.1, {.saves = true}));
  CHECK(limit.reached(100 - 2 - 21.9, {.saves = true}));
  CHECK_FALSE(limit.reached(100 - 2 - 44.1, {.saves = true, .evaluates = true}));
  CHECK(limit.reached(100 - 2 - 43.9, {.saves = true, .evaluates = true}));
}

TEST_CASE("before they have been measured, evaluation and save are guessed") {
  TimeLimit limit(100.0, /*evaluation_steps=*/3, /*save_seconds=*/20);
  limit.step.took(10);
  CHECK_FALSE(limit.reached(100 - 2 - 33.1, {}));
  CHECK(limit.reached(100 - 2 - 32.9, {}));
  CHECK(limit.reached(100 - 2 - 65, {.evaluates = true}));
  limit.evaluation.took(1);
  limit.save.took(1);
  CHECK_FALSE(limit.reached(100 - 2 - 14, {.evaluates = true}));
}

TEST_CASE("a run held to a limit ends within it, however long its parts take") {
  for (const double step_s : {0.5, 3.0, 20.0}) {
    for (const double evaluation_s : {1.0, 30.0}) {
      constexpr double kLimit = 300, kSave = 4;
      TimeLimit limit(kLimit, /*evaluation_steps=*/1, kSave);
      double clock = 5;
      int steps = 0;
      for (int step = 1;; ++step) {
        clock += step_s, limit.step.took(step_s), ++steps;
        if (step % 4 == 0) clock += evaluation_s, limit.evaluation.took(evaluation_s);
        const bool saves = step % 6 == 0;
        const bool stop = limit.reached(clock, {.saves = saves, .evaluates = (step + 1) % 4 == 0});
        if (saves || stop) clock += kSave, limit.save.took(kSave);
        if (stop) break;
      }
      CHECK(clock <= kLimit);
      CHECK(steps >= 3);
      CHECK(clock > kLimit - 2 - 1.2 * (step_s + evaluation_s + 2 * kSave));  // nor much before it
    }
  }
}
