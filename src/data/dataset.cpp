// dataset.cpp - see dataset.h.

#include "data/dataset.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "data/dataset_json.h"
#include "data/input_files.h"
#include "error.h"
#include "files.h"
#include "sha256.h"

namespace octavo {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kWholeCheckBytes = 64 << 20;  // up to here ids and fingerprint cover every byte
constexpr std::size_t kSampleBlock = 64 << 10;
constexpr std::int64_t kGpt2Vocab = 50257;

// What the files say about themselves before any token is read.
struct Survey {
  std::vector<TokenFormat> formats;                        // of train_files, then val_files
  std::map<std::string, DatasetDescription> descriptions;  // by folder
  std::string described;                                   // a file with a dataset.json, "" if none
  std::string undescribed;                                 // a shard without one, "" if none
  std::string text;                                        // a text file, "" if none
  const DatasetDescription* description = nullptr;         // of `described`
};

std::string folder_of(const std::string& file) {
  const fs::path parent = fs::path(file).parent_path();
  return parent.empty() ? "." : parent.string();
}

// All shards that carry a description must agree on the tokenizer.
void survey_shard(Survey& survey, const MappedFile& file, std::int64_t tokens) {
  const std::string& path = file.path();
  const std::string folder = folder_of(path);
  auto known = survey.descriptions.find(folder);
  if (known == survey.descriptions.end()) {
    auto read = read_dataset_json((fs::path(folder) / kDatasetFile).string());
    if (read) known = survey.descriptions.emplace(folder, *std::move(read)).first;
  }
  if (known == survey.descriptions.end()) {
    survey.undescribed = path;
    return;
  }
  const DatasetDescription& d = known->second;
  const DatasetShard* const shard = d.find(fs::path(path).filename().string());
  if (shard == nullptr) {
    refuse("{}: not named in the {} beside it; allowed: one of its {} shards", path, kDatasetFile,
           d.train.size() + d.val.size());
  }
  if (shard->tokens != tokens) {
    refuse("{}: {} tokens; allowed: {}, as the {} beside it says", path, tokens, shard->tokens, kDatasetFile);
  }
  if (survey.description == nullptr) {
    survey.description = &d;
    survey.described = path;
  } else if (survey.description->tokenizer_hash != d.tokenizer_hash || survey.description->vocab != d.vocab) {
    refuse("{}: tokenizer {} ({} ids), but {} has {} ({} ids); allowed: one tokenizer for all files", path,
           d.tokenizer_hash, d.vocab, survey.described, survey.description->tokenizer_hash,
           survey.description->vocab);
  }
}

Survey survey_files(const std::vector<std::string>& files, const std::string& format) {
  Survey survey;
  for (const std::string& path : files) {
    const MappedFile file(path);
    const TokenFormat kind = detect_format(file, format);
    survey.formats.push_back(kind);
    if (kind == TokenFormat::text) {
      survey.text = path;
    } else if (kind == TokenFormat::shard16 || kind == TokenFormat::shard32) {
      const std::size_t width = kind == TokenFormat::shard16 ? 2 : 4;
      survey_shard(survey, file, static_cast<std::int64_t>((file.size() - kShardHeaderBytes) / width));
    } else {
      survey.undescribed = path;
    }
  }
  return survey;
}

TokenizerPtr described_tokenizer(const Survey& survey) {
  const DatasetDescription& d = *survey.description;
  if (d.tokenizer_kind == "none") return nullptr;
  if (d.tokenizer_kind == "bytes") return bytes_tokenizer();
  const std::string folder = folder_of(survey.described);
  TokenizerPtr tokenizer = find_tokenizer(folder);
  if (!tokenizer) {
    refuse(
        "{}: its {} names a BPE tokenizer, but no tokenizer.json lies beside it; allowed: put it there, or "
        "name it in data.tokenizer",
        survey.described, kDatasetFile);
  }
  return tokenizer;
}

// The one tokenizer of files, configuration and model; null where ids have no known text.
TokenizerPtr resolve_tokenizer(const DataConfig& config, const ModelTokens& model, const Survey& survey) {
  TokenizerPtr tokenizer;
  std::string from = config.tokenizer;
  if (config.tokenizer != "auto") {
    tokenizer = load_tokenizer(config.tokenizer);
    if (model.tokenizer && model.tokenizer->hash() != tokenizer->hash()) {
      refuse("data.tokenizer: {} has hash {}, but {} was made with {}; allowed: \"auto\", the model's own",
             config.tokenizer, tokenizer->hash(), model.origin, model.tokenizer->hash());
    }
  } else if (model.tokenizer) {
    tokenizer = model.tokenizer;
    from = model.origin;
  } else if (survey.description != nullptr) {
    tokenizer = described_tokenizer(survey);
    from = "tokenizer.json beside it";
  } else if (!survey.text.empty() && survey.undescribed.empty()) {
    if (!model.origin.empty()) {
      refuse(
          "{}: text for {}, whose tokenizer is not known; allowed: data.tokenizer = \"bytes\" or a "
          "tokenizer.json",
          survey.text, model.origin);
    }
    tokenizer = bytes_tokenizer();
  }
  if (!survey.text.empty() && !tokenizer) {
    refuse(
        "{}: text beside {}, whose tokenizer is not known; allowed: data.tokenizer = \"bytes\" or a "
        "tokenizer.json, or text or shards alone",
        survey.text, survey.described.empty() ? survey.undescribed : survey.described);
  }
  if (survey.description != nullptr && tokenizer && survey.description->tokenizer_hash != tokenizer->hash()) {
    const std::string& found = survey.description->tokenizer_hash;
    refuse("{}: its {} names tokenizer {}, but {} is {}; allowed: data and model of one tokenizer",
           survey.described, kDatasetFile, found.empty() ? "none" : found, from, tokenizer->hash());
  }
  return tokenizer;
}

std::int64_t resolve_vocab(const ModelTokens& model, const Survey& survey, const TokenizerPtr& tokenizer) {
  const std::int64_t known = tokenizer                       ? tokenizer->vocab()
                             : survey.description != nullptr ? survey.description->vocab
                                                             : 0;
  if (model.vocab == 0 && known == 0) {
    refuse(
        "model.vocab: \"auto\", but {} has no {} beside it; allowed: a number, or data.tokenizer = \"bytes\" "
        "or a tokenizer.json",
        survey.undescribed, kDatasetFile);
  }
  if (model.vocab != 0 && model.vocab < known) {
    refuse("model.vocab: {}, but the data's tokenizer has {} ids; allowed: \"auto\" or at least {}",
           model.vocab, known, known);
  }
  return model.vocab != 0 ? model.vocab : known;
}

void add_content(Sha256& hash, const MappedFile& file, std::size_t stride) {
  const std::size_t blocks = (file.size() + kSampleBlock - 1) / kSampleBlock;
  for (std::size_t block = 0; block < blocks; ++block) {
    if (block % stride != 0 && block != blocks - 1) continue;
    const std::size_t begin = block * kSampleBlock;
    hash.update(file.data() + begin, std::min(kSampleBlock, file.size() - begin));
  }
}

// Formats, sizes and contents in order, with the tokenizer and the split; no names and no folders. Content is
// hashed whole up to 64 MiB in all, above that as every n-th block and each file's first and last.
std::string fingerprint(const Dataset& data, const Survey& survey, double val_fraction) {
  std::vector<MappedFile> files;
  std::size_t bytes = 0;
  for (const auto* list : {&data.train_files, &data.val_files}) {
    for (const std::string& path : *list) bytes += files.emplace_back(path).size();
  }
  const std::size_t stride = std::max<std::size_t>(1, (bytes + kWholeCheckBytes - 1) / kWholeCheckBytes);
  Sha256 hash;
  hash.update(fmt::format("octavo data 1;{};{};{};{};", data.tokenizer_hash, val_fraction,
                          data.train_files.size(), data.val_files.size()));
  for (std::size_t i = 0; i < files.size(); ++i) {
    hash.update(fmt::format("{};{};", name_of(survey.formats[i]), files[i].size()));
    add_content(hash, files[i], stride);
  }
  return hash.hex();
}

void split_validation(Dataset& data, double val_fraction) {
  const std::int64_t tokens = data.train.size();
  const std::int64_t val = static_cast<std::int64_t>(std::floor(static_cast<double>(tokens) * val_fraction));
  if (val < 2 || tokens - val < 2) {
    refuse(
        "data.val_fraction: {} of {} tokens leaves {} for training and {} for validation; allowed: at least "
        "2 "
        "for each",
        val_fraction, tokens, tokens - val, val);
  }
  data.val = data.train.slice(tokens - val, val);
  data.train = data.train.slice(0, tokens - val);
}

// Entropies that were recorded when the shards were made hold if these are exactly that training set.
void take_recorded_entropies(Dataset& data, const Survey& survey) {
  if (survey.description == nullptr || !survey.undescribed.empty() || !survey.text.empty()) return;
  if (survey.descriptions.size() == 1) {
    data.entropy_rate = survey.description->entropy_rate;
    std::int64_t tokens = 0;
    for (const DatasetShard& shard : survey.description->train) tokens += shard.tokens;
    if (tokens == data.train.size()) data.unigram_entropy = survey.description->unigram_entropy;
  }
}

void add_notes(Dataset& data, const Survey& survey, bool complete) {
  std::vector<fs::path> trained;
  std::error_code ignored;
  for (const std::string& path : data.train_files) trained.push_back(fs::weakly_canonical(path, ignored));
  std::sort(trained.begin(), trained.end());
  for (const std::string& path : data.val_files) {
    if (std::binary_search(trained.begin(), trained.end(), fs::weakly_canonical(path, ignored))) {
      data.notes.push_back(fmt::format("data: {} is in data.train and in data.val", path));
    }
  }
  if (!data.tokenizer && !survey.undescribed.empty()) {
    data.notes.push_back(
        fmt::format("data: {} has no {} beside it and data.tokenizer is \"auto\": ids only, no "
                    "text; model.vocab = {}",
                    survey.undescribed, kDatasetFile, data.vocab));
  }
  if (!complete) {
    data.notes.push_back(
        fmt::format("data: over {} MiB, so ids were checked by sample; every batch is checked again",
                    kWholeCheckBytes >> 20));
  }
}

}  // namespace

