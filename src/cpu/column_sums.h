// column_sums.h - sums over the rows of a matrix, for bias and gain gradients, fused into whatever computes
// the rows.
//
// Every block of rows (row_blocks() in parallel.h) adds its rows in order into a row of partial sums of its
// own, and the partial sums are added in the order of the blocks: the same bits on any number of threads, and
// the same bits whether the sum is fused into its producer or read back from memory.
#pragma once

#include <cstdint>

#include "cpu/scratch.h"
#include "parallel.h"

namespace octavo::cpu {

/// The partial sums of one matrix with `columns` columns.
class ColumnSums {
 public:
  /// `scratch` belongs to this object until finish() has returned.
  ColumnSums(Scratch& scratch, Blocks rows, std::int64_t columns)
      : blocks_(rows),
        columns_(columns),
        stride_((columns + 15) / 16 * 16),
        partial_(scratch.get<float>(static_cast<std::size_t>(rows.count() * stride_))) {}

  /// The partial sums of the block that begins at row `begin`: room for whole chunks of 16 columns, set to
  /// zero by this call.
  float* start_block(std::int64_t begin) const;

  /// out[c] = sum over blocks, or += where `accumulate`.
  void finish(float* out, bool accumulate) const;

 private:
  Blocks blocks_;
  std::int64_t columns_, stride_;
  float* partial_;
};

}  // namespace octavo::cpu
