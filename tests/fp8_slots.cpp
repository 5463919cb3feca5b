// The state of all slots: which there are and what they are called, how they start, and what a checkpoint
// keeps of them, over other lengths, other recipes and models that do not train.
#include "precision/fp8_slots.h"

#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "backends.h"
#include "catch.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

constexpr LinearPaths kEverything{true, true, true};

/// Layer 0 wholly in FP8, of layer 1 only fc's forward product.
Fp8Plan plan_of(std::int64_t history = 4, Fp8Scaling scaling = Fp8Scaling::delayed) {
  Fp8Plan plan;
  plan.recipe.history = history;
  plan.recipe.scaling = scaling;
  plan.layers.resize(2);
  plan.layers[0].fill(kEverything);
  plan.layers[1][static_cast<std::size_t>(Linear::fc)].fprop = true;
  return plan;
}

std::vector<std::string> names_of(const std::vector<Fp8SlotInfo>& infos) {
  std::vector<std::string> names;
  for (const Fp8SlotInfo& info : infos) names.push_back(info.name);
  return names;
}

/// Slots with their memory. Histories exist where the model trains and the recipe has them.
struct Placed {
  Backend& backend;
  std::int64_t count, length;
  DeviceArray<float> scale, scale_inv, scaled_max, last, history;
  DeviceArray<std::int32_t> amax, own_amax, frozen;
  DeviceArray<std::int64_t> saturated, underflowed;
  Fp8Slots slots;

  explicit Placed(Backend& b, const Fp8Plan& plan = plan_of(), bool training = true)
      : backend(b),
        count(static_cast<std::int64_t>(fp8_slots(plan, training).size())),
        length(plan.recipe.history),
        scale(b, {count}, "scale"),
        scale_inv(b, {count}, "scale_inv"),
        scaled_max(b, {count}, "scaled_max"),
        last(b, zeros<float>(count), {count}, "last"),
        history(b, zeros<float>(count * length), {count, length}, "history"),
        amax(b, zeros<std::int32_t>(count), {count}, "amax"),
        own_amax(b, zeros<std::int32_t>(count), {count}, "own_amax"),
        frozen(b, zeros<std::int32_t>(count), {count}, "frozen"),
        saturated(b, zeros<std::int64_t>(count), {count}, "saturated"),
        underflowed(b, zeros<std::int64_t>(count), {count}, "underflowed"),
        slots(
            b, plan, training,
            {.scale = scale.tensor,
             .scale_inv = scale_inv.tensor,
             .scaled_max = scaled_max.tensor,
             .last = last.tensor,
             .amax = amax.tensor,
             .own_amax = own_amax.tensor,
             .frozen = frozen.tensor,
             .saturated = saturated.tensor,
             .underflowed = underflowed.tensor,
             .history = training && plan.recipe.scaling == Fp8Scaling::delayed ? history.tensor : Tensor{}}) {
  }

  template <typename T>
  static std::vector<T> zeros(std::int64_t n) {
    return std::vector<T>(static_cast<std::size_t>(n), T{0});
  }
  /// As an operator would leave it.
  template <typename T>
  void set(const DeviceArray<T>& array, std::size_t index, T value) {
    backend.copy_to_device(array.tensor.template as<T>() + index, &value, sizeof value);
  }
  std::string bits() const { return bits_of(scale.read()) + bits_of(history.read()) + bits_of(amax.read()); }
};

/// A state for every slot of `names`, without a margin: history[0] is being collected, then old to new.
std::vector<Fp8SlotState> states_of(const std::vector<std::string>& names, std::size_t length) {
  std::vector<Fp8SlotState> states;
  for (const std::string& name : names) {
    const float k = static_cast<float>(states.size());
    const bool gradient = name.find("gradient") != std::string::npos;
    Fp8SlotState s{.name = name, .scale = 100 + k, .scaled_max = gradient ? 57344.0f : 448.0f, .history = {}};
    for (std::size_t i = 0; i < length; ++i) s.history.push_back(1 + 10 * k + static_cast<float>(i));
    states.push_back(s);
  }
  return states;
}

std::string bits_of_states(const std::vector<Fp8SlotState>& states) {
  std::string bits;
  for (const Fp8SlotState& s : states)
    bits += s.name + bits_of(std::vector<float>{s.scale, s.scaled_max}) + bits_of(s.history);
  return bits;
}

}  // namespace

