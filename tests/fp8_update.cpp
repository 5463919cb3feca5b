// Fp8Update: every slot by itself, a skipped step, current scaling, and the flags of slots that do not move.
#include <limits>
#include <string>
#include <vector>

#include "backend.h"
#include "backends.h"
#include "catch.h"
#include "fp8_reference.h"

using namespace octavo;
using namespace octavo::testing;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

/// Slots whose amaxes, histories and scales differ, with every kind of amax among them.
struct Slots {
  std::int64_t count, length;
  std::vector<float> amaxes, histories, scales, scaled_maxes;

  Slots(std::int64_t count_, std::int64_t length_)
      : count(count_),
        length(length_),
        amaxes(random_values<float>(count, 1)),
        histories(random_values<float>(count * length, 2)),
        scales(random_values<float>(count, 3)) {
    for (std::int64_t s = 0; s < count; ++s) {
      const std::size_t i = static_cast<std::size_t>(s), first = static_cast<std::size_t>(s * length);
      amaxes[i] = std::abs(amaxes[i]);
      scales[i] = std::abs(scales[i]);
      scaled_maxes.push_back(s % 3 == 0 ? 57344.0f : 448.0f);
      for (std::size_t k = first; k < first + static_cast<std::size_t>(length); ++k)
        histories[k] = std::abs(histories[k]);
      histories[first] = 0;
      if (s % 7 == 1) amaxes[i] = 0;
      if (s % 7 == 2) amaxes[i] = kInf;
      if (s % 7 == 3) amaxes[i] = kNan;
      if (s % 7 == 4 && length > 1) histories[first + static_cast<std::size_t>(length) - 1] = kInf;
      if (s % 7 == 5 && length > 1) histories[first + 1] = kNan;
    }
  }
};

/// The same in a backend's memory.
struct Device {
  DeviceArray<std::int32_t> amax, frozen;
  DeviceArray<float> history, scale, scaled_max, last;
  DeviceState state;

  Device(Backend& b, const Slots& s, std::int32_t skip)
      : amax(b, bits_as_int(s.amaxes), {s.count}, "amax"),
        frozen(b, {s.count}, "frozen"),
        history(b, s.histories, {s.count, s.length}, "history"),
        scale(b, s.scales, {s.count}, "scale"),
        scaled_max(b, s.scaled_maxes, {s.count}, "scaled_max"),
        last(b, {s.count}, "last"),
        state(b, StepState{.step = 3, .skip = skip, .updates = 2}) {}

  Fp8Update op(Fp8Scaling scaling = Fp8Scaling::delayed,
               Fp8AmaxAlgorithm algorithm = Fp8AmaxAlgorithm::max) const {
    return {.amax = amax.tensor,
            .history = scaling == Fp8Scaling::delayed ? history.tensor : Tensor{},
            .scale = scale.tensor,
            .scaled_max = scaled_max.tensor,
            .last = last.tensor,
            .frozen = frozen.tensor,
            .scaling = scaling,
            .algorithm = algorithm,
            .state = state.state};
  }
  std::string bits() const {
    return bits_of(amax.read()) + bits_of(frozen.read()) + bits_of(history.read()) + bits_of(scale.read()) +
           bits_of(scaled_max.read()) + bits_of(last.read());
  }
  void set_amaxes(Backend& b, const std::vector<float>& values) const {
    b.copy_to_device(amax.tensor.data, values.data(), amax.tensor.bytes());
  }

 private:
  static std::vector<std::int32_t> bits_as_int(const std::vector<float>& values) {
    std::vector<std::int32_t> bits;
    for (const float v : values) bits.push_back(std::bit_cast<std::int32_t>(v));
    return bits;
  }
};

const std::vector<std::int32_t> no_amax(std::int64_t count) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(count), 0);
}

}  // namespace

