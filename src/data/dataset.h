// dataset.h - what a run trains on: the train and validation streams, their tokenizer and their identity.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config.h"
#include "data/tokenizer.h"
#include "data/tokens.h"

namespace octavo {

struct Dataset {
  TokenStream train;
  TokenStream val;             // empty() where neither data.val nor data.val_fraction is given
  TokenizerPtr tokenizer;      // null: ids without a known text (foreign shards, synthetic corpora)
  std::string tokenizer_hash;  // empty: not known
  std::int64_t vocab = 0;      // model.vocab if given, else the tokenizer's or dataset.json's
  std::int32_t eot = -1;       // -1: not known
  std::string fingerprint;     // SHA-256 of what is trained on; the folder and the files' names do not count
  std::vector<std::string> train_files, val_files;
  std::optional<double> entropy_rate;     // nats per token: a floor for the loss, where the source is known
  std::optional<double> unigram_entropy;  // nats per token of the train stream, where it is small or recorded
  std::vector<std::string> notes;         // remarks for the log, one line each
  std::string absent;  // an input that does not exist: the streams are empty, the rest is assumed
};

/// The model's side of the question which tokenizer it is.
struct ModelTokens {
  std::int64_t vocab = 0;  // model.vocab, or of the model that training starts from; 0: "auto"
  TokenizerPtr tokenizer;  // the one stored with that model; null: none
  std::string origin;      // names that model in messages
};

/// Opens the data of a run: expands globs, resolves the tokenizer, checks headers and ids (wholly up to
/// 64 MiB, above that an even sample; read() checks always), takes the last val_fraction of the stream out.
/// tokenizer "auto": the model's own, else what dataset.json beside the shards names, else bytes for text;
/// not known for shards without dataset.json. Throws RequestError: any fault of a file, tokenizers that
/// differ (among the files, from `model`, from data.tokenizer), a vocabulary that is not known or too small.
Dataset open_dataset(const DataConfig& config, const ModelTokens& model = {});

/// The data of a run that is only planned: opened where all of it exists; else vocabulary and tokenizer from
/// the model or from data.tokenizer, or assumed, as `notes` says, and no tokens. Throws as open_dataset()
/// does for data that is there.
Dataset plan_dataset(const DataConfig& config, const ModelTokens& model = {});

}  // namespace octavo
