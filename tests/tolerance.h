// tolerance.h - the one function from which every numerical tolerance of the tests comes, and the comparer
// that uses it. Both are tested with bad data in tolerance.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tensor.h"

namespace octavo::testing {

/// What an oracle returns: the values, computed in double, and the largest sum of |terms| behind one of them
/// (for a value that is no sum: the largest magnitude that was rounded on the way to it).
struct Reference {
  std::vector<double> value;
  double norm = 0;
};

/// How the value under test was computed.
struct Rounding {
  DType stored = DType::f32;  // format of the result
  std::int64_t terms = 1;     // length of the longest sum behind one result
  double operations = 8;      // roundings to f32 behind one term
  DType inner = DType::f32;   // narrowest format that a term passes through on its way
};

/// Unit roundoff: half the distance from 1 to the next number of the format.
inline double unit_roundoff(DType t) {
  if (t == DType::f32) return 0x1p-24;
  if (t == DType::bf16) return 0x1p-8;
  throw std::logic_error(std::string("no unit roundoff for ") + name_of(t));
}

/// The largest error allowed of a result whose exact value is `expected`:
///
///     u(stored) |expected|  +  norm * ( 4 (sqrt(terms) + operations) u(f32)  +  2 u(inner) )  +  tiny
///
/// The first summand is the final rounding. Each f32 rounding on the way errs by at most u times the partial
/// sum, which is at most `norm`; the errors of a sum of n terms are independent enough to grow as sqrt(n)
/// (Higham, Mary, "A new approach to probabilistic rounding error analysis", 2019: the bound holds with
/// probability above 0.999 at a factor of 4), those of one term are added up. Where terms pass through a
/// narrower format than f32, each errs by u(inner) of itself, so all together by at most u(inner) * norm; the
/// factor 2 is for a term that is a product of two such. `tiny` is a thousand of the smallest denormals.
inline double tolerance(double expected, double norm, const Rounding& r) {
  const double f32_part = 4 * (std::sqrt(static_cast<double>(r.terms)) + r.operations) * 0x1p-24;
  const double inner_part = r.inner == DType::f32 ? 0 : 2 * unit_roundoff(r.inner);
  return unit_roundoff(r.stored) * std::abs(expected) + norm * (f32_part + inner_part) + 1000 * 0x1p-149;
}

namespace comparison {

inline double widened(float v) {
  return v;
}
inline double widened(bf16 v) {
  return to_float(v);
}
inline double widened(double v) {
  return v;
}

}  // namespace comparison

/// Empty where `actual` agrees with the reference, else what is wrong: sizes, NaN or infinity on either side,
/// a reference that is zero throughout (it would prove nothing) or without a norm, then the element that is
/// furthest beyond its tolerance.
template <typename T>
std::string mismatch(std::span<const T> actual, const Reference& reference, const Rounding& rounding) {
  std::ostringstream out;
  out.precision(9);
  const std::vector<double>& expected = reference.value;
  if (actual.size() != expected.size()) {
    out << actual.size() << " values, reference has " << expected.size();
    return out.str();
  }
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(expected[i])) {
      out << "reference[" << i << "] is " << expected[i];
      return out.str();
    }
    largest = std::max(largest, std::abs(expected[i]));
    const double a = comparison::widened(actual[i]);
    if (!std::isfinite(a)) {
      out << "[" << i << "] is " << a << ", reference " << expected[i];
      return out.str();
    }
  }
  if (!(largest > 1e-30)) return "the reference is zero throughout";
  if (!std::isfinite(reference.norm) || !(reference.norm > 0)) return "the reference has no norm";
  double worst = 1;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double a = comparison::widened(actual[i]),
                 allowed = tolerance(expected[i], reference.norm, rounding);
    const double ratio = std::abs(a - expected[i]) / allowed;
    if (!(ratio > worst)) continue;
    worst = ratio;
    out.str("");
    out << "[" << i << "] is " << a << ", reference " << expected[i] << ", off by "
        << std::abs(a - expected[i]) << ", allowed " << allowed;
  }
  return out.str();
}
template <typename T>
std::string mismatch(const std::vector<T>& actual, const Reference& reference, const Rounding& rounding) {
  return mismatch(std::span<const T>(actual), reference, rounding);
}

}  // namespace octavo::testing
