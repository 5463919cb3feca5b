// check.cpp - tests of scripts/check.sh: a tree that keeps its rules passes, and each broken rule is reported
// with file and line.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <sys/wait.h>

#include "catch.h"
#include "fixture.h"
#include "temp_dir.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int status = -1;
  std::string text;
};

class Tree {
 public:
  /// Two operators on both sides, tests for both, and a README; all in order.
  Tree() {
    write("src/backend.h", "#define OCTAVO_OPERATORS(X) \\\n  X(NormForward) X(Matmul)\n");
    write("src/cpu/norm.cpp", "void norm_forward(const NormForward& op) {}\n");
    write("src/cpu/matmul.cpp", "void matmul(const Matmul& op) {}\n");
    write("tests/norm.cpp", "TEST_CASE(\"norm\") { NormForward op; }\n");
    write("tests/matmul.cpp", "TEST_CASE(\"matmul\") { Matmul op; }\n");
    write("cuda/launch.cuh",
          "#define LAUNCH(kernel, grid, block, stream) kernel<<<grid, block, 0, stream>>>()\n");
    write("cuda/norm.cu", "void norm_forward(const NormForward& op) {}\n");
    write("cuda/matmul.cu", "void matmul(const Matmul& op) {}\n");
    write("src/precision.cpp", "constexpr float kMax = 448.0f, kMaxGradient = 57344;\n");
    write("README.md",
          "See `src/cpu/norm.cpp` and [that](cuda/norm.cu#L1).\n\n    cat ./src/backend.h build/x.json\n");
  }

  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((dir_.path / file).parent_path());
    std::ofstream(dir_.path / file) << text;
  }
  void remove(const std::string& file) const { fs::remove(dir_.path / file); }

  Outcome check() const {
    const fs::path script = testing::source_tree() / "scripts" / "check.sh";
    std::FILE* pipe =
        popen(("bash '" + script.string() + "' '" + dir_.path.string() + "' 2>&1").c_str(), "r");
    Outcome outcome;
    for (int c = 0; (c = std::fgetc(pipe)) != EOF;) outcome.text += static_cast<char>(c);
    const int status = pclose(pipe);
    outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return outcome;
  }

 private:
  testing::TempDir dir_;
};

/// One rule broken by one file: exactly one violation, reported as `line`.
void broken(const std::string& file, const std::string& text, const std::string& line) {
  const Tree tree;
  tree.write(file, text);
  const Outcome outcome = tree.check();
  INFO(outcome.text);
  CHECK(outcome.status == 1);
  CHECK_THAT(outcome.text, ContainsSubstring(line));
  CHECK_THAT(outcome.text, ContainsSubstring("check.sh: 1 violation(s)"));
}

TEST_CASE("check.sh passes a tree that keeps the rules", "[check]") {
  const Outcome outcome = Tree().check();
  INFO(outcome.text);
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.text, ContainsSubstring("the tree keeps its rules"));
}

TEST_CASE("check.sh holds operators to one base name", "[check]") {
  broken("cuda/norm.cu", "// moved\n", "src/cpu/norm.cpp:1: operator NormForward is not in cuda/");
  broken("tests/norm.cpp", "TEST_CASE(\"nothing\") {}\n",
         "tests/norm.cpp:1: does not use operator NormForward of src/cpu/norm.cpp");

  const Tree without_test;
  without_test.remove("tests/matmul.cpp");
  CHECK_THAT(without_test.check().text,
             ContainsSubstring(
                 "src/cpu/matmul.cpp:1: operator Matmul is here, but tests/matmul.cpp does not exist"));

  const Tree renamed;
  renamed.remove("cuda/matmul.cu");
  renamed.write("cuda/gemm.cu", "void matmul(const Matmul& op) {}\n");
  CHECK_THAT(renamed.check().text,
             ContainsSubstring(
                 "cuda/gemm.cu:1: operator Matmul; allowed: in cuda/matmul.cu, as in src/cpu/matmul.cpp"));

  const Tree directions;
  directions.remove("src/cpu/norm.cpp");
  directions.write("src/cpu/norm_forward.cpp", "void norm_forward(const NormForward& op) {}\n");
  directions.write("README.md", "No link.\n");
  CHECK(directions.check().status == 0);

  const Tree cpu_only;
  cpu_only.remove("cuda/matmul.cu");
  cpu_only.remove("cuda/norm.cu");
  cpu_only.write("README.md", "No link.\n");
  CHECK(cpu_only.check().status == 0);
}

