#include "generator.h"

#include <algorithm>

#include "error.h"

namespace octavo {

void Generator::feed(std::span<const std::int32_t> ids) {
  const std::int64_t vocab = model_.plan().shape.vocab;
  for (std::int32_t id : ids)
    if (id < 0 || id >= vocab) refuse("prompt: found token {}; allowed: 0 to {}", id, vocab - 1);
  window_.insert(window_.end(), ids.begin(), ids.end());
}

std::int32_t Generator::next() {
  const std::int64_t context = model_.plan().T;
  if (window_.empty()) refuse("prompt: found no token; allowed: at least one");
  if (static_cast<std::int64_t>(window_.size()) > context) {
    // Positions are absolute, so a shifted window must be read anew; half of the context is then free again.
    const std::int64_t keep = std::max<std::int64_t>(1, context / 2);
    window_.erase(window_.begin(), window_.end() - keep);
    seen_ = 0;
  }
  const std::int64_t size = static_cast<std::int64_t>(window_.size());
  model_.extend(window_.data() + seen_, seen_, size - seen_, logits_);
  seen_ = size;
  const std::int32_t id = sample_token(logits_, options_, drawn_++);
  window_.push_back(id);
  return id;
}

}  // namespace octavo
