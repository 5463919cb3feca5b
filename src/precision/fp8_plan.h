// fp8_plan.h - which products of which layer run on FP8 codes, and so which forms of each operand exist.
//
// The four linear layers of a block can; embedding, head, norms, attention and the residual stream stay in
// bf16. Decided once, before anything is allocated (run_plan.cpp); everything else follows from it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "precision/fp8_recipe.h"

namespace octavo {

enum class Linear : std::uint8_t { qkv, proj, fc, out };
inline constexpr std::array<Linear, 4> kLinears = {Linear::qkv, Linear::proj, Linear::fc, Linear::out};
const char* name_of(Linear linear);

/// Whose codes a slot scales: of y = x w^T the input x, the weight w, and the gradient of y.
enum class Fp8Role : std::uint8_t { input, weight, gradient };
inline constexpr std::array<Fp8Role, 3> kFp8Roles = {Fp8Role::input, Fp8Role::weight, Fp8Role::gradient};
const char* name_of(Fp8Role role);

/// Which of a linear layer's three products read codes.
struct LinearPaths {
  bool fprop = false, dgrad = false, wgrad = false;
  bool any() const { return fprop || dgrad || wgrad; }
};

/// Which forms of an operand somebody reads.
struct Forms {
  bool t = true, q = false, q_t = false;
  bool codes() const { return q || q_t; }
  Forms operator|(Forms o) const { return {t || o.t, q || o.q, q_t || o.q_t}; }
};

struct Fp8Plan {
  Fp8Recipe recipe;
  bool calibrate = true;    // step 1 is preceded by a pass that finds the first scales
  bool transposed = false;  // dgrad and wgrad read transposed codes: what the device's products want
  std::int64_t skip_first = 0, skip_last = 0;  // layers that stay in bf16 because the config says so
  std::vector<std::array<LinearPaths, kLinears.size()>> layers;  // empty: no FP8

  bool on() const { return !layers.empty(); }
  bool skips(std::size_t layer) const {
    const std::int64_t l = static_cast<std::int64_t>(layer);
    return l < skip_first || l >= static_cast<std::int64_t>(layers.size()) - skip_last;
  }
  LinearPaths paths(std::size_t layer, Linear linear) const {
    return on() ? layers[layer][static_cast<std::size_t>(linear)] : LinearPaths{};
  }
  /// Forms of a linear layer's operand. Without `training` only fprop reads.
  Forms forms(std::size_t layer, Linear linear, Fp8Role role, bool training) const;
};

}  // namespace octavo
