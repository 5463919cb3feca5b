#include "golden.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <stdexcept>

#include "fixture.h"
#include "safetensors.h"

namespace octavo::testing {
namespace {

/// The elements of a tensor of the file as T, after a check of its shape.
template <typename T>
std::vector<T> read(const SafetensorsFile& file, const std::string& name, const std::string& dtype,
                    const std::vector<std::int64_t>& shape) {
  const SavedTensor* t = file.find(name);
  if (t == nullptr || t->dtype != dtype || t->shape != shape)
    throw std::runtime_error("golden file: no tensor " + name + " of the expected type and shape");
  std::vector<T> values(static_cast<std::size_t>(t->size()));
  std::memcpy(values.data(), file.bytes(*t), values.size() * sizeof(T));
  return values;
}

/// The parameters `prefix`NAME in the order of an arena. Hugging Face stores the linear layers of the blocks
/// (in, out).
std::vector<float> read_arena(const SafetensorsFile& file, const std::string& prefix,
                              const ParameterTable& table) {
  std::vector<float> arena(static_cast<std::size_t>(table.arena_size));
  for (const Parameter& p : table.parameters) {
    const bool conv1d = p.rank == 2 && p.hf_name.starts_with("h.");
    std::vector<std::int64_t> shape = {p.saved_rows, p.cols};
    if (conv1d) std::swap(shape[0], shape[1]);
    if (p.rank == 1) shape.erase(shape.begin());
    const std::vector<float> values = read<float>(file, prefix + p.hf_name, "F32", shape);
    for (std::int64_t r = 0; r < p.saved_rows; ++r)
      for (std::int64_t c = 0; c < p.cols; ++c)
        arena[static_cast<std::size_t>(p.offset + r * p.cols + c)] =
            values[static_cast<std::size_t>(conv1d ? c * p.saved_rows + r : r * p.cols + c)];
  }
  return arena;
}

}  // namespace

std::int64_t Golden::counted(std::size_t step) const {
  return std::ranges::count_if(batch(step).targets, [](std::int32_t t) { return t >= 0; });
}

Golden load_golden(const std::string& name) {
  const SafetensorsFile file(testing::source_tree() / "tests" / "golden" / (name + ".safetensors"));
  const auto text = [&](const char* key) { return file.metadata().at(key); };
  const auto number = [&](const char* key) { return std::int64_t{std::stoll(text(key))}; };
  const auto real = [&](const char* key) { return std::stod(text(key)); };
  if (text("format_version") != "1") throw std::runtime_error("golden file: unknown version");

  Golden g;
  g.name = name;
  g.shape = {.layers = number("layers"),
             .channels = number("channels"),
             .heads = number("heads"),
             .kv_heads = number("heads"),
             .context = number("context"),
             .vocab = number("vocab"),
             .padded_vocab = (number("vocab") + kVocabPadding - 1) / kVocabPadding * kVocabPadding,
             .tied = text("tied") == "true",
             .norm_eps = real("norm_eps")};
  g.table = make_parameter_table(g.shape);
  g.weights = read_arena(file, "weight.", g.table);
  g.gradients = read_arena(file, "grad.", g.table);
  if (file.find("final.wte.weight") != nullptr) g.final_weights = read_arena(file, "final.", g.table);

  const std::int64_t B = number("B"), T = number("T"), steps = number("steps"), batches = number("batches");
  const auto tokens = read<std::int32_t>(file, "tokens", "I32", {batches, B, T});
  const auto targets = read<std::int32_t>(file, "targets", "I32", {batches, B, T});
  for (std::int64_t i = 0; i < batches; ++i) {
    OracleBatch batch{.B = B, .T = T, .tokens = {}, .targets = {}, .samples = {}};
    batch.tokens.assign(tokens.begin() + i * B * T, tokens.begin() + (i + 1) * B * T);
    batch.targets.assign(targets.begin() + i * B * T, targets.begin() + (i + 1) * B * T);
    batch.samples.resize(static_cast<std::size_t>(B));
    std::iota(batch.samples.begin(), batch.samples.end(), i * B);
    g.batches.push_back(std::move(batch));
  }
  g.lr = read<float>(file, "lr", "F32", {steps});
  g.loss = read<double>(file, "loss", "F64", {steps});
  g.grad_norm = read<double>(file, "grad_norm", "F64", {steps});
  g.optimizer = {.beta1 = real("beta1"),
                 .beta2 = real("beta2"),
                 .eps = real("eps"),
                 .weight_decay = real("weight_decay"),
                 .clip = real("clip")};
  const SavedTensor* rows = file.find("logit_rows");
  if (rows == nullptr) throw std::runtime_error("golden file: no tensor logit_rows");
  g.logit_rows = read<std::int32_t>(file, "logit_rows", "I32", rows->shape);
  g.logits = read<float>(file, "logits", "F32", {rows->size(), g.shape.vocab});
  return g;
}

}  // namespace octavo::testing
