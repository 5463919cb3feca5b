// inspect.cpp - see inspect.h.

#include "data/inspect.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>

#include "data/dataset_json.h"
#include "data/input_files.h"
#include "data/tokenizer.h"
#include "data/tokens.h"
#include "error.h"
#include "files.h"
#include "json_text.h"
#include "sha256.h"

namespace octavo {

namespace fs = std::filesystem;

namespace {

// A dataset.json and what its shards were found to hold.
struct Described {
  std::string file;  // the dataset.json
  DatasetDescription description;
  std::vector<std::int64_t> train_counts, val_counts;  // of the shards seen so far
  std::size_t shards_seen = 0;
};

void add_counts(std::vector<std::int64_t>& sum, const std::vector<std::int64_t>& counts) {
  if (sum.size() < counts.size()) sum.resize(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) sum[i] += counts[i];
}

class Inspector {
 public:
  Inspector(const std::vector<std::string>& paths, std::string format) : format_(std::move(format)) {
    for (const std::string& path : expand_folders(paths)) inspect(path);
    for (const auto& [folder, dataset] : datasets_) check_dataset(*dataset);
    report_.entropy = entropy_of(counts_);
  }
  DataReport take() { return std::move(report_); }

 private:
  // The dataset of a folder, null where there is none.
  Described* dataset_in(const fs::path& folder) {
    const std::string key = folder.empty() ? "." : folder.string();
    const auto known = datasets_.find(key);
    if (known != datasets_.end()) return &*known->second;
    const std::string file = (fs::path(key) / kDatasetFile).string();
    auto description = read_dataset_json(file);
    if (!description) return nullptr;
    if (!report_.dataset) report_.dataset = nlohmann::ordered_json::parse(read_whole_file(file));
    return &*datasets_
                 .emplace(key,
                          std::make_unique<Described>(Described{file, *std::move(description), {}, {}, 0}))
                 .first->second;
  }

  std::vector<std::string> expand_folders(const std::vector<std::string>& paths) {
    std::vector<std::string> expanded;
    for (const std::string& path : paths) {
      if (!is_folder(path)) {
        expanded.push_back(path);
        continue;
      }
      const Described* const dataset = dataset_in(path);
      if (dataset == nullptr) {
        refuse("data info: {} is a folder without a {}; allowed: files, globs, or what octavo data wrote",
               path, kDatasetFile);
      }
      for (const auto* shards : {&dataset->description.train, &dataset->description.val}) {
        for (const DatasetShard& shard : *shards) expanded.push_back((fs::path(path) / shard.name).string());
      }
    }
    return expand_inputs(expanded, "data info");
  }

  void inspect(const std::string& path) {
    const MappedFile file(path);
    const TokenFormat kind = detect_format(file, format_);
    const bool shard = kind == TokenFormat::shard16 || kind == TokenFormat::shard32;
    Described* const dataset = shard ? dataset_in(fs::path(path).parent_path()) : nullptr;
    TokenStream stream = TokenStream::open({path}, format_, bytes_tokenizer());
    if (dataset != nullptr) stream.set_vocab(dataset->description.vocab);
    const std::vector<std::int64_t> counts = stream.scan(0).counts;

    FileReport file_report;
    file_report.path = path;
    file_report.format = name_of(kind);
    file_report.bytes = static_cast<std::int64_t>(file.size());
    file_report.tokens = stream.size();
    file_report.largest_id = static_cast<std::int64_t>(counts.size()) - 1;
    file_report.distinct_ids = std::count_if(counts.begin(), counts.end(), [](auto n) { return n > 0; });
    file_report.entropy = entropy_of(counts);
    file_report.sha256 = sha256_hex(file.text());
    const std::int32_t eot = dataset != nullptr          ? dataset->description.eot
                             : kind == TokenFormat::text ? bytes_tokenizer()->eot()
                                                         : -1;
    if (eot >= 0) {
      const std::size_t id = static_cast<std::size_t>(eot);
      file_report.documents = id < counts.size() ? counts[id] : 0;
    }
    if (dataset != nullptr) file_report.split = check_shard(*dataset, file_report, counts);

    add_counts(counts_, counts);
    report_.tokens += file_report.tokens;
    report_.largest_id = std::max(report_.largest_id, file_report.largest_id);
    report_.files.push_back(std::move(file_report));
  }