TEST_CASE("an update moves every slot as if it were alone", "[fp8]") {
  for (Backend* b : backends())
    for (const std::int64_t length : {1, 2, 5, 1024})
      for (const Fp8AmaxAlgorithm algorithm : {Fp8AmaxAlgorithm::max, Fp8AmaxAlgorithm::most_recent}) {
        const Slots slots(150, length);
        const Device device(*b, slots, 0);
        b->run(device.op(Fp8Scaling::delayed, algorithm));
        std::vector<float> histories, scales;
        std::vector<std::int32_t> frozen;
        for (std::int64_t s = 0; s < slots.count; ++s) {
          const std::size_t i = static_cast<std::size_t>(s);
          const auto from = slots.histories.begin() + s * length;
          reference::Delayed slot{.history = std::vector<float>(from, from + length),
                                  .scale = slots.scales[i]};
          const bool recent = algorithm == Fp8AmaxAlgorithm::most_recent;
          slot.update(recent, slots.amaxes[i], static_cast<double>(slots.scaled_maxes[i]), 0);
          histories.insert(histories.end(), slot.history.begin(), slot.history.end());
          scales.push_back(slot.scale);
          // Not moved although something was cast; that the new scale equals the old by chance does not
          // occur.
          frozen.push_back(slots.amaxes[i] != 0 && slot.scale == slots.scales[i] ? 1 : 0);
        }
        INFO(b->name() << " length " << length);
        CHECK((bits_of(device.history.read()) == bits_of(histories)));
        CHECK((bits_of(device.scale.read()) == bits_of(scales)));
        CHECK((bits_of(device.last.read()) == bits_of(slots.amaxes)));
        CHECK((bits_of(device.scaled_max.read()) == bits_of(slots.scaled_maxes)));
        CHECK(device.frozen.read() == frozen);
        CHECK(std::count(frozen.begin(), frozen.end(), 1) > 20);
        CHECK(device.amax.read() == no_amax(slots.count));
        CHECK(device.state.read().updates == 2);
      }
}

TEST_CASE("a slot is frozen for as long as infinity is in its window, not where nothing was cast", "[fp8]") {
  for (Backend* b : backends()) {
    Slots slots(1, 3);
    slots.histories = {0, 0, 0};
    slots.amaxes = {kInf};
    const Device device(*b, slots, 0);
    std::vector<std::int32_t> seen;
    for (const float amax : {kInf, 1.0f, 0.0f, 2.0f, 4.0f, kNan}) {
      device.set_amaxes(*b, {amax});
      b->run(device.op());
      seen.push_back(device.frozen.read()[0]);
    }
    CHECK(seen == std::vector<std::int32_t>{1, 1, 0, 1, 0, 0});
  }
}

TEST_CASE("a skipped step leaves scales and histories bit-unchanged and clears the amaxes", "[fp8]") {
  for (Backend* b : backends())
    for (const Fp8Scaling scaling : {Fp8Scaling::delayed, Fp8Scaling::current}) {
      const Slots slots(150, 5);
      const Device device(*b, slots, 1);
      b->run(device.op(scaling));
      CHECK((bits_of(device.history.read()) == bits_of(slots.histories)));
      CHECK((bits_of(device.scale.read()) == bits_of(slots.scales)));
      CHECK(device.amax.read() == no_amax(slots.count));
      CHECK(device.frozen.read() == no_amax(slots.count));
      CHECK(device.state.read().skip == 1);
    }
}

TEST_CASE("under current scaling an update reports and clears the amaxes, and moves nothing", "[fp8]") {
  for (Backend* b : backends()) {
    const Slots slots(20, 1);
    const Device device(*b, slots, 0);
    b->run(device.op(Fp8Scaling::current));
    CHECK((bits_of(device.scale.read()) == bits_of(slots.scales)));
    CHECK((bits_of(device.history.read()) == bits_of(slots.histories)));
    CHECK((bits_of(device.last.read()) == bits_of(slots.amaxes)));
    CHECK(device.amax.read() == no_amax(slots.count));
    CHECK(device.frozen.read() == no_amax(slots.count));
  }
}

TEST_CASE("updates have the same bits on any number of threads and any instruction set", "[fp8]") {
  check_same_bits_everywhere([](Backend& b) {
    const Slots slots(150, 16);
    const Device device(b, slots, 0);
    b.run(device.op());
    return device.bits();
  });
}
