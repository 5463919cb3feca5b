#include "evaluate.h"

#include <vector>

#include "data/window_order.h"

namespace octavo {

double evaluate(Model& model, const TokenStream& stream, std::int64_t eval_tokens) {
  const std::int64_t B = model.plan().B, T = model.plan().T;
  const EvaluationWindows windows(stream, T, eval_tokens);
  const Batch& batch = model.batch();
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(B * T)), targets(tokens.size());
  std::vector<float> losses;
  double sum = 0;
  for (std::int64_t first = 0; first < windows.windows(); first += B) {
    windows.fill(first, B, tokens.data(), targets.data());
    model.backend().copy_to_device(batch.tokens.data, tokens.data(), batch.tokens.bytes());
    model.backend().copy_to_device(batch.targets.data, targets.data(), batch.targets.bytes());
    model.forward(batch, Model::Pass::evaluate);
    model.losses(batch, losses);
    for (float loss : losses) sum += static_cast<double>(loss);  // 0 where the target does not count
  }
  return sum / static_cast<double>(windows.targets());
}

}  // namespace octavo
