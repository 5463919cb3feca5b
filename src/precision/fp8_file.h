// fp8_file.h - the scale state in a checkpoint: fp8_scales.safetensors, which any reader of that format
// opens.
//
// For each slot the tensors "layer3.qkv.input.scale" [1], ".scaled_max" [1] and ".history" [L], all F32; the
// metadata hold format_version and the recipe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "precision/fp8_slots.h"

namespace octavo {

inline constexpr const char* kFp8File = "fp8_scales.safetensors";

struct SavedFp8 {
  Fp8Recipe recipe;
  std::vector<Fp8SlotState> slots;
};

/// Complete or absent. Throws RunError.
void write_fp8_file(const std::filesystem::path& file, const SavedFp8& state);
/// Bytes of the file; 0 where there are no slots, and so no file. Of a plan: as a run of it will write it.
std::uint64_t fp8_file_size(const SavedFp8& state);
std::uint64_t fp8_file_size(const Fp8Plan& plan);

/// Throws RequestError naming file and tensor where something is missing, of another shape or no scale state.
SavedFp8 read_fp8_file(const std::filesystem::path& file);
/// The scale state that lies in a checkpoint's folder, if any.
std::optional<SavedFp8> find_fp8_state(const std::filesystem::path& folder);

/// What a resume under another recipe does to the state, one line a difference; empty where nothing differs.
std::vector<std::string> fp8_conversions(const Fp8Recipe& saved, const Fp8Recipe& now);

}  // namespace octavo
