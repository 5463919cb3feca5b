// vec.h - sixteen floats at a time, on any x86-64 processor, with the same bits on all of them.
//
// Floats<W> is sixteen f32 lanes held in 16/W native vectors of W lanes (W = 16 AVX-512, 8 AVX2, 4 SSE2).
// Lane i of a sum always adds the same elements in the same order and there is no fused multiply-add, so W
// does not change a bit. GCC's vector extension does nearly everything; splitting by hand keeps comparisons
// vectorised on the narrow sets, where GCC 12 would take a 64-byte vector apart lane by lane.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/instruction_set.h"
#include "tensor.h"

namespace octavo::cpu {

template <int W>
struct Native;
template <>
struct Native<16> {
  typedef float F __attribute__((vector_size(64)));
  typedef std::uint32_t U __attribute__((vector_size(64)));
  typedef double D __attribute__((vector_size(64)));
  typedef float Half __attribute__((vector_size(32)));  // as many floats as D has doubles
  typedef std::int32_t I __attribute__((vector_size(64)));
  typedef std::uint64_t L __attribute__((vector_size(64)));
  typedef std::uint16_t H __attribute__((vector_size(32)));
  typedef std::uint8_t B __attribute__((vector_size(16)));
};
template <>
struct Native<8> {
  typedef float F __attribute__((vector_size(32)));
  typedef std::uint32_t U __attribute__((vector_size(32)));
  typedef double D __attribute__((vector_size(32)));
  typedef float Half __attribute__((vector_size(16)));  // as many floats as D has doubles
  typedef std::int32_t I __attribute__((vector_size(32)));
  typedef std::uint64_t L __attribute__((vector_size(32)));
  typedef std::uint16_t H __attribute__((vector_size(16)));
  typedef std::uint8_t B __attribute__((vector_size(8)));
};
template <>
struct Native<4> {
  typedef float F __attribute__((vector_size(16)));
  typedef std::uint32_t U __attribute__((vector_size(16)));
  typedef double D __attribute__((vector_size(16)));
  typedef float Half __attribute__((vector_size(8)));  // as many floats as D has doubles
  typedef std::int32_t I __attribute__((vector_size(16)));
  typedef std::uint64_t L __attribute__((vector_size(16)));
  typedef std::uint16_t H __attribute__((vector_size(8)));
  typedef std::uint8_t B __attribute__((vector_size(4)));
};

/// Sixteen 32-bit words: bit patterns and masks (a lane of a mask is all ones or all zeros).
template <int W>
struct Words {
  using Part = typename Native<W>::U;
  static constexpr int kParts = 16 / W;
  Part v[kParts];

  static OCTAVO_INLINE Words broadcast(std::uint32_t x) {
    Words r;
    for (Part& p : r.v) p = Part{} + x;
    return r;
  }
};

/// Sixteen floats.
template <int W>
struct Floats {
  using Part = typename Native<W>::F;
  static constexpr int kParts = 16 / W;
  Part v[kParts];

