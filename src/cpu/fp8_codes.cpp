#include "cpu/fp8_codes.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "parallel.h"

namespace octavo::cpu {

namespace {

template <DType Format>
struct Quantise {
  template <int W>
  static OCTAVO_INLINE void run(const bf16* x, std::int64_t n, float scale, std::uint8_t* codes,
                                Fp8Tally* tally) {
    using F = Fp8Format<Format>;
    using U = Words<W>;
    const auto word = [](std::uint32_t v) OCTAVO_INLINE_LAMBDA { return U::broadcast(v); };
    U amax = word(0), saturated = word(0), underflowed = word(0);
    chunks(n, [&](std::int64_t i, auto count) OCTAVO_INLINE_LAMBDA {
      const Floats<W> value = load<W>(x + i, count);
      const U own = bits_of(value) & word(0x7fffffffu);
      amax = select(below(amax, own), own, amax);
      // As encode_fp8(), all three cases at once.
      const U bits = bits_of(value * Floats<W>::broadcast(scale)), size = bits & word(0x7fffffffu);
      const U denormal =
          bits_of(floats_of(size) + floats_of(word(F::kDenormalShift))) - word(F::kDenormalShift);
      const U odd = (size >> F::kShift) & word(1u);
      const U normal = (size - word(F::kRebias - (1u << (F::kShift - 1)) + 1u) + odd) >> F::kShift;
      const U nan = below(word(0x7f800000u), size);
      U code = select(below(size, word(F::kMinNormal)), denormal, normal);
      code = select(below(size, word(F::kMaxBits)), code, word(F::kMaxCode));
      const U beyond = below(word(F::kMaxBits), size);
      const U lost = below(code, word(1u)) & below(word(0u), own);
      saturated = saturated + (select(nan, word(0u), beyond) & word(1u));
      underflowed = underflowed + (lost & word(1u));
      code = select(nan, word(F::kNan), code | ((bits >> 24) & word(0x80u)));
      if constexpr (std::is_same_v<decltype(count), All>) {
        store_bytes(codes + i, code);
      } else {
        std::uint8_t padded[16];
        store_bytes(padded, code);
        std::memcpy(codes + i, padded, static_cast<std::size_t>(count));
      }
    });
    *tally = {.amax = max_of(amax), .saturated = sum_of(saturated), .underflowed = sum_of(underflowed)};
  }
};

struct Amax {
  template <int W>
  static OCTAVO_INLINE void run(const bf16* x, std::int64_t n, std::uint32_t* bits) {
    Words<W> amax = Words<W>::broadcast(0);
    chunks(n, [&](std::int64_t i, auto count) OCTAVO_INLINE_LAMBDA {
      const Words<W> own = bits_of(load<W>(x + i, count)) & Words<W>::broadcast(0x7fffffffu);
      amax = select(below(amax, own), own, amax);
    });
    *bits = max_of(amax);
  }
};

template <DType Format>
struct Widen {
  template <int W>
  static OCTAVO_INLINE void run(const std::uint8_t* codes, std::int64_t n, bf16* x) {
    using F = Fp8Format<Format>;
    using U = Words<W>;
    const auto word = [](std::uint32_t v) OCTAVO_INLINE_LAMBDA { return U::broadcast(v); };
    chunks(n, [&](std::int64_t i, auto count) OCTAVO_INLINE_LAMBDA {
      U code;
      if constexpr (std::is_same_v<decltype(count), All>) {
        code = load_bytes<W>(codes + i);
      } else {
        std::uint8_t padded[16] = {};
        std::memcpy(padded, codes + i, static_cast<std::size_t>(count));
        code = load_bytes<W>(padded);
      }
      // As decode_fp8(); a whole number below 2^23 becomes a float by way of the mantissa of 2^23.
      const U size = code & word(0x7fu), sign = (code & word(0x80u)) << 24;
      const Floats<W> whole = floats_of(size | word(0x4b000000u)) - Floats<W>::broadcast(0x1p23f);
      const U denormal = bits_of(whole * Floats<W>::broadcast(F::kMinDenormal));
      U bits =
          select(below(size, word(1u << F::kMantissa)), denormal, (size << F::kShift) + word(F::kRebias)) |
          sign;
      if constexpr (Format == DType::e5m2)
        bits = select(below(word(F::kFirstSpecial - 1), size), word(0x7f800000u) | sign, bits);
      bits = select(below(word(Format == DType::e5m2 ? F::kFirstSpecial : F::kFirstSpecial - 1), size),
                    word(0x7fff0000u), bits);
      store(x + i, floats_of(bits), count);
    });
  }
};

}  // namespace

Fp8Tally quantise(DType format, const bf16* x, std::int64_t n, float scale, std::uint8_t* codes) {
  Fp8Tally tally;
  if (format == DType::e4m3)
    dispatch<Quantise<DType::e4m3>>(x, n, scale, codes, &tally);
  else
    dispatch<Quantise<DType::e5m2>>(x, n, scale, codes, &tally);
  return tally;
}

std::uint32_t amax_bits(const bf16* x, std::int64_t n) {
  std::uint32_t bits = 0;
  dispatch<Amax>(x, n, &bits);
  return bits;
}

void widen_codes(DType format, const std::uint8_t* codes, std::int64_t n, bf16* x) {
  if (format == DType::e4m3)
    dispatch<Widen<DType::e4m3>>(codes, n, x);
  else
    dispatch<Widen<DType::e5m2>>(codes, n, x);
}

CodeWriter::CodeWriter(const Operand& to, std::int64_t rows, std::int64_t columns)
    : slot_(to.slot),
      t_(to.t ? to.t.as<bf16>() : nullptr),
      q_(to.q ? static_cast<std::uint8_t*>(to.q.data) : nullptr),
      q_t_(to.q_t ? static_cast<std::uint8_t*>(to.q_t.data) : nullptr),
      rows_(rows),
      columns_(columns),
      record_(to.record) {
  if (slot_ == nullptr) return;
  current_ = slot_->scaling == Fp8Scaling::current;
  if (!current_) {
    *slot_->scale_inv = 1.0f / *slot_->scale;
    return;
  }
  *slot_->own_amax = 0;
  if (t_ == nullptr) {
    // The values must outlive the pass that finds their amax. One operator runs at a time.
    static thread_local Scratch complete;
    t_ = complete.get<bf16>(static_cast<std::size_t>(rows * columns));
  }
}

bf16* CodeWriter::values(std::int64_t first, std::int64_t last) {
  if (t_ != nullptr) return t_ + first * columns_;
  if (slot_ == nullptr) return nullptr;
  static thread_local Scratch block;
  return block.get<bf16>(static_cast<std::size_t>((last - first) * columns_));
}

void CodeWriter::fold(std::int32_t* amax, std::uint32_t bits) const {
  std::atomic_ref<std::int32_t> shared(*amax);
  const std::int32_t mine = static_cast<std::int32_t>(bits);
  std::int32_t seen = shared.load(std::memory_order_relaxed);
  while (seen < mine && !shared.compare_exchange_weak(seen, mine, std::memory_order_relaxed)) {
  }
}

void CodeWriter::done(std::int64_t first, std::int64_t last, const bf16* values) {
  if (slot_ == nullptr) return;
  if (current_)
    fold(slot_->own_amax, amax_bits(values, (last - first) * columns_));
  else
    write(first, last, values);
}

void CodeWriter::write(std::int64_t first, std::int64_t last, const bf16* values) {
  const std::int64_t n = (last - first) * columns_;
  std::uint8_t* codes = q_ != nullptr ? q_ + first * columns_ : nullptr;
  if (codes == nullptr) {
    static thread_local Scratch block;
    codes = block.get<std::uint8_t>(static_cast<std::size_t>(n));
  }
  const Fp8Tally tally = quantise(slot_->format, values, n, *slot_->scale, codes);
  if (q_t_ != nullptr)
    for (std::int64_t r = first; r < last; ++r)
      for (std::int64_t c = 0; c < columns_; ++c) q_t_[c * rows_ + r] = codes[(r - first) * columns_ + c];
  if (!record_) return;
  fold(slot_->amax, tally.amax);
  std::atomic_ref<std::int64_t>(*slot_->saturated).fetch_add(static_cast<std::int64_t>(tally.saturated));
  std::atomic_ref<std::int64_t>(*slot_->underflowed).fetch_add(static_cast<std::int64_t>(tally.underflowed));
}

void CodeWriter::finish() {
  if (!current_) return;
  *slot_->scale = fp8_current_scale(std::bit_cast<float>(*slot_->own_amax), fp8_max(slot_->format));
  *slot_->scale_inv = 1.0f / *slot_->scale;
  parallel_blocks(row_blocks(rows_),
                  [&](std::int64_t first, std::int64_t last) { write(first, last, t_ + first * columns_); });
}

void write_codes(const Operand& operand) {
  if (operand.slot == nullptr) return;
  const std::int64_t rows = operand.q ? operand.q.dim(0) : operand.q_t.dim(1),
                     columns = operand.t.numel() / rows;
  CodeWriter writer(operand, rows, columns);
  parallel_blocks(row_blocks(rows), [&](std::int64_t first, std::int64_t last) {
    writer.done(first, last, writer.values(first, last));
  });
  writer.finish();
}

}  // namespace octavo::cpu