TEST_CASE("there is a slot for every operand with codes, by layer, linear layer and role", "[fp8]") {
  const std::vector<std::string> training = {
      "layer0.qkv.input",   "layer0.qkv.weight",    "layer0.qkv.gradient", "layer0.proj.input",
      "layer0.proj.weight", "layer0.proj.gradient", "layer0.fc.input",     "layer0.fc.weight",
      "layer0.fc.gradient", "layer0.out.input",     "layer0.out.weight",   "layer0.out.gradient",
      "layer1.fc.input",    "layer1.fc.weight"};
  CHECK(names_of(fp8_slots(plan_of(), true)) == training);
  std::vector<std::string> evaluation;
  for (const std::string& name : training)
    if (name.find("gradient") == std::string::npos) evaluation.push_back(name);
  CHECK(names_of(fp8_slots(plan_of(), false)) == evaluation);
  CHECK(fp8_slots(Fp8Plan(), true).empty());

  Fp8Plan backward_only;  // a weight whose only reader of codes is in backward
  backward_only.layers.resize(1);
  backward_only.layers[0][static_cast<std::size_t>(Linear::out)].dgrad = true;
  CHECK(names_of(fp8_slots(backward_only, true)) ==
        std::vector<std::string>{"layer0.out.weight", "layer0.out.gradient"});
  CHECK(fp8_slots(backward_only, false).empty());
}

TEST_CASE("gradients are E5M2 in the hybrid format, all else is E4M3", "[fp8]") {
  for (const bool hybrid : {true, false}) {
    Fp8Plan plan = plan_of();
    plan.recipe.hybrid = hybrid;
    for (const Fp8SlotInfo& info : fp8_slots(plan, true)) {
      const bool gradient = info.role == Fp8Role::gradient;
      CHECK(info.format == (hybrid && gradient ? DType::e5m2 : DType::e4m3));
    }
  }
}

TEST_CASE("slots start at scale 1 with empty histories, and each finds its own numbers", "[fp8]") {
  for (Backend* b : backends()) {
    Fp8Plan plan = plan_of();
    plan.recipe.margin = 1;
    Placed p(*b, plan);
    REQUIRE(p.slots.size() == 14);
    CHECK(p.scale.read() == std::vector<float>(14, 1.0f));
    CHECK(p.scale_inv.read() == std::vector<float>(14, 1.0f));
    const std::vector<float> scaled_max = p.scaled_max.read();
    for (std::size_t i = 0; i < 14; ++i) {
      const Fp8SlotInfo& info = p.slots.infos()[i];
      INFO(info.name);
      CHECK(scaled_max[i] == (info.format == DType::e5m2 ? 28672.0f : 224.0f));
      const Fp8Slot* slot = p.slots.find(info.layer, info.linear, info.role);
      REQUIRE(slot != nullptr);
      CHECK(slot->format == info.format);
      CHECK(slot->scaling == Fp8Scaling::delayed);
      CHECK(slot->scale == p.scale.tensor.as<float>() + i);
      CHECK(slot->scale_inv == p.scale_inv.tensor.as<float>() + i);
      CHECK(slot->amax == p.amax.tensor.as<std::int32_t>() + i);
      CHECK(slot->own_amax == p.own_amax.tensor.as<std::int32_t>() + i);
      CHECK(slot->saturated == p.saturated.tensor.as<std::int64_t>() + i);
      CHECK(slot->underflowed == p.underflowed.tensor.as<std::int64_t>() + i);
    }
    CHECK(p.slots.find(1, Linear::qkv, Fp8Role::input) == nullptr);
    CHECK(p.slots.find(1, Linear::fc, Fp8Role::gradient) == nullptr);
    CHECK(p.slots.find(2, Linear::qkv, Fp8Role::input) == nullptr);
    CHECK(Fp8Slots().find(0, Linear::qkv, Fp8Role::input) == nullptr);
  }
}

TEST_CASE("calibration changes how scales are chosen, not how the update moves them", "[fp8]") {
  for (Backend* b : backends()) {
    Placed p(*b);
    p.slots.set_scaling(Fp8Scaling::current);
    for (const Fp8SlotInfo& i : p.slots.infos())
      CHECK(p.slots.find(i.layer, i.linear, i.role)->scaling == Fp8Scaling::current);
    for (std::size_t i = 0; i < 14; ++i) p.set(p.amax, i, std::bit_cast<std::int32_t>(2.0f));
    const DeviceState state(*b);
    b->run(p.slots.update(state.state));
    p.slots.set_scaling(Fp8Scaling::delayed);
    for (const Fp8SlotInfo& i : p.slots.infos())
      CHECK(p.slots.find(i.layer, i.linear, i.role)->scaling == Fp8Scaling::delayed);
    for (const Fp8SlotState& s : p.slots.save()) {
      const bool gradient = s.name.find("gradient") != std::string::npos;
      CHECK(s.scale == (gradient ? 28672 : 224));
      CHECK(s.history == std::vector<float>{0, 0, 0, 2});
    }
  }
}

