// instruction_set.cpp - what the processor offers, and the limit that tests set.
#include "cpu/instruction_set.h"

#include <algorithm>
#include <atomic>

namespace octavo::cpu {

namespace {

InstructionSet detect() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return InstructionSet::avx512;
  return __builtin_cpu_supports("avx2") ? InstructionSet::avx2 : InstructionSet::baseline;
}

std::atomic<InstructionSet> in_use{native_instruction_set()};

}  // namespace

const char* name_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::avx512:
      return "AVX-512";
    case InstructionSet::avx2:
      return "AVX2";
    case InstructionSet::baseline:
      return "x86-64";
  }
  return "?";
}

InstructionSet native_instruction_set() {
  static const InstructionSet best = detect();
  return best;
}

InstructionSet instruction_set() {
  return in_use.load(std::memory_order_relaxed);
}

void limit_instruction_set(InstructionSet set) {
  in_use.store(std::min(set, native_instruction_set()), std::memory_order_relaxed);
}

}  // namespace octavo::cpu
