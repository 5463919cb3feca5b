// instruction_set.h - which vector instructions the hot loops use, decided once from the processor.
//
// The program is built for baseline x86-64. A hot loop is written once, as a kernel templated on the width of
// a native vector, and compiled here for three instruction sets; dispatch() calls the one that fits. This is
// done by target attributes instead of target_clones because clones can neither be templates nor be called by
// a test.
//
// Kernels that keep to sixteen lanes (vec.h), one order of operations and no fused multiply-add give the same
// bits with all three; the tests hold every operator but attention and the products to that
// (check_same_bits_everywhere() in tests/backends.h). Attention does use fused multiply-add where there is
// one: AVX2 and AVX-512 agree in f32, baseline code and bf16 pairs differ (attention_tiles.h). The products
// are oneDNN's, which chooses an instruction set of its own and sums in another order on each.
#pragma once

#include <cstdint>

namespace octavo::cpu {

enum class InstructionSet : std::uint8_t { baseline, avx2, avx512 };

/// "x86-64", "AVX2", "AVX-512".
const char* name_of(InstructionSet set);

/// The best set that this processor has.
InstructionSet native_instruction_set();

/// The set in use: the processor's best unless limited.
InstructionSet instruction_set();

/// Uses at most `set` from now on. For tests and benchmarks; not while an operator runs.
void limit_instruction_set(InstructionSet set);

// For functions, and (behind the parameters) for lambdas, that are part of a kernel.
#define OCTAVO_INLINE inline __attribute__((always_inline))
#define OCTAVO_INLINE_LAMBDA __attribute__((always_inline))

template <class Kernel, class... Args>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) void run_avx512(Args... args) {
  Kernel::template run<16>(args...);
}
template <class Kernel, class... Args>
__attribute__((target("avx2"))) void run_avx2(Args... args) {
  Kernel::template run<8>(args...);
}
template <class Kernel, class... Args>
void run_baseline(Args... args) {
  Kernel::template run<4>(args...);
}

/// Runs `Kernel::run<lanes of a native vector>(args...)`, compiled for the set in use. `run` and all that it
/// calls in its loops must be OCTAVO_INLINE. Arguments go by value. Call it inside a parallel region, per
/// block of work: the outlined body of a parallel region would not keep the target.
template <class Kernel, class... Args>
void dispatch(Args... args) {
  switch (instruction_set()) {
    case InstructionSet::avx512:
      return run_avx512<Kernel>(args...);
    case InstructionSet::avx2:
      return run_avx2<Kernel>(args...);
    case InstructionSet::baseline:
      return run_baseline<Kernel>(args...);
  }
}

}  // namespace octavo::cpu
