// memory_usage.h - resident memory of this process, as Linux counts it.
#pragma once

#include <cstdint>

namespace octavo {

/// Resident set now, in bytes (VmRSS); 0 where the system does not say.
std::uint64_t resident_bytes();
/// Its peak since the start, or since the last reset (VmHWM); 0 where the system does not say.
std::uint64_t peak_resident_bytes();
/// Sets the peak back to the present value, so that the runs of a sweep each have their own. Gives freed
/// memory of the heap back to the system first. False where the system does not allow it (the peak then is
/// that of the process).
bool reset_peak_resident();

}  // namespace octavo
