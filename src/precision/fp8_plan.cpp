#include "precision/fp8_plan.h"

namespace octavo {

const char* name_of(Linear linear) {
  switch (linear) {
    case Linear::qkv:
      return "qkv";
    case Linear::proj:
      return "proj";
    case Linear::fc:
      return "fc";
    case Linear::out:
      return "out";
  }
  return "?";
}

const char* name_of(Fp8Role role) {
  switch (role) {
    case Fp8Role::input:
      return "input";
    case Fp8Role::weight:
      return "weight";
    case Fp8Role::gradient:
      return "gradient";
  }
  return "?";
}

Forms Fp8Plan::forms(std::size_t layer, Linear linear, Fp8Role role, bool training) const {
  const LinearPaths p = paths(layer, linear);
  // One reader in its natural order, and one that would have the operand transposed.
  struct Reader {
    bool exists, codes;
  };
  const Reader fprop{true, p.fprop}, dgrad{training, p.dgrad}, wgrad{training, p.wgrad};
  const auto of = [&](Reader plain, Reader turned) {
    const bool turned_codes = turned.exists && turned.codes;
    return Forms{.t = (plain.exists && !plain.codes) || (turned.exists && !turned.codes),
                 .q = (plain.exists && plain.codes) || (turned_codes && !transposed),
                 .q_t = turned_codes && transposed};
  };
  switch (role) {
    case Fp8Role::input:
      return of(fprop, wgrad);
    case Fp8Role::weight:
      return of(fprop, dgrad);
    case Fp8Role::gradient:
      return of(dgrad, wgrad);
  }
  return {};
}

}  // namespace octavo
