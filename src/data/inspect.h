// inspect.h - reads token files wholly, checks them and says what is in them: `octavo data info`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace octavo {

struct FileReport {
  std::string path, format;  // format as in name_of(TokenFormat)
  std::int64_t bytes = 0, tokens = 0;
  std::int64_t largest_id = 0;
  std::int64_t distinct_ids = 0;
  double entropy = 0;                     // of the histogram of ids, nats per token
  std::optional<std::int64_t> documents;  // count of end-of-text; nothing where that id is not known
  std::string sha256;
  std::optional<std::string> split;  // "train" | "val" where a dataset.json names the file and agrees with it
};

struct DataReport {
  std::vector<FileReport> files;
  std::int64_t tokens = 0;
  std::int64_t largest_id = 0;
  double entropy = 0;                             // over all files together
  std::optional<nlohmann::ordered_json> dataset;  // the dataset.json of the first file that has one
};

/// Checks files, globs and folders that hold a dataset.json (all of its shards). Text is counted as bytes.
/// Throws RequestError at the first fault: what TokenStream refuses, an id that the dataset's vocabulary
/// lacks, a shard whose count or SHA-256 is not what its dataset.json says, an entropy recorded wrongly.
DataReport inspect_data(const std::vector<std::string>& paths, const std::string& format);

nlohmann::ordered_json to_json(const DataReport& report);
/// A table for people, with a line for each file.
std::string to_text(const DataReport& report);

}  // namespace octavo
