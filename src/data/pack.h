// pack.h - text files to shards: `octavo data pack`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/dataset_json.h"

namespace octavo {

/// Called with one line of progress now and then.
using Progress = std::function<void(const std::string&)>;

struct PackOptions {
  std::vector<std::string> inputs;          // files and globs, in order
  std::string out;                          // a new or empty folder
  std::string tokenizer = "bytes";          // "bytes" or a tokenizer.json
  std::int64_t shard_tokens = 100'000'000;  // at most
  double val_fraction = 0;                  // share of the bytes, by whole files
};

/// Packs each input file as one document (end-of-text, then its tokens) into `out`: train_000000.bin, ...,
/// val_000000.bin, ..., tokenizer.json and dataset.json, all of it or nothing. Throws RequestError for a
/// wrong request, RunError when the disk fails.
///
/// The split goes by whole files and by their content, never by names or order: in the order of their
/// SHA-256, each file goes to validation that still fits into the share; if none fits, the smallest one does.
/// Files of equal content stay together.
DatasetDescription pack_text(const PackOptions& options, const Progress& progress);

}  // namespace octavo
