// fp8_support.h - what a GPU's compute capability and the shape of a product allow, and the reason where not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backend.h"

namespace octavo {

std::string text_of(Capability capability);

inline constexpr Capability kLeastCapability{8, 0};     // of the CUDA backend
inline constexpr Capability kLeastFp8Capability{8, 9};  // of FP8 products

/// Why a GPU of this capability does not multiply FP8 codes in d[m,n] = a[m,k] b[n,k]^T for any m; empty
/// where it does. Sizes of 0 are not known yet. Source of the shapes: cuBLAS documentation, cublasLtMatmul,
/// FP8 requirements: the inner dimension and the leading dimension of the result are multiples of 16 bytes.
std::string why_no_fp8(Capability capability, std::int64_t n, std::int64_t k);

/// The capability that the environment variable OCTAVO_PRETEND_CAPABILITY names ("8.0"), for a run whose
/// device is "auto". Throws RequestError where it is not major.minor.
std::optional<Capability> pretended_capability();

}  // namespace octavo