Dataset open_dataset(const DataConfig& config, const ModelTokens& model) {
  Dataset data;
  if (!config.val.empty() && config.val_fraction > 0) {
    refuse("data.val_fraction: {} beside data.val; allowed: one of the two", config.val_fraction);
  }
  data.train_files = expand_inputs(config.train, "data.train");
  if (!config.val.empty()) data.val_files = expand_inputs(config.val, "data.val");
  std::vector<std::string> all = data.train_files;
  all.insert(all.end(), data.val_files.begin(), data.val_files.end());
  const Survey survey = survey_files(all, config.format);

  data.tokenizer = resolve_tokenizer(config, model, survey);
  if (data.tokenizer) data.tokenizer_hash = data.tokenizer->hash();
  data.vocab = resolve_vocab(model, survey, data.tokenizer);
  data.eot = data.tokenizer                  ? data.tokenizer->eot()
             : survey.description != nullptr ? survey.description->eot
                                             : -1;

  data.train = TokenStream::open(data.train_files, config.format, data.tokenizer);
  data.train.set_vocab(data.vocab);
  if (!data.val_files.empty()) {
    data.val = TokenStream::open(data.val_files, config.format, data.tokenizer);
    data.val.set_vocab(data.vocab);
  }
  if (config.val_fraction > 0) split_validation(data, config.val_fraction);

  const TokenStream::Histogram histogram = data.train.scan(kWholeCheckBytes);
  bool complete = histogram.complete;
  if (!data.val.empty()) complete = data.val.scan(kWholeCheckBytes).complete && complete;
  take_recorded_entropies(data, survey);
  if (histogram.complete) data.unigram_entropy = entropy_of(histogram.counts);
  data.fingerprint = fingerprint(data, survey, config.val_fraction);
  add_notes(data, survey, complete);
  return data;
}

