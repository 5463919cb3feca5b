// The products of linear layers against the oracle, their bits over thread counts, and the widening path.
#include <cstdlib>
#include <filesystem>
#include <string>

#include "backend.h"
#include "backends.h"
#include "catch.h"
#include "cpu/bf16_products.h"
#include "environment.h"
#include "files.h"
#include "oracle_ops.h"
#include "temp_dir.h"
#include "tolerance.h"

using namespace octavo;
using namespace octavo::testing;
using oracle::Values;

namespace {

struct Layer {
  std::int64_t N, O, I;
};

struct Options {
  bool bias = false, accumulate = false;
};

const Gemm kGemms[] = {Gemm::fprop, Gemm::dgrad, Gemm::wgrad};

/// Operands of one product: a is [N,O] or [N,I], b is [O,I] or [N,I].
template <typename T>
struct Inputs {
  std::int64_t a_columns, b_rows;
  std::vector<T> a, b, bias;
  std::vector<float> old;

  Inputs(Gemm gemm, const Layer& l)
      : a_columns(gemm == Gemm::fprop ? l.I : l.O),
        b_rows(gemm == Gemm::wgrad ? l.N : l.O),
        a(random_values<T>(l.N * a_columns, 1)),
        b(random_values<T>(b_rows * l.I, 2)),
        bias(random_values<T>(l.O, 3, 4)),
        old(random_values<float>(l.O * l.I, 4, 5)) {}
};

/// The result, as bits and widened.
struct Result {
  std::string bits;
  std::string wrong;  // against the oracle; not looked at where it was not asked for
};

template <typename T, typename Out>
Result run_product(Backend& backend, Gemm gemm, const Layer& l, const Options& o, bool check) {
  const Inputs<T> in(gemm, l);
  const std::int64_t rows = gemm == Gemm::wgrad ? l.O : l.N, columns = gemm == Gemm::fprop ? l.O : l.I;
  DeviceArray<T> a(backend, in.a, {l.N, in.a_columns}, "a"), b(backend, in.b, {in.b_rows, l.I}, "b");
  DeviceArray<T> bias(backend, in.bias, {l.O}, "bias");
  std::vector<Out> before;
  if constexpr (std::is_same_v<Out, float>)
    if (o.accumulate) before = in.old;
  DeviceArray<Out> fresh(backend, {rows, columns}, "d");
  DeviceArray<Out> d(backend, before.empty() ? fresh.read() : before, {rows, columns}, "d");
  backend.run(Matmul{.gemm = gemm,
                     .a = {.t = a.tensor},
                     .b = {.t = b.tensor},
                     .bias = o.bias ? bias.tensor : Tensor{},
                     .d = d.tensor,
                     .accumulate = o.accumulate});
  const std::vector<Out> got = d.read();
  Result result{bits_of(got), ""};
  if (!check) return result;
  const Reference expected =
      oracle::matmul(gemm, widen(in.a), widen(in.b), o.bias ? widen(in.bias) : Values{},
                     o.accumulate ? widen(in.old) : Values{}, l.N, l.O, l.I);
  const std::int64_t depth = gemm == Gemm::fprop ? l.I : gemm == Gemm::dgrad ? l.O : l.N;
  result.wrong = mismatch(got, expected, {.stored = dtype_of<Out>::value, .terms = depth});
  return result;
}

template <typename T>
Result run_product(Backend& backend, Gemm gemm, const Layer& l, const Options& o, bool check) {
  return gemm == Gemm::wgrad ? run_product<T, float>(backend, gemm, l, o, check)
                             : run_product<T, T>(backend, gemm, l, o, check);
}

}  // namespace

TEST_CASE("products agree with the oracle", "[matmul]") {
  // one row (generation), odd sizes, single columns, sums longer than a widened piece, several blocks each
  // way
  const Layer layers[] = {{1, 48, 64},  {1, 1, 1},     {37, 19, 53},  {5, 1, 17},     {300, 40, 24},
                          {70, 7, 600}, {600, 33, 65}, {129, 640, 8}, {290, 200, 210}};
  for (Backend* b : backends())
    for (const Gemm gemm : kGemms)
      for (const Layer& l : layers) {
        INFO(b->name() << " gemm " << static_cast<int>(gemm) << " N=" << l.N << " O=" << l.O << " I=" << l.I);
        for (const bool option : {false, true}) {
          const Options o{.bias = option && gemm == Gemm::fprop, .accumulate = option && gemm == Gemm::wgrad};
          CHECK(run_product<float>(*b, gemm, l, o, true).wrong == "");
          CHECK(run_product<bf16>(*b, gemm, l, o, true).wrong == "");
        }
      }
}

