#include "signal_stack.h"

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <memory>
#include <unistd.h>

namespace octavo {
namespace {

class SignalStack {
 public:
  SignalStack() {
    stack_t present{};
    if (sigaltstack(nullptr, &present) != 0 || (present.ss_flags & SS_DISABLE) == 0) return;
    // The frame grows with the processor's registers, so its size is asked of the system.
    constexpr std::size_t kForHandlers = std::size_t{64} << 10;
#ifdef _SC_MINSIGSTKSZ
    const long frame = sysconf(_SC_MINSIGSTKSZ);
#else
    const long frame = 0;
#endif
    const std::size_t bytes = kForHandlers + static_cast<std::size_t>(std::max(0L, frame));
    memory_ = std::make_unique<std::byte[]>(bytes);
    stack_t stack{};
    stack.ss_sp = memory_.get();
    stack.ss_size = bytes;
    if (sigaltstack(&stack, nullptr) != 0) memory_.reset();
  }
  ~SignalStack() {
    if (!memory_) return;
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace

void ensure_signal_stack() {
  static thread_local const SignalStack stack;
}

}  // namespace octavo