Dataset plan_dataset(const DataConfig& config, const ModelTokens& model) {
  Dataset data;
  data.absent = missing_input(config.train, "data.train");
  if (data.absent.empty()) data.absent = missing_input(config.val, "data.val");
  if (data.absent.empty()) return open_dataset(config, model);

  const bool named = config.tokenizer != "auto";
  std::string from = "data.tokenizer";
  if (named && (config.tokenizer == "bytes" || path_exists(config.tokenizer))) {
    data.tokenizer = load_tokenizer(config.tokenizer);
  } else if (!named && model.tokenizer) {
    data.tokenizer = model.tokenizer;
    from = model.origin;
  } else if (!named && config.format == "text") {
    data.tokenizer = bytes_tokenizer();
    from = "data.format text";
  }
  if (data.tokenizer) data.tokenizer_hash = data.tokenizer->hash();
  if (model.vocab > 0) {
    data.vocab = model.vocab;
    from = model.origin.empty() ? "model.vocab" : model.origin;
  } else if (data.tokenizer) {
    data.vocab = data.tokenizer->vocab();
  } else {
    data.vocab = kGpt2Vocab;
    from = "GPT-2's";
  }
  data.notes.push_back(
      fmt::format("{} does not exist: a vocabulary of {} is assumed ({})", data.absent, data.vocab, from));
  return data;
}

}  // namespace octavo
