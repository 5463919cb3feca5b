// bad_arguments.h - an operator whose arguments pass validate(), and every way to spoil one of them.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "backend.h"
#include "catch.h"

namespace octavo::testing {

// Shapes matter here, not values: no data is read.
inline char memory[64];

inline Tensor f32(std::initializer_list<std::int64_t> dims) {
  return Tensor(memory, DType::f32, dims);
}
inline Tensor i32(std::initializer_list<std::int64_t> dims) {
  return Tensor(memory, DType::i32, dims);
}
inline Tensor half(std::initializer_list<std::int64_t> dims) {
  return Tensor(memory, DType::bf16, dims);
}

template <typename Op>
struct Case {
  const char* field;
  std::function<void(Op&)> spoil;
};

/// `good` passes; with each spoiled field the message names operator and field.
template <typename Op>
void check(const char* name, const Op& good, const std::vector<Case<Op>>& cases) {
  CHECK_NOTHROW(validate(good));
  int number = 0;
  for (const Case<Op>& c : cases) {
    Op op = good;
    c.spoil(op);
    INFO(name << "." << c.field << ", case " << number++);
    CHECK_THROWS_AS(validate(op), std::logic_error);
    CHECK_THROWS_WITH(validate(op), ContainsSubstring(std::string(name) + "." + c.field + ": found ") &&
                                        ContainsSubstring(", allowed: "));
  }
}

}  // namespace octavo::testing
