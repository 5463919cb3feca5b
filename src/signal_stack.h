// signal_stack.h - a stack of their own for the signal handlers of a thread that runs oneDNN's products.
//
// oneDNN's f32 kernel for AVX-512 uses the stack pointer as one more register, pointing into a buffer of the
// heap. A signal that arrives just then would have its frame, with all the vector registers some kilobytes,
// written below that address: into whatever lies there. Handlers installed with SA_ONSTACK run here instead.
#pragma once

namespace octavo {

/// Gives the calling thread an alternate signal stack until it ends, unless it has one. Cheap after the first
/// call.
void ensure_signal_stack();

}  // namespace octavo
