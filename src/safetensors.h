// safetensors.h - reading and writing of safetensors files: what checkpoints and Hugging Face models are made
// of.
//
// The format: a little-endian u64 length, a JSON header {name: {dtype, shape, data_offsets: [begin, end]},
// "__metadata__": {text: text}}, then the tensors' bytes. A file comes from anywhere, so the reader checks
// all of it before it hands out a single byte; the writer streams, so that a model is never held twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/input_files.h"
#include "files.h"

namespace octavo {

/// One tensor as a safetensors header describes it.
struct SavedTensor {
  std::string name;
  std::string dtype;  // "F32", "BF16", "F16", ...
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes, counted from the end of the header
  std::int64_t size() const;         // elements
};

/// Bytes of one element of a safetensors dtype; 0 for a dtype that is not known.
std::size_t safetensors_element_size(std::string_view dtype);

/// A safetensors file, memory-mapped and checked: header at most 100 MB and inside the file, JSON without
/// duplicate keys, known dtypes, shape x dtype == bytes, the tensors' bytes contiguous from 0 to the end of
/// the file.
class SafetensorsFile {
 public:
  /// Throws RequestError naming file, tensor, the value found and what is allowed.
  explicit SafetensorsFile(const std::filesystem::path& file);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<SavedTensor>& tensors() const { return tensors_; }  // in the order of their bytes
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// The tensor of that name, or nullptr.
  const SavedTensor* find(const std::string& name) const;
  /// Its bytes (row-major, little-endian, not necessarily aligned).
  const std::uint8_t* bytes(const SavedTensor& tensor) const { return data_ + tensor.begin; }
  /// Elements [first, first + count) as f32: F32 bit for bit, F16 and BF16 by their exact value. Throws
  /// RequestError for another dtype.
  void read_f32(const SavedTensor& tensor, std::int64_t first, std::int64_t count, float* out) const;

 private:
  void parse_header(std::string_view header, std::uint64_t data_bytes);

  std::filesystem::path path_;
  MappedFile map_;
  const std::uint8_t* data_ = nullptr;
  std::vector<SavedTensor> tensors_;
  std::map<std::string, std::size_t> index_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor to be written.
struct TensorSpec {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
};

/// Writes a safetensors file, which is complete or absent; an older one stays until finish().
class SafetensorsWriter {
 public:
  /// Writes the header. Throws RunError naming the file and the system's reason.
  SafetensorsWriter(std::filesystem::path file, const std::vector<TensorSpec>& tensors,
                    const std::map<std::string, std::string>& metadata);

  /// The next bytes of the tensors, in the order of the specs; any split. Throws RunError.
  void write(const void* data, std::size_t bytes);
  /// All bytes are written: the file is put into its place. Throws RunError; std::logic_error where bytes are
  /// missing.
  void finish();

  /// Size of the file that these tensors give, in bytes.
  static std::uint64_t file_size(const std::vector<TensorSpec>& tensors,
                                 const std::map<std::string, std::string>& metadata);

 private:
  AtomicFile file_;
  std::uint64_t left_ = 0;  // bytes still to come
};

}  // namespace octavo