TEST_CASE("the update of the slots is that of their recipe", "[fp8]") {
  for (Backend* b : backends())
    for (const Fp8AmaxAlgorithm algorithm : {Fp8AmaxAlgorithm::max, Fp8AmaxAlgorithm::most_recent})
      for (const Fp8Scaling scaling : {Fp8Scaling::delayed, Fp8Scaling::current}) {
        Fp8Plan plan = plan_of(4, scaling);
        plan.recipe.algorithm = algorithm;
        const Placed p(*b, plan);
        const DeviceState state(*b);
        const Fp8Update op = p.slots.update(state.state);
        CHECK(op.algorithm == algorithm);
        CHECK(op.scaling == scaling);
        CHECK(op.state == state.state);
        CHECK(static_cast<bool>(op.history) == (scaling == Fp8Scaling::delayed));
        CHECK_NOTHROW(b->run(op));
      }
}

TEST_CASE("health tells a step's scales, amaxes, counts and frozen slots", "[fp8]") {
  for (Backend* b : backends()) {
    Placed p(*b);
    p.set(p.amax, 3, std::bit_cast<std::int32_t>(7.0f));
    p.set(p.amax, 5, std::bit_cast<std::int32_t>(kInf));
    p.set(p.saturated, 3, std::int64_t{1} << 40);
    p.set(p.underflowed, 4, std::int64_t{9});
    const DeviceState state(*b);
    b->run(p.slots.update(state.state));
    const std::vector<Fp8SlotHealth> health = p.slots.health();
    REQUIRE(health.size() == 14);
    CHECK((health[3].scale == 64 && health[3].amax == 7 && !health[3].frozen));
    CHECK((health[3].saturated == std::int64_t{1} << 40 && health[3].underflowed == 0));
    CHECK((health[4].scale == 1 && health[4].amax == 0 && health[4].underflowed == 9 && !health[4].frozen));
    CHECK((health[5].scale == 1 && health[5].amax == kInf && health[5].frozen));
    p.slots.clear_counts();
    for (const Fp8SlotHealth& h : p.slots.health()) CHECK((h.saturated == 0 && h.underflowed == 0));
    CHECK(p.slots.health()[3].amax == 7);
    CHECK(Fp8Slots().health().empty());
  }
}

TEST_CASE("slots come back from what was saved with every bit, NaN and collected amaxes included", "[fp8]") {
  for (Backend* b : backends())
    for (const std::int64_t length : {1, 2, 1024}) {
      const Fp8Plan plan = plan_of(length);
      Placed from(*b, plan);
      std::vector<Fp8SlotState> states =
          states_of(names_of(from.slots.infos()), static_cast<std::size_t>(length));
      states[1].history[0] = kNan;
      states[2].history.back() = kInf;
      states[3].history.back() = kNan;
      states[4].scale = 0x1.234568p-100f;
      CHECK(from.slots.load(states).empty());
      CHECK(from.slots.save().size() == 14);
      CHECK((bits_of_states(from.slots.save()) == bits_of_states(states)));
      Placed to(*b, plan);
      CHECK(to.slots.load(from.slots.save()).empty());
      CHECK((to.bits() == from.bits()));
      // They go on alike.
      const DeviceState state(*b);
      b->run(from.slots.update(state.state));
      b->run(to.slots.update(state.state));
      CHECK((to.bits() == from.bits()));
      CHECK(to.bits() != Placed(*b, plan).bits());
    }
}

TEST_CASE("a history of another length keeps its newest amaxes", "[fp8]") {
  for (Backend* b : backends()) {
    const auto loaded = [&](std::int64_t length, std::vector<float> history) {
      Placed p(*b, plan_of(length));
      std::vector<Fp8SlotState> states = states_of(names_of(p.slots.infos()), 1);
      for (Fp8SlotState& s : states) s.history = history;
      CHECK(p.slots.load(states).empty());
      const std::vector<Fp8SlotState> now = p.slots.save();
      for (const Fp8SlotState& s : now) CHECK(s.history == now[0].history);
      CHECK(now[2].scale == 102);
      return now[0].history;
    };
    using V = std::vector<float>;
    CHECK(loaded(4, {9, 1, 2, 3}) == V{9, 1, 2, 3});
    CHECK(loaded(6, {9, 1, 2, 3}) == V{9, 0, 0, 1, 2, 3});
    CHECK(loaded(3, {9, 1, 2, 3}) == V{9, 2, 3});
    CHECK(loaded(2, {9, 1, 2, 3}) == V{9, 3});
    CHECK(loaded(1, {9, 1, 2, 3}) == V{9});
    CHECK(loaded(4, {9}) == V{9, 0, 0, 0});
  }
}

