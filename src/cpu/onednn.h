// onednn.h - everything that differs between oneDNN 2 and 3, and the one primitive that is used: a product.
//
// Included by matmul.cpp alone. The engine is the processor; a stream runs what it is given at once, on the
// calling thread's OpenMP team.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <dnnl.hpp>
#include <unordered_map>

#include "cpu/scratch.h"
#include "tensor.h"

namespace octavo::cpu::onednn {

/// c[m][n] = or += sum over k of a[m][k] b[k][n], plus bias[n]. Strides are in elements; c is row-major.
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_row = 0, a_column = 0, b_row = 0, b_column = 0, c_row = 0;
  DType input = DType::f32;   // of a, b
  DType output = DType::f32;  // of c
  bool bias = false;          // of the input's type
  bool accumulate = false;    // c += instead of c =

  auto operator<=>(const ProductShape&) const = default;
};

inline const dnnl::engine& processor() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

inline dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
                                 std::int64_t column_stride, DType type) {
  using dnnl::memory;
  return {{rows, columns},
          type == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32,
          memory::dims{row_stride, column_stride}};
}

inline dnnl::matmul::primitive_desc describe(const ProductShape& s) {
  using dnnl::matmul;
  const dnnl::memory::desc a = matrix(s.m, s.k, s.a_row, s.a_column, s.input);
  const dnnl::memory::desc b = matrix(s.k, s.n, s.b_row, s.b_column, s.input);
  const dnnl::memory::desc c = matrix(s.m, s.n, s.c_row, 1, s.output);
  const dnnl::memory::desc bias = matrix(1, s.n, s.n, 1, s.input);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // so that it is counted, and freed with ours
  if (s.accumulate) {
    dnnl::post_ops post;
    post.append_sum(1.0f);
    attributes.set_post_ops(post);
  }
#if DNNL_VERSION_MAJOR >= 3
  return s.bias ? matmul::primitive_desc(processor(), a, b, bias, c, attributes)
                : matmul::primitive_desc(processor(), a, b, c, attributes);
#else
  const matmul::desc what = s.bias ? matmul::desc(a, b, bias, c) : matmul::desc(a, b, c);
  return {what, attributes, processor()};
#endif
}

/// A product made ready to run. It is used by the thread that made it.
class Product {
 public:
  explicit Product(const ProductShape& shape) : Product(describe(shape)) {}

  /// `bias` is read only where the shape has one.
  void run(const void* a, const void* b, const void* bias, void* c) {
    static thread_local dnnl::stream stream(processor());
    static thread_local Scratch scratch;
    const auto at = [](const dnnl::memory::desc& what, const void* data) {
      return dnnl::memory(what, processor(), const_cast<void*>(data));  // inputs are not written
    };
    std::unordered_map<int, dnnl::memory> arguments{
        {DNNL_ARG_SRC, at(a_, a)}, {DNNL_ARG_WEIGHTS, at(b_, b)}, {DNNL_ARG_DST, at(c_, c)}};
    if (has_bias_) arguments.emplace(DNNL_ARG_BIAS, at(bias_, bias));
    if (const std::size_t bytes = scratchpad_.get_size(); bytes > 0)
      arguments.emplace(DNNL_ARG_SCRATCHPAD, at(scratchpad_, scratch.get<char>(bytes)));
    primitive_.execute(stream, arguments);
    stream.wait();
  }

 private:
  explicit Product(const dnnl::matmul::primitive_desc& what)
      : primitive_(what),
        a_(what.src_desc()),
        b_(what.weights_desc()),
        c_(what.dst_desc()),
        bias_(what.bias_desc()),
        scratchpad_(what.scratchpad_desc()),
        has_bias_(bias_.get_size() > 0) {}

  dnnl::matmul primitive_;
  dnnl::memory::desc a_, b_, c_, bias_, scratchpad_;
  bool has_bias_;
};

/// Whether the instruction set that oneDNN uses, which ONEDNN_MAX_CPU_ISA may hold below the processor's,
/// contains `set`: the values are sets of bits.
inline bool instruction_set_has(dnnl::cpu_isa set) {
  return (static_cast<int>(dnnl::get_effective_cpu_isa()) & static_cast<int>(set)) == static_cast<int>(set);
}

}  // namespace octavo::cpu::onednn
