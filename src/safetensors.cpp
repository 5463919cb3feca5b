#include "safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "error.h"
#include "files.h"
#include "tensor.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "safetensors files are little-endian, and read as they are");

constexpr std::uint64_t kMaxHeader = 100'000'000;  // bytes; the limit of the format's own library
constexpr std::size_t kMaxRank = 8;                // far above any model's, so that messages stay readable
constexpr int kMaxDepth = 8;                       // of nested JSON values; a header needs 3
constexpr const char* kMetadata = "__metadata__";

constexpr std::pair<std::string_view, std::size_t> kDTypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
    {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};

// Parses JSON and refuses duplicate keys, which nlohmann's parser would silently merge, and deep nesting,
// which its recursive functions do not survive.
Json parse_strictly(std::string_view text, const std::string& file) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth)
      refuse(
          "{}: the header is nested more than {} deep; allowed: tensors with dtype, shape and data_offsets",
          file, kMaxDepth);
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      refuse("{}: the header names {} twice; allowed: each name once", file, json_excerpt(value));
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::exception& error) {
    // parse_error, or out_of_range for a number that no double holds
    const auto* at = dynamic_cast<const Json::parse_error*>(&error);
    refuse("{}: the header is not valid JSON{}; allowed: a JSON object in UTF-8", file,
           at != nullptr ? fmt::format(" at its byte {}", at->byte) : "");
  }
}

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu, fraction = half & 0x3ffu;
  if (exponent == 0) {  // zero and subnormal: fraction * 2^-24 is exact
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

std::uint16_t load_u16(const std::uint8_t* p) {
  std::uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

std::uint64_t bytes_of(const TensorSpec& t) {
  std::uint64_t bytes = safetensors_element_size(t.dtype);
  for (std::int64_t d : t.shape) bytes *= static_cast<std::uint64_t>(d);
  return bytes;
}

// Text of a header, padded with spaces so that the tensors begin at a multiple of 8.
std::string make_header(const std::vector<TensorSpec>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  // Written as text, entry by entry: a JSON object that keeps its order looks every key up from the front.
  std::string text = "{";
  const auto add = [&](const std::string& key, const nlohmann::ordered_json& value) {
    text += (text.size() > 1 ? "," : "") + Json(key).dump() + ":" + value.dump();
  };
  if (!metadata.empty()) add(kMetadata, metadata);
  std::set<std::string> names{kMetadata};
  std::uint64_t at = 0;
  for (const TensorSpec& t : tensors) {
    const std::uint64_t bytes = bytes_of(t);
    if (bytes == 0 || !names.insert(t.name).second)
      throw std::logic_error("safetensors: impossible tensor " + t.name);
    add(t.name, {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {at, at + bytes}}});
    at += bytes;
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeader) throw std::logic_error("safetensors: header over 100 MB");
  return text;
}

std::uint64_t data_size(const std::vector<TensorSpec>& tensors) {
  std::uint64_t total = 0;
  for (const TensorSpec& t : tensors) total += bytes_of(t);
  return total;
}

}  // namespace

std::int64_t SavedTensor::size() const {
  std::int64_t n = 1;
  for (std::int64_t d : shape) n *= d;
  return n;
}