TEST_CASE("check.sh limits the length and the names of files", "[check]") {
  std::string lines;
  for (int i = 0; i < 600; ++i) lines += "// one\n";
  const Tree tree;
  tree.write("src/long.cpp", lines);
  CHECK(tree.check().status == 0);
  broken("src/long.cpp", lines + "// more\n", "src/long.cpp:601: over 600 lines");
  broken("src/data/shard_utils.h", "\n", "src/data/shard_utils.h:1: the name says no topic");
  broken("src/matmul_part2.cpp", "\n", "src/matmul_part2.cpp:1: the name says no topic");
}

TEST_CASE("check.sh keeps headers where they belong", "[check]") {
  broken("src/x.h", "\n#include <cuda_runtime.h>\n", "src/x.h:2: cuda_runtime.h is a CUDA or NCCL header");
  broken("src/x.h", "#include \"nccl.h\"\n", "src/x.h:1: nccl.h is a CUDA or NCCL header");
  broken("src/x.cpp", "#include <mpi.h>\n", "src/x.cpp:1: mpi.h is the header of MPI");
  broken("cuda/x.cuh", "#include <spdlog/spdlog.h>\n", "cuda/x.cuh:1: spdlog/spdlog.h brings JSON");

  const Tree tree;
  tree.write("src/comm_mpi.cpp", "#include <mpi.h>\n");
  CHECK(tree.check().status == 0);
}

TEST_CASE("check.sh finds launches outside the macro and the formats' maxima", "[check]") {
  broken("cuda/norm.cu", "void norm_forward(const NormForward& op) {\n  kernel<<<1, 32>>>();\n}\n",
         "cuda/norm.cu:2: a launch of its own");
  broken("src/x.cpp", "\nfloat limit = 448.f;\n", "src/x.cpp:2: a format's largest value");
  broken("cuda/x.cuh", "constexpr float kMax = 57344.0f;\n", "cuda/x.cuh:1: a format's largest value");

  const Tree tree;
  tree.write("src/x.cpp", "int a = 4480 + 1448;  // 448 in words\nfloat b = 0.448f;\n");
  const Outcome outcome = tree.check();
  INFO(outcome.text);
  CHECK(outcome.status == 0);
}

TEST_CASE("check.sh looks up the paths that a README names", "[check]") {
  broken("README.md", "a\nb `src/gone.cpp`\n", "README.md:2: names src/gone.cpp, which does not exist");
  broken("README.md", "[text](docs/gone.md)\n", "README.md:1: names docs/gone.md, which does not exist");
  broken("cuda/README.md", "    ./scripts/gone.sh --cpu\n",
         "cuda/README.md:1: names scripts/gone.sh, which does not exist");

  const Tree tree;
  tree.write("cuda/README.md",
             "`launch.cuh`, `src/cpu/*.cpp`, `runs/x/run.json`, `tokens/s`, [x](https://x.org/y.md)\n");
  const Outcome outcome = tree.check();
  INFO(outcome.text);
  CHECK(outcome.status == 0);
}

TEST_CASE("check.sh holds the tree to clang-format", "[check]") {
  const Tree tree;
  tree.write(".clang-format", "BasedOnStyle: Google\n");
  tree.write("src/backend.h", "#define OCTAVO_OPERATORS(X) X(Matmul)\n");
  tree.write("src/cpu/matmul.cpp", "void matmul(const Matmul& op) {}\n\nint   x;\n");
  tree.remove("cuda/launch.cuh");
  const Outcome outcome = tree.check();
  if (outcome.text.find("SKIPPED: formatting") != std::string::npos) {
    WARN("SKIPPED: no clang-format 14 here");
    return;
  }
  INFO(outcome.text);
  CHECK(outcome.status == 1);
  CHECK_THAT(outcome.text, ContainsSubstring("src/cpu/matmul.cpp:3: not as clang-format writes it"));
}

}  // namespace
}  // namespace octavo