TEST_CASE("products have the same bits on any number of threads and in every run", "[matmul]") {
  // The last four are shapes at which oneDNN's own way of sharing was seen to change bits.
  const Layer layers[] = {{256, 96, 64},   {1, 512, 64},    {1024, 320, 48}, {64, 384, 1000},
                          {2048, 144, 48}, {2048, 48, 192}, {2048, 37, 19},  {2048, 1, 5}};
  std::string first;
  for (const int threads : {1, 2, 4, 7, 2}) {
    const std::unique_ptr<Backend> backend = make_cpu_backend(threads);
    std::string here;
    for (const Gemm gemm : kGemms)
      for (const Layer& l : layers) {
        const Options o{.bias = gemm == Gemm::fprop, .accumulate = gemm == Gemm::wgrad};
        here += run_product<float>(*backend, gemm, l, o, false).bits;
        here += run_product<bf16>(*backend, gemm, l, o, false).bits;
      }
    if (first.empty()) first = here;
    INFO(threads << " threads");
    CHECK((here == first));
  }
  omp_set_num_threads(omp_get_num_procs());
}

TEST_CASE("NaN in a row of x stays in that row of the product", "[matmul]") {
  for (Backend* b : backends()) {
    std::vector<float> x = random_values<float>(40 * 24, 1);
    x[7 * 24 + 3] = std::nanf("");
    DeviceArray<float> a(*b, x, {40, 24}), w(*b, random_values<float>(16 * 24, 2), {16, 24}), d(*b, {40, 16});
    b->run(Matmul{.gemm = Gemm::fprop, .a = {.t = a.tensor}, .b = {.t = w.tensor}, .d = d.tensor});
    const std::vector<float> got = d.read();
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::isnan(got[i]) == (i / 16 == 7));
  }
}

TEST_CASE("products of unequal shapes are refused by name", "[matmul]") {
  for (Backend* b : backends()) {
    DeviceArray<float> a(*b, {4, 6}), w(*b, {5, 6}), d(*b, {4, 5}), bias(*b, {5});
    const Matmul good{.gemm = Gemm::fprop, .a = {.t = a.tensor}, .b = {.t = w.tensor}, .d = d.tensor};
    Matmul op = good;
    op.a.t.shape[0] = 0;
    CHECK_THROWS_WITH(b->run(op), ContainsSubstring("Matmul.a"));
    op = good;
    op.b.t.shape[1] = 7;
    CHECK_THROWS_WITH(b->run(op), ContainsSubstring("Matmul.b"));
    op = good;
    op.accumulate = true;
    CHECK_THROWS_WITH(b->run(op), ContainsSubstring("Matmul.accumulate"));
  }
}

TEST_CASE("without bf16 products operands are widened, and all of this holds", "[matmul]") {
  if (!__builtin_cpu_supports("avx2")) {
    WARN("SKIPPED: this processor has no AVX2");
    return;
  }
  // oneDNN reads the limit once, so a process has to be started under it.
  const char* const variable = "ONEDNN_MAX_CPU_ISA";
  if (const char* limit = std::getenv(variable); limit != nullptr && limit == std::string("AVX2")) {
    CHECK(cpu::onednn_instruction_set() == std::string("AVX2"));
    CHECK_FALSE(cpu::has_bf16_products());
    return;
  }
  const ScopedVariable limit(variable, "AVX2");
  const TempDir dir;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string log = (dir.path / "log").string();
  for (const char* cases : {"[matmul]", "attention agrees with the oracle o*"}) {
    const int status = std::system(("'" + self + "' '" + cases + "' >'" + log + "' 2>&1").c_str());
    const std::string text = read_whole_file(log);
    INFO(text);
    CHECK(status == 0);
    // A name that no case has would pass as well.
    CHECK_THAT(text, ContainsSubstring("All tests passed") && !ContainsSubstring(" in 1 test case)"));
  }
}