  static std::string check_shard(Described& dataset, const FileReport& file,
                                 const std::vector<std::int64_t>& counts) {
    const DatasetDescription& d = dataset.description;
    const DatasetShard* const shard = d.find(fs::path(file.path).filename().string());
    if (shard == nullptr) {
      refuse("{}: not named in {}; allowed: one of its {} shards", file.path, dataset.file,
             d.train.size() + d.val.size());
    }
    if (shard->tokens != file.tokens) {
      refuse("{}: {} tokens; allowed: {}, as {} says", file.path, file.tokens, shard->tokens, dataset.file);
    }
    if (shard->sha256 != file.sha256) {
      refuse("{}: SHA-256 {}; allowed: {}, as {} says (the file has changed)", file.path, file.sha256,
             shard->sha256, dataset.file);
    }
    const bool train = shard >= d.train.data() && shard < d.train.data() + d.train.size();
    add_counts(train ? dataset.train_counts : dataset.val_counts, counts);
    ++dataset.shards_seen;
    return train ? "train" : "val";
  }

  // What dataset.json says of all shards together, where all were given.
  static void check_dataset(const Described& dataset) {
    const DatasetDescription& d = dataset.description;
    if (dataset.shards_seen != d.train.size() + d.val.size()) return;
    const double entropy = entropy_of(dataset.train_counts);
    if (d.unigram_entropy && std::abs(*d.unigram_entropy - entropy) > 1e-9) {
      refuse("{}: unigram_entropy {}; allowed: {}, that of its train shards", dataset.file,
             *d.unigram_entropy, entropy);
    }
    std::int64_t documents = 0;
    const std::size_t eot = static_cast<std::size_t>(std::max(d.eot, 0));
    for (const auto* counts : {&dataset.train_counts, &dataset.val_counts}) {
      if (d.eot >= 0 && eot < counts->size()) documents += (*counts)[eot];
    }
    if (documents != d.documents) {
      refuse("{}: documents {}; allowed: {}, the end-of-text tokens in its shards", dataset.file, d.documents,
             documents);
    }
  }

  std::string format_;
  DataReport report_;
  std::vector<std::int64_t> counts_;
  std::map<std::string, std::unique_ptr<Described>> datasets_;
};

}  // namespace

DataReport inspect_data(const std::vector<std::string>& paths, const std::string& format) {
  return Inspector(paths, format).take();
}

nlohmann::ordered_json to_json(const DataReport& report) {
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const FileReport& file : report.files) {
    files.push_back({{"path", file.path},
                     {"format", file.format},
                     {"bytes", file.bytes},
                     {"tokens", file.tokens},
                     {"largest_id", file.largest_id},
                     {"distinct_ids", file.distinct_ids},
                     {"entropy", file.entropy},
                     {"documents", json_or_null(file.documents)},
                     {"sha256", file.sha256},
                     {"split", json_or_null(file.split)}});
  }
  return {{"format_version", kFormatVersion}, {"files", files},
          {"tokens", report.tokens},          {"largest_id", report.largest_id},
          {"entropy", report.entropy},        {"dataset", json_or_null(report.dataset)}};
}

std::string to_text(const DataReport& report) {
  std::string text;
  for (const FileReport& file : report.files) {
    text += fmt::format(
        "{}\n  {}, {} bytes, {} tokens, {} different ids up to {}, entropy {:.4f} nats/token\n", file.path,
        file.format, file.bytes, file.tokens, file.distinct_ids, file.largest_id, file.entropy);
    text += file.documents ? fmt::format("  {} documents", *file.documents)
                           : std::string("  documents unknown (no end-of-text id)");
    text += fmt::format(", SHA-256 {}{}\n", file.sha256,
                        file.split ? fmt::format(", {} shard as {} says", *file.split, kDatasetFile) : "");
  }
  text += fmt::format("all: {} files, {} tokens, ids up to {}, entropy {:.4f} nats/token\n",
                      report.files.size(), report.tokens, report.largest_id, report.entropy);
  if (report.dataset) {
    const auto& d = *report.dataset;
    const std::string kind = d["tokenizer"]["kind"].get<std::string>();
    text +=
        fmt::format("dataset: {}, vocabulary {}, {} + {} tokens",
                    kind == "none" ? "ids without text"
                                   : "tokenizer " + kind + " " + d["tokenizer"]["sha256"].get<std::string>(),
                    d["vocab"].dump(), d["train"]["tokens"].dump(), d["val"]["tokens"].dump());
    if (!d["entropy_rate"].is_null()) {
      text += fmt::format(", entropy rate {:.6f} nats/token", d["entropy_rate"].get<double>());
    }
    text += "\n";
  }
  return text;
}

}  // namespace octavo
