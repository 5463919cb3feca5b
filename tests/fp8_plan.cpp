// Which forms of an operand exist: for every set of products that read codes, what their readers need and no
// more.
#include "precision/fp8_plan.h"

#include <string>

#include "catch.h"

using namespace octavo;

namespace {

/// A product that reads an operand, and whether the operand would have to be transposed for the inner
/// dimension of the product to be contiguous. With rows of tokens x [N,I], w [O,I] and dy [N,O]:
///   y = x w^T sums over I,  dx = dy w over O,  dw = dy^T x over N.
struct Reader {
  Fp8Role role;
  bool LinearPaths::*product;
  bool transposed, trains;
};
constexpr Reader kReaders[] = {{Fp8Role::input, &LinearPaths::fprop, false, false},
                               {Fp8Role::weight, &LinearPaths::fprop, false, false},
                               {Fp8Role::gradient, &LinearPaths::dgrad, false, true},
                               {Fp8Role::weight, &LinearPaths::dgrad, true, true},
                               {Fp8Role::gradient, &LinearPaths::wgrad, true, true},
                               {Fp8Role::input, &LinearPaths::wgrad, true, true}};

}  // namespace

TEST_CASE("an operand has the forms that its readers read, and no others", "[fp8]") {
  for (int bits = 0; bits < 8; ++bits)
    for (const bool transposed : {false, true})
      for (const bool training : {false, true})
        for (const Linear linear : kLinears)
          for (const Fp8Role role : kFp8Roles) {
            const LinearPaths paths{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
            Fp8Plan plan;
            plan.transposed = transposed;
            plan.layers.resize(3);  // the two others have no codes
            plan.layers[1][static_cast<std::size_t>(linear)] = paths;
            CHECK(paths.any() == (bits != 0));
            Forms expected{.t = false};
            for (const Reader& r : kReaders) {
              if (r.role != role || (r.trains && !training)) continue;
              if (!(paths.*r.product))
                expected.t = true;
              else if (r.transposed && transposed)
                expected.q_t = true;
              else
                expected.q = true;
            }
            INFO(name_of(linear) << " " << name_of(role) << ", paths " << paths.fprop << paths.dgrad
                                 << paths.wgrad << ", transposed " << transposed << ", training "
                                 << training);
            const Forms forms = plan.forms(1, linear, role, training);
            CHECK(forms.t == expected.t);
            CHECK(forms.q == expected.q);
            CHECK(forms.q_t == expected.q_t);
            CHECK(forms.codes() == (expected.q || expected.q_t));
            // Layers without codes, and plans without FP8, have values wherever somebody reads.
            const bool read = role != Fp8Role::gradient || training;
            for (const Forms& plain :
                 {plan.forms(0, linear, role, training), Fp8Plan().forms(1, linear, role, training)}) {
              CHECK(plain.t == read);
              CHECK(!plain.codes());
            }
          }
}

TEST_CASE("the whole of a layer in FP8 leaves no values of its operands, for either way of reading",
          "[fp8]") {
  Fp8Plan plan;
  plan.layers = {{}};
  for (LinearPaths& paths : plan.layers[0]) paths = {true, true, true};
  for (const bool transposed : {false, true}) {
    plan.transposed = transposed;
    for (const Linear linear : kLinears)
      for (const Fp8Role role : kFp8Roles) {
        const Forms forms = plan.forms(0, linear, role, true);
        CHECK((!forms.t && forms.q && forms.q_t == transposed));
      }
  }
}

TEST_CASE("forms of several readers are the union", "[fp8]") {
  const Forms a{.t = false, .q = true}, b{.t = false, .q_t = true}, c{.t = true};
  const Forms ab = a | b, abc = ab | c;
  CHECK((!ab.t && ab.q && ab.q_t));
  CHECK((abc.t && abc.q && abc.q_t));
}

TEST_CASE("layers are skipped from both ends", "[fp8]") {
  Fp8Plan plan;
  plan.layers.resize(5);
  const auto skipped = [&](std::int64_t first, std::int64_t last) {
    plan.skip_first = first, plan.skip_last = last;
    std::string text;
    for (std::size_t l = 0; l < 5; ++l) text += plan.skips(l) ? 's' : '-';
    return text;
  };
  CHECK(skipped(0, 0) == "-----");
  CHECK(skipped(1, 0) == "s----");
  CHECK(skipped(0, 2) == "---ss");
  CHECK(skipped(2, 1) == "ss--s");
  CHECK(skipped(3, 2) == "sssss");
  CHECK(skipped(5, 5) == "sssss");
}
