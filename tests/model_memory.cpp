// Memory of a model: counted without overflow, and given back whatever happens.
#include <cstdlib>
#include <set>

#include "catch.h"
#include "error.h"
#include "model.h"
#include "shape_bounds.h"

using namespace octavo;

namespace {

/// A backend that only allocates, and runs out of memory at the `fails_at`th allocation.
class Purse final : public Backend {
 public:
  int fails_at = 0;
  std::set<void*> held;

  std::string name() const override { return "purse"; }
  std::string description() const override { return "purse"; }
  std::string arithmetic() const override { return "none"; }
  int threads() const override { return 1; }
  Support supports(const OpDesc&) const override { return {}; }
  void* allocate(std::size_t bytes) override {
    if (--fails_at == 0) fail("memory: all spent");
    return *held.insert(std::calloc(bytes, 1)).first;
  }
  void release(void* p) noexcept override {
    held.erase(p);
    std::free(p);
  }
  void copy_to_device(void*, const void*, std::size_t) override {}
  void copy_to_host(void*, const void*, std::size_t) override {}
  void copy(void*, const void*, std::size_t) override {}
  void fill_zero(void*, std::size_t) override {}
  void synchronize() override {}
  bool host_readable() const override { return true; }
  std::size_t available_bytes() const override { return std::size_t{1} << 32; }
  std::size_t workspace_bytes() const override { return 0; }

 private:
#define OCTAVO_NOTHING(Op) \
  void do_run(const Op&) override {}
  OCTAVO_OPERATORS(OCTAVO_NOTHING)
#undef OCTAVO_NOTHING
};

ModelPlan plan_of(std::int64_t layers, std::int64_t channels, std::int64_t context) {
  ModelPlan plan;
  plan.shape.layers = layers, plan.shape.channels = channels, plan.shape.context = context;
  plan.shape.heads = plan.shape.kv_heads = channels / 8;
  plan.shape.vocab = 257, plan.shape.padded_vocab = pad_vocab(257);
  plan.T = context;
  return plan;
}

}  // namespace

TEST_CASE("a model whose memory runs out on the way gives back what it had") {
  Purse purse;
  const ModelPlan plan = plan_of(2, 16, 8);
  { const Model whole(purse, plan); }
  const int allocations = -purse.fails_at;
  REQUIRE(allocations > 5);
  CHECK(purse.held.empty());
  for (int n = 1; n <= allocations; ++n) {
    purse.fails_at = n;
    CHECK_THROWS_AS(Model(purse, plan), RunError);
    CHECK(purse.held.empty());
  }
}

TEST_CASE("the largest model that a config can ask for is counted, and refused for its memory") {
  const Purse purse;
  ModelPlan plan = plan_of(kMaxLayers, kMaxChannels, kMaxContext);
  plan.shape.vocab = kMaxVocab, plan.shape.padded_vocab = pad_vocab(kMaxVocab);
  plan.B = kMaxTokensPerStep / plan.T;
  const std::vector<MemoryCategory> memory = plan_memory(plan);
  std::size_t total = 0;
  for (const MemoryCategory& c : memory) {
    total += c.bytes;
    CHECK(total >= c.bytes);
  }
  CHECK(total > std::size_t{1} << 60);
  CHECK_THROWS_WITH(check_memory(purse, plan), ContainsSubstring("the model needs "));
}
