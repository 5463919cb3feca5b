// golden.h - the reference files of tests/golden, written by scripts/export_reference.py with PyTorch in
// double precision. That script's head describes the format.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oracle_model.h"
#include "parameters.h"

namespace octavo::testing {

struct Golden {
  std::string name;
  ModelShape shape;
  ParameterTable table;
  // Flat arenas of `table`, padding rows and gaps 0.
  std::vector<float> weights, gradients;
  std::vector<float> final_weights;  // after the last step; empty where the file has none
  std::vector<OracleBatch> batches;  // step i trains on batches[i % batches.size()]
  std::vector<float> lr;             // per step
  std::vector<double> loss, grad_norm;
  OracleAdamW optimizer;                 // its constants
  std::vector<std::int32_t> logit_rows;  // rows of batches[0]
  std::vector<float> logits;             // [logit_rows, vocab]

  const OracleBatch& batch(std::size_t step) const { return batches[step % batches.size()]; }
  std::int64_t counted(std::size_t step) const;  // targets of the step that are not -1
};

/// Reads tests/golden/<name>.safetensors; throws where anything is missing or has another shape.
Golden load_golden(const std::string& name);

/// "even", "odd" (sizes that divide nothing, ignored targets), "untied" (ignored targets, no padding rows).
inline const std::vector<std::string> kGoldenNames = {"even", "odd", "untied"};

}  // namespace octavo::testing
