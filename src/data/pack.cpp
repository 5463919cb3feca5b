// pack.cpp - see pack.h.

#include "data/pack.h"

#include <algorithm>
#include <map>

#include "data/input_files.h"
#include "data/output_folder.h"
#include "data/shard_writer.h"
#include "data/tokenizer.h"
#include "data/tokens.h"
#include "error.h"
#include "sha256.h"

namespace octavo {

namespace {

constexpr std::size_t kByteChunk = 1 << 20;
constexpr std::size_t kProgressBytes = 64 << 20;

struct Source {
  std::string path, sha256;
  std::size_t bytes;
  bool val = false;
};

std::vector<Source> read_sources(const std::vector<std::string>& inputs) {
  std::vector<Source> sources;
  for (const std::string& path : expand_inputs(inputs, "data pack")) {
    const MappedFile file(path);
    const TokenFormat format = detect_format(file, "auto");
    if (format != TokenFormat::text) refuse("{}: is a {}; allowed: text to pack", path, name_of(format));
    if (file.size() > 0) sources.push_back({path, sha256_hex(file.text()), file.size()});
  }
  if (sources.empty())
    refuse("data pack: 0 bytes of text in the inputs; allowed: at least one file with text");
  return sources;
}

void choose_validation(std::vector<Source>& sources, double fraction) {
  if (fraction == 0) return;
  std::map<std::string, std::size_t> groups;  // content -> bytes of all its copies
  std::size_t total = 0;
  for (const Source& source : sources) {
    groups[source.sha256] += source.bytes;
    total += source.bytes;
  }
  if (groups.size() < 2) {
    refuse(
        "--val-fraction: {} with {} file(s) of {} content; allowed: 0, or at least 2 different files (a "
        "config's data.val_fraction splits inside a file)",
        fraction, sources.size(), groups.size());
  }
  std::size_t left = static_cast<std::size_t>(fraction * static_cast<double>(total));
  std::vector<std::string> chosen;  // sorted, as the map is
  for (const auto& [content, bytes] : groups) {
    if (bytes > left) continue;
    left -= bytes;
    chosen.push_back(content);
  }
  if (chosen.empty()) {
    chosen.push_back(std::min_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
                       return a.second < b.second;
                     })->first);
  }
  for (Source& source : sources) {
    source.val = std::binary_search(chosen.begin(), chosen.end(), source.sha256);
  }
}

void append_document(const Tokenizer& tokenizer, std::string_view text, ShardWriter& writer) {
  const std::int32_t eot = tokenizer.eot();
  writer.append({&eot, 1});
  // Bytes do not depend on their neighbours, so a large file need not be in memory as ids.
  const std::size_t chunk = tokenizer.is_bytes() ? kByteChunk : text.size();
  for (std::size_t begin = 0; begin < text.size(); begin += chunk) {
    writer.append(tokenizer.encode(text.substr(begin, chunk)));
  }
}

}  // namespace

DatasetDescription pack_text(const PackOptions& options, const Progress& progress) {
  if (!(options.val_fraction >= 0 && options.val_fraction < 1)) {
    refuse("--val-fraction: {}; allowed: 0 up to, not including, 1", options.val_fraction);
  }
  const TokenizerPtr tokenizer = load_tokenizer(options.tokenizer);
  std::vector<Source> sources = read_sources(options.inputs);
  choose_validation(sources, options.val_fraction);

  const std::int64_t vocab = tokenizer->vocab();
  NewFolder folder(options.out);
  ShardWriter train(folder, "train", vocab, options.shard_tokens);
  ShardWriter val(folder, "val", vocab, options.shard_tokens);
  Sha256 all;
  std::size_t bytes = 0;
  std::size_t reported = 0;
  for (const Source& source : sources) {
    append_document(*tokenizer, MappedFile(source.path).text(), source.val ? val : train);
    all.update(source.sha256);
    bytes += source.bytes;
    if (bytes - reported >= kProgressBytes) {
      progress(fmt::format("{} MiB packed, {} tokens", bytes >> 20, train.tokens() + val.tokens()));
      reported = bytes;
    }
  }

  DatasetDescription description;
  description.tokenizer_kind = tokenizer->kind();
  description.tokenizer_hash = tokenizer->hash();
  description.vocab = vocab;
  description.eot = tokenizer->eot();
  description.train = train.finish();
  description.val = val.finish();
  const std::size_t eot = static_cast<std::size_t>(tokenizer->eot());
  description.documents = train.counts()[eot] + val.counts()[eot];
  description.unigram_entropy = entropy_of(train.counts());
  const auto val_files = std::count_if(sources.begin(), sources.end(), [](const Source& s) { return s.val; });
  description.made_by = {{"command", "octavo data pack"},
                         {"inputs", options.inputs},
                         {"tokenizer", options.tokenizer},
                         {"val_fraction", options.val_fraction},
                         {"files", sources.size()},
                         {"val_files", val_files},
                         {"bytes", bytes},
                         {"text_sha256", all.hex()}};  // over the files' SHA-256, in order
  tokenizer->save(folder.folder());
  write_dataset_json(description, folder.file(kDatasetFile));
  folder.publish();
  return description;
}

}  // namespace octavo