TEST_CASE("a scale made for another margin or format is converted exactly, its history kept", "[fp8]") {
  for (Backend* b : backends())
    for (const std::int64_t margin : {0, 3})
      for (const bool hybrid : {true, false}) {
        Fp8Plan plan = plan_of(4);
        plan.recipe.margin = margin;
        plan.recipe.hybrid = hybrid;
        Placed p(*b, plan);
        std::vector<Fp8SlotState> states = states_of(names_of(p.slots.infos()), 4);
        states[1].scale = std::numeric_limits<float>::max();
        CHECK(p.slots.load(states).empty());
        const std::vector<Fp8SlotState> now = p.slots.save();
        for (std::size_t i = 0; i < now.size(); ++i) {
          INFO(now[i].name << ", margin " << margin << ", hybrid " << hybrid);
          const bool gradient = now[i].name.find("gradient") != std::string::npos;
          // E5M2 reaches 128 times as far as E4M3.
          const float factor = (gradient && !hybrid ? 1.0f / 128 : 1.0f) / (margin == 0 ? 1.0f : 8.0f);
          CHECK(now[i].scale == states[i].scale * factor);
          CHECK(now[i].scaled_max == states[i].scaled_max * factor);
          CHECK(now[i].history == states[i].history);
        }
        // The other way round, where the largest float stays that.
        Placed back(*b, plan_of(4));
        states[1].scaled_max = 56;
        CHECK(back.slots.load(states).empty());
        CHECK(back.slots.save()[1].scale == std::numeric_limits<float>::max());
        CHECK(back.slots.load(now).empty());
        states[1].scaled_max = 448;
        CHECK((bits_of_states(back.slots.save()) == bits_of_states(states)));
      }
}

TEST_CASE("loading again leaves nothing of what was there before", "[fp8]") {
  for (Backend* b : backends()) {
    Placed p(*b, plan_of(4)), fresh(*b, plan_of(4));
    const std::vector<std::string> names = names_of(p.slots.infos());
    p.slots.load(states_of(names, 4));
    p.slots.load(states_of(names, 2));
    fresh.slots.load(states_of(names, 2));
    CHECK((p.bits() == fresh.bits()));
  }
}

TEST_CASE("slots that a checkpoint lacks are named and left, slots of others are passed over", "[fp8]") {
  for (Backend* b : backends()) {
    Placed p(*b);
    std::vector<Fp8SlotState> states = states_of(names_of(p.slots.infos()), 4);
    states.erase(states.begin() + 5);
    states.erase(states.begin());
    states.push_back({.name = "layer7.qkv.input", .scale = 3, .scaled_max = 448, .history = {1, 2, 3, 4}});
    CHECK(p.slots.load(states) == std::vector<std::string>{"layer0.qkv.input", "layer0.proj.gradient"});
    const std::vector<Fp8SlotState> now = p.slots.save();
    for (const std::size_t left : {0, 5}) {
      CHECK(now[left].scale == 1);
      CHECK(now[left].history == std::vector<float>(4, 0.0f));
    }
    CHECK(now[1].scale == 101);
    CHECK(p.slots.load({}).size() == 14);
    CHECK(p.slots.save()[1].scale == 101);
  }
}

TEST_CASE("a model that does not train takes the scales without histories and gradients", "[fp8]") {
  for (Backend* b : backends()) {
    Placed trained(*b), evaluated(*b, plan_of(), false);
    trained.slots.load(states_of(names_of(trained.slots.infos()), 4));
    CHECK(evaluated.slots.load(trained.slots.save()).empty());
    const std::vector<float> scales = evaluated.scale.read();
    const std::vector<Fp8SlotState> states = trained.slots.save();
    for (std::size_t i = 0; i < evaluated.slots.size(); ++i)
      for (const Fp8SlotState& s : states)
        if (s.name == evaluated.slots.infos()[i].name) CHECK(scales[i] == s.scale);
    CHECK(evaluated.history.read() ==
          std::vector<float>(static_cast<std::size_t>(evaluated.count) * 4, 0.0f));
    CHECK(evaluated.slots.save().empty());
  }
}

TEST_CASE("current scaling has no state to save or to load", "[fp8]") {
  for (Backend* b : backends()) {
    Placed p(*b, plan_of(4, Fp8Scaling::current));
    const std::string before = p.bits();
    CHECK(p.slots.save().empty());
    CHECK(p.slots.load(states_of(names_of(p.slots.infos()), 4)).empty());
    CHECK((p.bits() == before));
    CHECK(Fp8Slots().save().empty());
    CHECK(Fp8Slots().load({}).empty());
  }
}
