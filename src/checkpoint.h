// checkpoint.h - what a run leaves to be gone on from, and what other commands open as a model.
//
//   checkpoints/step_00000500/  model.safetensors  config.json   the FP32 masters, a Hugging Face GPT-2
//   folder
//                               optimizer_rank0000.safetensors   AdamW's moments
//                               fp8_scales.safetensors           scales and amax histories of an FP8 run
//                               state.json                       where the run stands; size and CRC-32 of
//                                                                every file, itself included
//                               tokenizer.json ...               where the tokenizer is known
//
// A checkpoint is written under a hidden name beside its place and renamed when all of it is on disk: it is
// complete or absent. Sizes are compared whenever checkpoints are listed, so that a copy that was cut short
// does not count; sums whenever a file is used, so that a flipped byte is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "data/tokenizer.h"
#include "huggingface.h"
#include "parameters.h"
#include "precision/fp8_file.h"

namespace octavo {

/// The folder of a run in which its checkpoints lie.
inline constexpr const char* kCheckpoints = "checkpoints";

/// A file of a checkpoint as state.json records it.
struct RecordedFile {
  std::int64_t bytes = 0;
  std::string crc32;
  bool operator==(const RecordedFile&) const = default;
};

/// From `step` on the bits are no longer those that the machine before would have computed.
struct BitEqualityEnd {
  std::int64_t step = 0;
  std::string was, now;  // Backend::arithmetic()
  bool operator==(const BitEqualityEnd&) const = default;
};

/// As it stands in state.json and run.json: [{"step": .., "was": .., "now": ..}].
nlohmann::ordered_json bit_equality_json(const std::vector<BitEqualityEnd>& ends);

/// state.json.
struct CheckpointState {
  // where the run stands
  std::int64_t step = 0;        // steps done, skipped ones included
  std::int64_t samples = 0;     // sequences consumed: the data order's whole state
  std::int64_t tokens = 0;      // tokens trained on
  std::int64_t updates = 0;     // AdamW updates done
  std::int64_t skipped = 0;     // steps whose update was skipped
  std::int64_t bad_in_row = 0;  // of those, the ones since the last good step
  // over all sessions: from each start or resume to its last checkpoint
  std::int64_t sessions = 1;  // this one included
  double seconds = 0;         // wall time
  double peak_memory_gib = 0;
  // losses, nats per token; absent: not measured. A loss that is not finite is saved as absent.
  std::optional<double> train_loss;     // of the last step
  std::optional<double> val_loss;       // of these very weights
  std::optional<double> best_val_loss;  // smallest of the run so far
  // what a resumed run may not change
  std::int64_t seed = 0, data_seed = 0;
  std::int64_t sequence = 0;     // T
  std::string data_fingerprint;  // Dataset::fingerprint
  std::string tokenizer_hash;    // Dataset::tokenizer_hash; may be empty
  // how it was computed
  std::string mode;        // precision.mode as run
  std::string arithmetic;  // Backend::arithmetic()
  std::vector<BitEqualityEnd> bit_equality_ends;
  std::map<std::string, RecordedFile> files;  // by name; write_checkpoint() fills them in
};

/// Refuses to go on from `saved` where seeds, sequence, data or tokenizer differ from `now`'s, with the way
/// out; `origin` names the checkpoint. Throws RequestError that names every difference.
void check_resumable(const CheckpointState& saved, const CheckpointState& now, const std::string& origin);

/// All that goes into a checkpoint. The arenas have table.arena_size floats.
struct CheckpointContent {
  const ParameterTable& table;
  const ModelShape& shape;
  ModelDetails details;
  const float* masters;
  const float* moment1;
  const float* moment2;
  CheckpointState state;
  const Tokenizer* tokenizer = nullptr;  // null: not known
  SavedFp8 fp8 = {};                     // no slots: no scale state
};

/// Writes checkpoints/step_XXXXXXXX (state.step), replacing one of the same step, and returns its path.
/// Creates `checkpoints` where it is missing, and removes what killed writers left there. Throws RunError:
/// not enough space (needed and free bytes are named; checked before anything is written), a full disk or any
/// other error of the system; nothing is left behind then.
std::filesystem::path write_checkpoint(const std::filesystem::path& checkpoints,
                                       const CheckpointContent& content);

/// Bytes on disk of one checkpoint, for --dry-run and the check of free space: the tensors exactly, plus an
/// allowance for the small files. Without a tokenizer its files do not count. `fp8`: of fp8_file_size().
std::uint64_t checkpoint_bytes(const ParameterTable& table, const Tokenizer* tokenizer = nullptr,
                               std::uint64_t fp8 = 0);

/// A complete checkpoint.
struct Checkpoint {
  std::filesystem::path folder;
  CheckpointState state;
};

/// The complete checkpoints in a run's `checkpoints` folder, by step ascending; empty where the folder is
/// missing. `skipped` receives one line for each step folder that is not complete, with the reason.
std::vector<Checkpoint> list_checkpoints(const std::filesystem::path& checkpoints,
                                         std::vector<std::string>* skipped = nullptr);

/// The newest complete checkpoint.
std::optional<Checkpoint> newest_checkpoint(const std::filesystem::path& checkpoints,
                                            std::vector<std::string>* skipped = nullptr);

/// The one with the smallest val_loss (of equals the earliest), or nothing where none has one.
std::optional<Checkpoint> best_checkpoint(const std::filesystem::path& checkpoints);

/// Removes all but the `keep` newest complete checkpoints (at least one stays); with `keep_best` the one of
/// best_checkpoint() stays as well. A trainer that keeps the best writes a checkpoint whenever val_loss has
/// improved. Throws RunError.
void prune_checkpoints(const std::filesystem::path& checkpoints, std::int64_t keep, bool keep_best);

/// Removes the hidden folders that killed writers left. Only for the process that holds the run's lock.
void remove_unfinished_checkpoints(const std::filesystem::path& checkpoints);

/// Reads AdamW's moments of a checkpoint into flat arenas, bit for bit (padding rows and gaps become zero).
/// Throws RequestError where the file is not the one that state.json records, or naming every tensor that is
/// missing, not known or of another shape.
void read_moments(const Checkpoint& checkpoint, const ParameterTable& table, float* moment1, float* moment2);

enum class CheckpointChoice : std::uint8_t { newest, best };

/// A folder that holds a model.
struct ModelFolder {
  std::filesystem::path folder;  // where model.safetensors lies; for read_weights() and find_tokenizer()
  ModelShape shape;
  ModelDetails details;
  std::optional<CheckpointState> state;  // of our checkpoints
};

/// Finds the model in a checkpoint, a run's folder (its newest or best checkpoint) or a Hugging Face GPT-2
/// folder, and reads its shape. Of a checkpoint all files but the moments are held to what state.json
/// records. Throws RequestError that says what the folder holds and what is allowed.
ModelFolder open_model(const std::string& path, CheckpointChoice choice = CheckpointChoice::newest);

}  // namespace octavo
