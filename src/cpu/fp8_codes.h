// fp8_codes.h - the forms of an operand as an operator writes them, and the way back from codes to values.
//
// An operator computes rows of values; OperandWriter says where they go and makes the codes, the transposed
// codes and the amax from each block of rows while it is in cache. It stands in every producer, and without
// codes it does nothing but hand out the rows of the tensor.
#pragma once

#include <cstdint>

#include "cpu/scratch.h"
#include "cpu/vec.h"
#include "precision/fp8_recipe.h"
#include "tensor.h"

namespace octavo::cpu {

/// What a block of values adds to its slot.
struct Fp8Tally {
  std::uint32_t amax = 0;  // bits of max |x|
  std::uint64_t saturated = 0, underflowed = 0;
};

/// Codes of n values at this scale.
Fp8Tally quantise(DType format, const bf16* x, std::int64_t n, float scale, std::uint8_t* codes);

/// max |x| as bits, NaN above all.
std::uint32_t amax_bits(const bf16* x, std::int64_t n);

/// The values of n codes, exact.
void widen_codes(DType format, const std::uint8_t* codes, std::int64_t n, bf16* x);

/// Writes an operand of shape [rows, columns], given rows of bf16 values in any order of blocks, by any
/// threads. f32 operands have no codes.
class CodeWriter {
 public:
  CodeWriter(const Operand& to, std::int64_t rows, std::int64_t columns);

  bool codes() const { return slot_ != nullptr; }
  /// Where the values of rows [first, last) are to be written: the tensor, or memory that lasts to done().
  bf16* values(std::int64_t first, std::int64_t last);
  /// The values of these rows are complete.
  void done(std::int64_t first, std::int64_t last, const bf16* values);
  /// All rows are done; outside parallel regions.
  void finish();

 private:
  void write(std::int64_t first, std::int64_t last, const bf16* values);
  void fold(std::int32_t* amax, std::uint32_t bits) const;

  const Fp8Slot* slot_ = nullptr;
  bf16* t_ = nullptr;
  std::uint8_t *q_ = nullptr, *q_t_ = nullptr;
  std::int64_t rows_, columns_;
  bool record_, current_ = false;
};

/// The same for an operator of either type.
template <class T>
class OperandWriter;

template <>
class OperandWriter<float> {
 public:
  OperandWriter(const Operand& to, std::int64_t, std::int64_t columns)
      : t_(to.t ? to.t.as<float>() : nullptr), columns_(columns) {}
  float* values(std::int64_t first, std::int64_t) { return t_ == nullptr ? nullptr : t_ + first * columns_; }
  void done(std::int64_t, std::int64_t, const float*) {}
  void finish() {}

 private:
  float* t_;
  std::int64_t columns_;
};

template <>
class OperandWriter<bf16> : public CodeWriter {
 public:
  using CodeWriter::CodeWriter;
};

/// The codes of an operand whose values are complete in its t; nothing where it has none.
void write_codes(const Operand& operand);

}  // namespace octavo::cpu
