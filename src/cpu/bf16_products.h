// bf16_products.h - whether bf16 values are multiplied as they are, asked of oneDNN once for every kernel.
#pragma once

namespace octavo::cpu {

/// oneDNN multiplies bf16 natively on this processor: it has AVX512_BF16 or AMX, and ONEDNN_MAX_CPU_ISA does
/// not hold it below. Else operands are widened to f32.
bool has_bf16_products();

/// The instruction set that oneDNN uses, in words: "AVX-512 with BF16".
const char* onednn_instruction_set();

}  // namespace octavo::cpu