std::size_t safetensors_element_size(std::string_view dtype) {
  for (const auto& [name, bytes] : kDTypes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

SafetensorsFile::SafetensorsFile(const fs::path& file) : path_(file), map_(file.string()) {
  const std::string name = file.string();
  const std::uint64_t size = map_.size();
  if (size < 8) refuse("{}: found {} bytes; allowed: a safetensors file, at least 8 bytes", name, size);
  std::uint64_t header = 0;
  std::memcpy(&header, map_.data(), sizeof header);
  if (header > kMaxHeader)
    refuse("{}: header length is {}; allowed: at most {} (is this a safetensors file?)", name, header,
           kMaxHeader);
  if (header > size - 8)
    refuse("{}: header length is {}, but only {} bytes follow; allowed: a whole file (this one is cut short)",
           name, header, size - 8);
  data_ = map_.data() + 8 + header;
  parse_header(map_.text().substr(8, header), size - 8 - header);
}

void SafetensorsFile::parse_header(std::string_view header, std::uint64_t data_bytes) {
  const std::string file = path_.string();
  if (header.empty() || header.front() != '{')
    refuse("{}: the header does not begin with a brace; allowed: a JSON object", file);
  const Json json = parse_strictly(header, file);

  for (const auto& [name, value] : json.items()) {
    if (name == kMetadata) {
      if (!value.is_object())
        refuse("{}: {} is {}; allowed: an object of texts", file, kMetadata, json_excerpt(value));
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string())
          refuse("{}: {}.{} is {}; allowed: a text", file, kMetadata, json_excerpt(key), json_excerpt(text));
        metadata_[key] = text.get<std::string>();
      }
      continue;
    }
    const std::string where = fmt::format("{}: tensor {}", file, json_excerpt(name));
    if (!value.is_object())
      refuse("{}: found {}; allowed: dtype, shape and data_offsets", where, json_excerpt(value));
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      if (!value.contains(key)) refuse("{}: has no {}; allowed: dtype, shape and data_offsets", where, key);
    }
    for (const auto& [key, unused] : value.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets")
        refuse("{}: found the key {}; allowed: dtype, shape and data_offsets", where, json_excerpt(key));
    }

    SavedTensor tensor;
    tensor.name = name;
    const Json& dtype = value["dtype"];
    if (!dtype.is_string() || safetensors_element_size(dtype.get<std::string>()) == 0) {
      std::string known;
      for (const auto& [text, bytes] : kDTypes) known += known.empty() ? text : ", " + std::string(text);
      refuse("{}: dtype is {}; allowed: {}", where, json_excerpt(dtype), known);
    }
    tensor.dtype = dtype.get<std::string>();

    const Json& shape = value["shape"];
    if (!shape.is_array() || shape.size() > kMaxRank)
      refuse("{}: shape is {}; allowed: a list of at most {} sizes", where, json_excerpt(shape), kMaxRank);
    // In unsigned 64 bits, with every product checked: sizes are the file's own claim.
    std::uint64_t bytes = safetensors_element_size(tensor.dtype);
    for (const Json& d : shape) {
      if (!d.is_number_unsigned() ||
          d.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        refuse("{}: shape is {}; allowed: integers of at least 0", where, json_excerpt(shape));
      const std::uint64_t n = d.get<std::uint64_t>();
      if (n != 0 && bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / n)
        refuse("{}: shape {} of {} overflows 64 bits; allowed: what the file's {} bytes hold", where,
               json_excerpt(shape), tensor.dtype, data_bytes);
      bytes *= n;
      tensor.shape.push_back(static_cast<std::int64_t>(n));
    }

    const Json& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned())
      refuse("{}: data_offsets is {}; allowed: [begin, end], integers of at least 0", where,
             json_excerpt(offsets));
    tensor.begin = offsets[0].get<std::uint64_t>();
    tensor.end = offsets[1].get<std::uint64_t>();
    if (tensor.begin > tensor.end || tensor.end > data_bytes)
      refuse(
          "{}: data_offsets is {}; allowed: begin <= end <= {}, the bytes after the header (is the file cut "
          "short?)",
          where, json_excerpt(offsets), data_bytes);
    if (tensor.end - tensor.begin != bytes)
      refuse("{}: data_offsets is {}, {} bytes; allowed: {} bytes, as shape {} of {} needs", where,
             json_excerpt(offsets), tensor.end - tensor.begin, bytes, json_excerpt(shape), tensor.dtype);
    tensors_.push_back(std::move(tensor));
  }

  std::stable_sort(tensors_.begin(), tensors_.end(), [](const SavedTensor& a, const SavedTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t at = 0;
  for (const SavedTensor& tensor : tensors_) {
    if (tensor.begin != at)
      refuse(
          "{}: tensor {} begins at byte {}; allowed: {}, where the tensor before it ends (no gap, no "
          "overlap)",
          file, json_excerpt(tensor.name), tensor.begin, at);
    at = tensor.end;
  }
  if (at != data_bytes)
    refuse("{}: {} bytes follow the header, its tensors end at {}; allowed: equal", file, data_bytes, at);
  for (std::size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
}

const SavedTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read_f32(const SavedTensor& tensor, std::int64_t first, std::int64_t count,
                               float* out) const {
  if (first < 0 || count < 0 || first > tensor.size() - count)
    throw std::logic_error("safetensors: elements out of range of " + tensor.name);
  const std::size_t width = safetensors_element_size(tensor.dtype);
  const std::uint8_t* in = bytes(tensor) + static_cast<std::size_t>(first) * width;
  const std::size_t n = static_cast<std::size_t>(count);
  if (tensor.dtype == "F32") {
    if (n != 0) std::memcpy(out, in, n * sizeof(float));
  } else if (tensor.dtype == "BF16") {
    for (std::size_t i = 0; i < n; ++i) out[i] = to_float(bf16{load_u16(in + 2 * i)});
  } else if (tensor.dtype == "F16") {
    for (std::size_t i = 0; i < n; ++i) out[i] = half_to_float(load_u16(in + 2 * i));
  } else {
    refuse("{}: tensor {} has dtype {}; allowed: F32, F16, BF16", path_.string(), json_excerpt(tensor.name),
           tensor.dtype);
  }
}

SafetensorsWriter::SafetensorsWriter(fs::path file, const std::vector<TensorSpec>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(std::move(file)), left_(data_size(tensors)) {
  const std::string header = make_header(tensors, metadata);
  const std::uint64_t length = header.size();
  file_.write(&length, sizeof length);
  file_.write(header.data(), header.size());
}

void SafetensorsWriter::write(const void* data, std::size_t bytes) {
  if (bytes > left_)
    throw std::logic_error("safetensors: more bytes than the header says, " + file_.path().string());
  file_.write(data, bytes);
  left_ -= bytes;
}

void SafetensorsWriter::finish() {
  if (left_ != 0) throw std::logic_error("safetensors: bytes missing in " + file_.path().string());
  file_.commit();
}

std::uint64_t SafetensorsWriter::file_size(const std::vector<TensorSpec>& tensors,
                                           const std::map<std::string, std::string>& metadata) {
  return 8 + make_header(tensors, metadata).size() + data_size(tensors);
}

}  // namespace octavo
