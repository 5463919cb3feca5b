// The instruction set in use, and that a kernel runs at its width.
#include "cpu/instruction_set.h"

#include "backends.h"
#include "catch.h"

using namespace octavo;
using cpu::InstructionSet;

namespace {

struct Lanes {
  template <int W>
  static OCTAVO_INLINE void run(int* lanes) {
    *lanes = W;
  }
};

}  // namespace

TEST_CASE("a kernel runs at the width of the set in use, which can be limited and given back") {
  const InstructionSet best = cpu::instruction_set();
  const auto lanes_of = [](InstructionSet set) {
    return set == InstructionSet::avx512 ? 16 : set == InstructionSet::avx2 ? 8 : 4;
  };
  for (const InstructionSet set : {InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512}) {
    cpu::limit_instruction_set(set);
    const InstructionSet used = cpu::instruction_set();
    int lanes = 0;
    cpu::dispatch<Lanes>(&lanes);
    CHECK(lanes == lanes_of(used));
    CHECK(lanes == std::min(lanes_of(set), lanes_of(best)));  // never above the processor's
    CHECK_FALSE(std::string(cpu::name_of(used)).empty());
  }
  CHECK(cpu::instruction_set() == best);
}