  static OCTAVO_INLINE Floats broadcast(float x) {
    Floats r;
    for (Part& p : r.v) p = Part{} + x;
    return r;
  }
  static OCTAVO_INLINE Floats zero() {
    Floats r;
    for (Part& p : r.v) p = Part{};
    return r;
  }
};

#define OCTAVO_LANEWISE(Type, op)                                        \
  template <int W>                                                       \
  OCTAVO_INLINE Type<W> operator op(Type<W> a, Type<W> b) {              \
    for (int i = 0; i < Type<W>::kParts; ++i) a.v[i] = a.v[i] op b.v[i]; \
    return a;                                                            \
  }
OCTAVO_LANEWISE(Floats, +)
OCTAVO_LANEWISE(Floats, -)
OCTAVO_LANEWISE(Floats, *)
OCTAVO_LANEWISE(Floats, /)
OCTAVO_LANEWISE(Words, +)
OCTAVO_LANEWISE(Words, -)
OCTAVO_LANEWISE(Words, &)
OCTAVO_LANEWISE(Words, |)
#undef OCTAVO_LANEWISE

template <int W>
OCTAVO_INLINE Floats<W> operator-(Floats<W> a) {
  for (auto& p : a.v) p = -p;
  return a;
}
template <int W>
OCTAVO_INLINE Floats<W>& operator+=(Floats<W>& a, Floats<W> b) {
  return a = a + b;
}
template <int W>
OCTAVO_INLINE Words<W> operator>>(Words<W> a, int bits) {
  for (auto& p : a.v) p = p >> bits;
  return a;
}
template <int W>
OCTAVO_INLINE Words<W> operator<<(Words<W> a, int bits) {
  for (auto& p : a.v) p = p << bits;
  return a;
}

template <int W>
OCTAVO_INLINE Words<W> bits_of(Floats<W> a) {
  Words<W> r;
  for (int i = 0; i < Words<W>::kParts; ++i) r.v[i] = (typename Native<W>::U)a.v[i];
  return r;
}
template <int W>
OCTAVO_INLINE Floats<W> floats_of(Words<W> a) {
  Floats<W> r;
  for (int i = 0; i < Floats<W>::kParts; ++i) r.v[i] = (typename Native<W>::F)a.v[i];
  return r;
}

/// Lanes where a < b, both below 2^31: from the sign of the difference, because GCC 12 at times takes a
/// comparison of integers apart.
template <int W>
OCTAVO_INLINE Words<W> below(Words<W> a, Words<W> b) {
  using I = typename Native<W>::I;
  for (int i = 0; i < Words<W>::kParts; ++i) a.v[i] = (typename Native<W>::U)((I)(a.v[i] - b.v[i]) >> 31);
  return a;
}
/// Lanes where a > b (false where either is NaN).
template <int W>
OCTAVO_INLINE Words<W> greater(Floats<W> a, Floats<W> b) {
  Words<W> m;
  for (int i = 0; i < Words<W>::kParts; ++i) m.v[i] = (typename Native<W>::U)(a.v[i] > b.v[i]);
  return m;
}
/// a where the mask is set, else b.
template <int W>
OCTAVO_INLINE Floats<W> select(Words<W> mask, Floats<W> a, Floats<W> b) {
  for (int i = 0; i < Words<W>::kParts; ++i)
    a.v[i] = (typename Native<W>::F)((mask.v[i] & (typename Native<W>::U)a.v[i]) |
                                     (~mask.v[i] & (typename Native<W>::U)b.v[i]));
  return a;
}
template <int W>
OCTAVO_INLINE Words<W> select(Words<W> mask, Words<W> a, Words<W> b) {
  for (int i = 0; i < Words<W>::kParts; ++i) a.v[i] = (mask.v[i] & a.v[i]) | (~mask.v[i] & b.v[i]);
  return a;
}
/// a > b ? a : b, so b where either is NaN.
template <int W>
OCTAVO_INLINE Floats<W> max(Floats<W> a, Floats<W> b) {
  for (int i = 0; i < Words<W>::kParts; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
/// a < b ? a : b, so b where either is NaN.
template <int W>
OCTAVO_INLINE Floats<W> min(Floats<W> a, Floats<W> b) {
  for (int i = 0; i < Words<W>::kParts; ++i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
// One instruction where GCC 12 would emit several. Intrinsics cannot stand in a function that is compiled for
// baseline until it is inlined; the text of an instruction can.
OCTAVO_INLINE Native<16>::F sqrt_part(Native<16>::F a) {
  asm("vsqrtps %1, %0" : "=v"(a) : "vm"(a));
  return a;
}
OCTAVO_INLINE Native<8>::F sqrt_part(Native<8>::F a) {
  asm("vsqrtps %1, %0" : "=x"(a) : "xm"(a));
  return a;
}
OCTAVO_INLINE Native<4>::F sqrt_part(Native<4>::F a) {
  asm("sqrtps %1, %0" : "=x"(a) : "x"(a));
  return a;
}
/// Correctly rounded square roots.
template <int W>
OCTAVO_INLINE Floats<W> sqrt(Floats<W> a) {
  for (auto& p : a.v) p = sqrt_part(p);
  return a;
}

/// The sum of the lanes, by halves: always ((0+8)+(4+12)) + ... in this order.
template <int W>
OCTAVO_INLINE float sum_of(Floats<W> a) {
  float x[16];
  std::memcpy(x, a.v, sizeof x);
  using Q = Native<4>::F;
  Q q[4];
  std::memcpy(q, x, sizeof q);
  const Q s = (q[0] + q[2]) + (q[1] + q[3]);
  return (s[0] + s[2]) + (s[1] + s[3]);
}
/// The sum of the lanes, and the largest of lanes below 2^31.
template <int W>
OCTAVO_INLINE std::uint64_t sum_of(Words<W> a) {
  std::uint32_t x[16];
  std::memcpy(x, a.v, sizeof x);
  std::uint64_t sum = 0;
  for (std::uint32_t y : x) sum += y;
  return sum;
}
template <int W>
OCTAVO_INLINE std::uint32_t max_of(Words<W> a) {
  std::uint32_t x[16];
  std::memcpy(x, a.v, sizeof x);
  std::uint32_t m = 0;
  for (std::uint32_t y : x) m = y > m ? y : m;
  return m;
}
/// The largest lane; NaN lanes may be passed over.
template <int W>
OCTAVO_INLINE float max_of(Floats<W> a) {
  float x[16];
  std::memcpy(x, a.v, sizeof x);
  float m = x[0];
  for (float y : x) m = y > m ? y : m;
  return m;
}

// ---- Memory ----------------------------------------------------------------------------------------------

/// How many lanes of a chunk exist: All (a constant, so that the hot loop has no branch) or a count below 16.
using All = std::integral_constant<int, 16>;

/// Calls body(i, All{}) for each whole chunk of 16 in [0, n), then body(i, count) for what is left.
template <class Body>
OCTAVO_INLINE void chunks(std::int64_t n, Body body) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) body(i, All{});
  if (i < n) body(i, static_cast<int>(n - i));
}

// Widening of 16-bit halves and bytes to words, and the way back (the high half of a word must be zero).
template <int W>
OCTAVO_INLINE typename Native<W>::U widen_part(typename Native<W>::H h) {
  typename Native<W>::U u;
  if constexpr (W == 16)
    asm("vpmovzxwd %1, %0" : "=v"(u) : "vm"(h));
  else
    u = __builtin_convertvector(h, typename Native<W>::U);
  return u;
}
template <int W>
OCTAVO_INLINE typename Native<W>::U widen_part(typename Native<W>::B b) {
  typename Native<W>::U u;
  if constexpr (W == 16)
    asm("vpmovzxbd %1, %0" : "=v"(u) : "vm"(b));
  else
    u = __builtin_convertvector(b, typename Native<W>::U);
  return u;
}
template <int W>
OCTAVO_INLINE typename Native<W>::H narrow_part(typename Native<W>::U u) {
  typename Native<W>::H h;
  if constexpr (W == 16)
    asm("vpmovdw %1, %0" : "=v"(h) : "v"(u));
  else
    h = __builtin_convertvector(u, typename Native<W>::H);
  return h;
}

/// bf16 bits (in the low half of each word) of floats: round to nearest even, NaN stays NaN, as to_bf16().
template <int W>
OCTAVO_INLINE Words<W> bf16_bits(Floats<W> a) {
  Words<W> r;
  for (int i = 0; i < Words<W>::kParts; ++i) {
    using U = typename Native<W>::U;
    using I = typename Native<W>::I;
    const U u = (U)a.v[i];
    const U high = u >> 16;
    const U rounded = (u + 0x7fffu + (high & 1u)) >> 16;
    // All ones where u is NaN, from the sign of a difference: GCC 12 at times takes a comparison apart.
    const U nan = (U)((I)(0x7f800000u - (u & 0x7fffffffu)) >> 31);
    r.v[i] = (nan & (high | 0x40u)) | (~nan & rounded);
  }
  return r;
}

template <int W>
OCTAVO_INLINE Floats<W> load(const float* p, All = {}) {
  Floats<W> r;
  for (int i = 0; i < Floats<W>::kParts; ++i) std::memcpy(&r.v[i], p + i * W, sizeof r.v[i]);
  return r;
}
template <int W>
OCTAVO_INLINE Floats<W> load(const bf16* p, All = {}) {
  Words<W> r;
  for (int i = 0; i < Words<W>::kParts; ++i) {
    typename Native<W>::H h;
    std::memcpy(&h, p + i * W, sizeof h);
    r.v[i] = widen_part<W>(h) << 16;
  }
  return floats_of(r);
}
/// Sixteen bytes, one in each word.
template <int W>
OCTAVO_INLINE Words<W> load_bytes(const std::uint8_t* p) {
  Words<W> r;
  for (int i = 0; i < Words<W>::kParts; ++i) {
    typename Native<W>::B b;
    std::memcpy(&b, p + i * W, sizeof b);
    r.v[i] = widen_part<W>(b);
  }
  return r;
}
/// The low byte of each word.
template <int W>
OCTAVO_INLINE void store_bytes(std::uint8_t* p, Words<W> a) {
  for (int i = 0; i < Words<W>::kParts; ++i) {
    typename Native<W>::B b;
    if constexpr (W == 16)
      asm("vpmovdb %1, %0" : "=v"(b) : "v"(a.v[i]));
    else
      b = __builtin_convertvector(a.v[i], typename Native<W>::B);
    std::memcpy(p + i * W, &b, sizeof b);
  }
}
/// The first `count` lanes from memory, zero in the others.
template <int W, class T>
OCTAVO_INLINE Floats<W> load(const T* p, int count) {
  T padded[16] = {};
  std::memcpy(padded, p, static_cast<std::size_t>(count) * sizeof(T));
  return load<W>(padded);
}

/// As load(), with `fill` in the lanes that do not exist.
template <int W, class T>
OCTAVO_INLINE Floats<W> load_or(float, const T* p, All) {
  return load<W>(p);
}
template <int W, class T>
OCTAVO_INLINE Floats<W> load_or(float fill, const T* p, int count) {
  float padded[16];
  for (int i = 0; i < 16; ++i) padded[i] = i < count ? to_float(p[i]) : fill;
  return load<W>(static_cast<const float*>(padded));
}

template <int W>
OCTAVO_INLINE void store(float* p, Floats<W> a, All = {}) {
  for (int i = 0; i < Floats<W>::kParts; ++i) std::memcpy(p + i * W, &a.v[i], sizeof a.v[i]);
}
template <int W>
OCTAVO_INLINE void store(bf16* p, Floats<W> a, All = {}) {
  const Words<W> bits = bf16_bits(a);
  for (int i = 0; i < Words<W>::kParts; ++i) {
    const typename Native<W>::H h = narrow_part<W>(bits.v[i]);
    std::memcpy(p + i * W, &h, sizeof h);
  }
}
/// The first `count` lanes only.
template <int W, class T>
OCTAVO_INLINE void store(T* p, Floats<W> a, int count) {
  T padded[16];
  store(padded, a);
  std::memcpy(p, padded, static_cast<std::size_t>(count) * sizeof(T));
}

/// What reading the values back from memory of type T would give.
template <class T, int W>
OCTAVO_INLINE Floats<W> round_to(Floats<W> a) {
  if constexpr (std::is_same_v<T, bf16>)
    return floats_of(bf16_bits(a) << 16);
  else
    return a;
}
/// The first `count` lanes, zero in the others.
template <int W>
OCTAVO_INLINE Floats<W> first_lanes(Floats<W> a, All) {
  return a;
}
template <int W>
OCTAVO_INLINE Floats<W> first_lanes(Floats<W> a, int count) {
  float padded[16];
  store(padded, a);
  return load<W>(static_cast<const float*>(padded), count);
}

/// Calls f(T{}) with the element type that `type` names; f32 and bf16 only.
template <class F>
void with_type(DType type, F f) {
  if (type == DType::bf16)
    f(bf16{});
  else
    f(float{});
}

// ---- Functions -------------------------------------------------------------------------------------------

/// e^x. Within 2 units in the last place wherever the result is a normal number, within one smallest
/// denormal below that; 0 below -104, inf above 88.73, NaN for NaN.
///
/// x = n ln 2 + r with |r| <= ln(2)/2; e^r = 1 + r + r^2 q(r), q the minimax polynomial of degree 4
/// (relative error of e^r 3.1e-9, computed with Lawson's iteration); 2^n is applied as two factors, because
/// 2^128 and 2^-150 are no floats.
template <int W>
OCTAVO_INLINE Floats<W> exp(Floats<W> x) {
  using F = Floats<W>;
  using U = Words<W>;
  x = min(F::broadcast(89.0f), max(F::broadcast(-104.0f), x));  // NaN passes
  const F shift = F::broadcast(0x1.8p23f);                      // its unit in the last place is 1
  const F t = x * F::broadcast(0x1.715476p0f) + shift;
  const F n = t - shift;
  const F r = (x - n * F::broadcast(0x1.62e4p-1f)) - n * F::broadcast(1.42860677e-6f);  // first product exact
  F q = F::broadcast(1.381454e-3f);
  q = q * r + F::broadcast(8.3687451e-3f);
  q = q * r + F::broadcast(4.16683908e-2f);
  q = q * r + F::broadcast(1.66665204e-1f);
  q = q * r + F::broadcast(4.99999934e-1f);
  const F e = (q * (r * r) + r) + F::broadcast(1.0f);
  // The low bits of t are n + 2^22 * 3; halve n (rounding down) without a signed shift by biasing it first.
  const U biased = bits_of(t) - U::broadcast(0x4b400000u - 256u);  // n + 256, positive
  const U half = biased >> 1;                                      // floor(n / 2) + 128
  const U rest = biased - half;                                    // n - floor(n / 2) + 128
  const U one = U::broadcast(1u);  // exponent field of 2^k is k + 127 = (k + 128) - 1
  return (e * floats_of((half - one) << 23)) * floats_of((rest - one) << 23);
}

/// Natural logarithm of a positive finite number, within 1e-15 relative or absolute. Written out instead of
/// taken from libm, whose variants for processors with and without FMA differ in the last bit.
/// log(m 2^e) = e ln 2 + 2 artanh((m-1)/(m+1)), sqrt(1/2) <= m < sqrt(2). Zero gives -inf, NaN and inf
/// themselves.
inline double log_of(double x) {
  if (!(x > 0)) return x == 0 ? -__builtin_inf() : __builtin_nan("");
  if (x == __builtin_inf()) return x;
  int e = 0;
  double m = __builtin_frexp(x, &e);
  if (m < 0.70710678118654752) {
    m *= 2;
    --e;
  }
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double series = 0;
  for (int k = 21; k >= 3; k -= 2) series = (series + 1.0 / k) * s2;
  return e * 0.69314718055994531 + 2 * s * (1 + series);
}

}  // namespace octavo::cpu
