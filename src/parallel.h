// parallel.h - work shared over OpenMP threads so that no result depends on how many there are.
//
// Work is cut into blocks whose bounds depend on the size of the problem alone; whichever thread takes a
// block does the same arithmetic on it, and partial sums of blocks are added in index order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>

namespace octavo {

/// [0, n) in blocks of equal size, the last one maybe shorter.
struct Blocks {
  std::int64_t n = 0, size = 1;

  std::int64_t count() const { return (n + size - 1) / size; }
  std::int64_t begin(std::int64_t block) const { return block * size; }
  std::int64_t end(std::int64_t block) const { return std::min(n, (block + 1) * size); }
};

/// Blocks of rows whose column sums are wanted: at most 64, so that partial sums stay in cache and their sum
/// is short, and no fewer than 16 rows. Every operator that sums columns uses these blocks, so that a fused
/// column sum has the bits of the plain one.
inline Blocks row_blocks(std::int64_t rows) {
  return {rows, std::max<std::int64_t>(16, (rows + 63) / 64)};
}

/// No exception may leave an OpenMP region, not even for want of scratch memory: the first one is kept, and
/// rethrown behind the region.
class FirstError {
 public:
  template <class Body>
  void guard(Body&& body) {
    try {
      body();
    } catch (...) {
#pragma omp critical(octavo_first_error)
      if (!error_) error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

/// Runs body(begin, end) for each block, on all threads.
template <class Body>
void parallel_blocks(Blocks blocks, Body body) {
  const std::int64_t count = blocks.count();
  FirstError error;
#pragma omp parallel for schedule(static) if (count > 1)
  for (std::int64_t b = 0; b < count; ++b) error.guard([&] { body(blocks.begin(b), blocks.end(b)); });
  error.rethrow();
}

/// Runs body(task) for tasks [0, count) whose costs differ: whichever thread is free takes the next one.
template <class Body>
void parallel_tasks(std::int64_t count, Body body) {
  FirstError error;
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t task = 0; task < count; ++task) error.guard([&] { body(task); });
  error.rethrow();
}

}  // namespace octavo
