#include "checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <set>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>

#include "crc32.h"
#include "error.h"
#include "files.h"
#include "json_text.h"
#include "safetensors.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kOptimizerFile = "optimizer_rank0000.safetensors";
constexpr const char* kStateFile = "state.json";
constexpr std::string_view kStepPrefix = "step_";
constexpr std::string_view kUnfinishedPrefix = ".step_";

std::string step_name(std::int64_t step) {
  return fmt::format("{}{:08}", kStepPrefix, step);
}

// The step of a folder's name, or nothing for any other name than step_name() gives.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return {};
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kStepPrefix.size(), end, step);
  if (error != std::errc() || stop != end || step < 0 || step_name(step) != name) return {};
  return step;
}

// --- state.json ---

// The one list of the fields that go straight into the file and back.
template <typename State, typename Visit>
void visit_fields(State& s, Visit&& visit) {
  visit("step", s.step);
  visit("samples", s.samples);
  visit("tokens", s.tokens);
  visit("updates", s.updates);
  visit("skipped", s.skipped);
  visit("bad_in_row", s.bad_in_row);
  visit("sessions", s.sessions);
  visit("seconds", s.seconds);
  visit("peak_memory_gib", s.peak_memory_gib);
  visit("train_loss", s.train_loss);
  visit("val_loss", s.val_loss);
  visit("best_val_loss", s.best_val_loss);
  visit("seed", s.seed);
  visit("data_seed", s.data_seed);
  visit("sequence", s.sequence);
  visit("data_fingerprint", s.data_fingerprint);
  visit("tokenizer_hash", s.tokenizer_hash);
  visit("arithmetic", s.arithmetic);
}
template <typename End, typename Visit>
void visit_end(End& e, Visit&& visit) {
  visit("step", e.step);
  visit("was", e.was);
  visit("now", e.now);
}
template <typename File, typename Visit>
void visit_file(File& f, Visit&& visit) {
  visit("bytes", f.bytes);
  visit("crc32", f.crc32);
}

struct FieldWriter {
  Json& json;
  void operator()(const char* key, const std::optional<double>& value) const {
    json[key] = json_or_null(value);  // a number that is not finite becomes null in the file
  }
  template <typename T>
  void operator()(const char* key, const T& value) const {
    json[key] = value;
  }
};

struct FieldReader {
  const Json& json;
  const std::string& origin;

  const Json& at(const char* key) const {
    const auto found = json.find(key);
    if (found == json.end())
      refuse("{} in {}: found nothing; allowed: a value, as Octavo writes it", key, origin);
    return *found;
  }
  [[noreturn]] void wrong(const char* key, const char* allowed) const {
    refuse("{} in {}: found {}; allowed: {}", key, origin, json_excerpt(at(key)), allowed);
  }
  void operator()(const char* key, std::int64_t& value) const {
    if (!at(key).is_number_integer()) wrong(key, "an integer");
    value = at(key).get<std::int64_t>();
  }
  void operator()(const char* key, double& value) const {
    if (!at(key).is_number()) wrong(key, "a number");
    value = at(key).get<double>();
  }
  void operator()(const char* key, std::string& value) const {
    if (!at(key).is_string()) wrong(key, "a text");
    value = at(key).get<std::string>();
  }
  void operator()(const char* key, std::optional<double>& value) const {
    value.reset();
    if (at(key).is_null()) return;
    value.emplace();
    (*this)(key, *value);
  }
};

// CRC-32 of all that state.json says, however it is spaced: as one line, without the sum itself and without
// the version, which is held to one value anyway.
std::string sum_of_state(Json json) {
  json.erase("format_version");
  json.erase("crc32");
  return crc32_hex(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Json state_json(const CheckpointState& state) {
  Json json;
  visit_fields(state, FieldWriter{json});
  json["precision"] = {{"mode", state.mode}};
  json["bit_equality_ends"] = bit_equality_json(state.bit_equality_ends);
  json["files"] = Json::object();
  for (const auto& [name, file] : state.files) visit_file(file, FieldWriter{json["files"][name]});
  json["crc32"] = sum_of_state(json);
  return json;
}

CheckpointState parse_state(const Json& json, const std::string& origin) {
  CheckpointState state;
  const FieldReader reader{json, origin};
  visit_fields(state, reader);
  FieldReader{reader.at("precision"), origin}("mode", state.mode);
  for (const auto& [key, value] :
       {std::pair{"step", state.step}, std::pair{"samples", state.samples},
        std::pair{"updates", state.updates}, std::pair{"sessions", state.sessions}}) {
    if (value < 0) refuse("{} in {}: found {}; allowed: at least 0", key, origin, value);
  }
  const Json& ends = reader.at("bit_equality_ends");
  if (!ends.is_array()) reader.wrong("bit_equality_ends", "a list of steps");
  for (const Json& end : ends) visit_end(state.bit_equality_ends.emplace_back(), FieldReader{end, origin});
  const Json& files = reader.at("files");
  if (!files.is_object()) reader.wrong("files", "size and CRC-32 of every file");
  for (const auto& [name, file] : files.items()) visit_file(state.files[name], FieldReader{file, origin});
  for (const char* name : {kModelFile, kConfigFile, kOptimizerFile}) {
    if (!state.files.contains(name))
      refuse("files in {}: {} is missing; allowed: size and CRC-32 of every file", origin, name);
  }
  std::string sum;
  reader("crc32", sum);
  if (const std::string found = sum_of_state(json); found != sum)
    refuse("{}: found CRC-32 {}, it says {} of itself; allowed: the file as Octavo wrote it", origin, found,
           sum);
  return state;
}

CheckpointState read_state(const fs::path& folder) {
  return parse_state(read_json_object(folder / kStateFile), (folder / kStateFile).string());
}

// Throws RequestError where a file is missing or has another size than state.json says.
void check_size(const fs::path& folder, const std::string& name, const RecordedFile& recorded) {
  std::error_code error;
  const std::uintmax_t found = fs::file_size(folder / name, error);
  if (error)
    refuse("{}: {}; allowed: a file of {} bytes", (folder / name).string(), error.message(), recorded.bytes);
  if (static_cast<std::uintmax_t>(recorded.bytes) != found)
    refuse("{}: found {} bytes; allowed: {}, as {} says", (folder / name).string(), found, recorded.bytes,
           kStateFile);
}

// The same, and where its bytes are others.
void check_content(const fs::path& folder, const std::string& name, const RecordedFile& recorded) {
  check_size(folder, name, recorded);
  if (const std::string found = crc32_file(folder / name); found != recorded.crc32)
    refuse(
        "{}: found CRC-32 {}; allowed: {}, as {} says (the file is damaged: restore it, or remove its "
        "folder)",
        (folder / name).string(), found, recorded.crc32, kStateFile);
}

// --- optimizer file ---

constexpr const char* kMoments[] = {"m", "v"};  // first and second

std::string moment_name(const Parameter& p, const char* moment) {
  return p.name + "." + moment;
}

std::vector<TensorSpec> optimizer_specs(const ParameterTable& table) {
  std::vector<TensorSpec> specs;
  for (const char* moment : kMoments)
    for (const Parameter& p : table.parameters)
      specs.push_back({moment_name(p, moment), "F32", p.saved_shape()});
  return specs;
}

std::map<std::string, std::string> optimizer_metadata(std::int64_t updates) {
  return {{"format_version", std::to_string(kFormatVersion)},
          {"rank", "0"},
          {"ranks", "1"},
          {"updates", std::to_string(updates)}};
}

void write_moments(const fs::path& file, const CheckpointContent& content) {
  SafetensorsWriter writer(file, optimizer_specs(content.table), optimizer_metadata(content.state.updates));
  for (const float* arena : {content.moment1, content.moment2}) {
    for (const Parameter& p : content.table.parameters)
      writer.write(arena + p.offset, static_cast<std::size_t>(p.saved_rows * p.cols) * sizeof(float));
  }
  writer.finish();
}

// --- folders ---

void check_space(const fs::path& checkpoints, const std::string& name, std::uint64_t needed) {
  std::error_code error;
  const fs::space_info space = fs::space(checkpoints, error);
  if (error || space.available >= needed) return;  // a file system that cannot tell fails while it is written
  constexpr double kMiB = 1024.0 * 1024.0;
  fail(
      "cannot write {}: it needs {:.1f} MiB, the file system has {:.1f} MiB free; nothing was written; free "
      "space and "
      "go on with --resume",
      (checkpoints / name).string(), static_cast<double>(needed) / kMiB,
      static_cast<double>(space.available) / kMiB);
}

// Puts the finished folder into its place. A checkpoint of the same step that stands there gives way in one
// step where the file system can exchange two names, and is left in the unfinished folder's place, to be
// removed.
void publish(const fs::path& unfinished, const fs::path& place) {
  if (::rename(unfinished.c_str(), place.c_str()) == 0) return;
  int error = errno;
  if (error == ENOTEMPTY || error == EEXIST || error == ENOTDIR) {
    if (::renameat2(AT_FDCWD, unfinished.c_str(), AT_FDCWD, place.c_str(), RENAME_EXCHANGE) == 0) return;
    // Without exchange the old one has to go first.
    std::error_code removed;
    fs::remove_all(place, removed);
    if (!removed && ::rename(unfinished.c_str(), place.c_str()) == 0) return;
    error = removed ? removed.value() : errno;
  }
  fail("cannot write {}: {}", place.string(), std::strerror(error));
}

void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) fail("cannot remove {}: {}", folder.string(), error.message());
}

// Writes all files of a checkpoint into `folder`, state.json last.
void write_files(const fs::path& folder, const CheckpointContent& content) {
  write_model(folder, content.table, content.shape, content.details, content.masters);
  write_moments(folder / kOptimizerFile, content);
  if (!content.fp8.slots.empty()) write_fp8_file(folder / kFp8File, content.fp8);
  if (content.tokenizer != nullptr) content.tokenizer->save(folder.string());
  CheckpointState state = content.state;
  state.files.clear();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    state.files[entry.path().filename().string()] = {.bytes = static_cast<std::int64_t>(entry.file_size()),
                                                     .crc32 = crc32_file(entry.path())};
  }
  write_json_atomically(folder / kStateFile, state_json(state));
}

}  // namespace

Json bit_equality_json(const std::vector<BitEqualityEnd>& ends) {
  Json list = Json::array();
  for (const BitEqualityEnd& end : ends) visit_end(end, FieldWriter{list.emplace_back()});
  return list;
}

void check_resumable(const CheckpointState& saved, const CheckpointState& now, const std::string& origin) {
  std::string differences;
  const auto compare = [&](const char* what, const auto& before, const auto& after) {
    if (before == after) return;
    differences += fmt::format("{}{} was {}, now {}", differences.empty() ? "" : "; ", what, before, after);
  };
  compare("train.seed", saved.seed, now.seed);
  compare("data.seed", saved.data_seed, now.data_seed);
  compare("train.sequence", saved.sequence, now.sequence);
  compare("the data's fingerprint", saved.data_fingerprint, now.data_fingerprint);
  if (!saved.tokenizer_hash.empty() && !now.tokenizer_hash.empty())
    compare("the tokenizer's hash", saved.tokenizer_hash, now.tokenizer_hash);
  if (differences.empty()) return;
  refuse(
      "cannot resume from {}: {}; allowed: the same as before; to train on from these weights start a new "
      "run with "
      "model.init_from = \"{}\"",
      origin, differences, origin);
}

fs::path write_checkpoint(const fs::path& checkpoints, const CheckpointContent& content) {
  std::error_code error;
  fs::create_directories(checkpoints, error);
  if (error) fail("cannot create {}: {}", checkpoints.string(), error.message());
  remove_unfinished_checkpoints(checkpoints);

  const std::string name = step_name(content.state.step);
  check_space(checkpoints, name,
              checkpoint_bytes(content.table, content.tokenizer, fp8_file_size(content.fp8)));
  const fs::path unfinished = checkpoints / ("." + name + ".tmp" + std::to_string(::getpid()));
  const fs::path place = checkpoints / name;
  fs::create_directory(unfinished, error);
  if (error) fail("cannot create {}: {}", unfinished.string(), error.message());
  try {
    write_files(unfinished, content);
    sync_folder(unfinished);
    publish(unfinished, place);
  } catch (const fs::filesystem_error& e) {
    fs::remove_all(unfinished, error);
    fail("cannot write {}: {}", place.string(), e.code().message());
  } catch (
      const RequestError& e) {  // a file just written that cannot be read for its sum: no fault of a request
    fs::remove_all(unfinished, error);
    fail("{}", e.what());
  } catch (...) {
    fs::remove_all(unfinished, error);
    throw;
  }
  sync_folder(checkpoints);
  remove_folder(
      unfinished);  // there only when an older checkpoint of this step was exchanged for the new one
  return place;
}

std::uint64_t checkpoint_bytes(const ParameterTable& table, const Tokenizer* tokenizer, std::uint64_t fp8) {
  constexpr std::uint64_t kSmallFiles = 64 * 1024;  // config.json, state.json, and the folder itself
  constexpr std::uint64_t kPerToken = 64;  // of a tokenizer.json: an entry in its vocabulary, one merge
  std::uint64_t bytes = kSmallFiles + fp8 + model_file_size(table) +
                        SafetensorsWriter::file_size(optimizer_specs(table), optimizer_metadata(0));
  if (tokenizer != nullptr) bytes += kPerToken * static_cast<std::uint64_t>(tokenizer->vocab());
  return bytes;
}

std::vector<Checkpoint> list_checkpoints(const fs::path& checkpoints, std::vector<std::string>* skipped) {
  std::vector<Checkpoint> complete;
  std::error_code error;
  for (fs::directory_iterator at(checkpoints, error), end; !error && at != end; at.increment(error)) {
    const std::optional<std::int64_t> step = step_of(at->path().filename().string());
    std::error_code ignored;
    if (!step || !at->is_directory(ignored)) continue;
    try {
      Checkpoint found{at->path(), read_state(at->path())};
      for (const auto& [name, file] : found.state.files) check_size(found.folder, name, file);
      if (found.state.step != *step)
        refuse("step in {}: found {}; allowed: {}, as its folder is named",
               (at->path() / kStateFile).string(), found.state.step, *step);
      complete.push_back(std::move(found));
    } catch (const RequestError& e) {
      if (skipped != nullptr)
        skipped->push_back(fmt::format("{} is not complete: {}", at->path().string(), e.what()));
    }
  }
  // A folder that cannot be read must not pass for one without checkpoints: a run would start afresh.
  if (error && error != std::errc::no_such_file_or_directory)
    refuse("cannot read {}: {}; allowed: a readable folder", checkpoints.string(), error.message());
  std::sort(complete.begin(), complete.end(),
            [](const Checkpoint& a, const Checkpoint& b) { return a.state.step < b.state.step; });
  if (skipped != nullptr) std::sort(skipped->begin(), skipped->end());
  return complete;
}

std::optional<Checkpoint> newest_checkpoint(const fs::path& checkpoints, std::vector<std::string>* skipped) {
  std::vector<Checkpoint> complete = list_checkpoints(checkpoints, skipped);
  if (complete.empty()) return {};
  return std::move(complete.back());
}

std::optional<Checkpoint> best_checkpoint(const fs::path& checkpoints) {
  std::optional<Checkpoint> best;
  for (Checkpoint& c : list_checkpoints(checkpoints)) {
    if (c.state.val_loss && (!best || *c.state.val_loss < *best->state.val_loss)) best = std::move(c);
  }
  return best;
}

void prune_checkpoints(const fs::path& checkpoints, std::int64_t keep, bool keep_best) {
  const std::vector<Checkpoint> complete = list_checkpoints(checkpoints);
  const std::size_t kept =
      std::min(complete.size(), static_cast<std::size_t>(std::max<std::int64_t>(keep, 1)));
  const std::optional<Checkpoint> best = keep_best ? best_checkpoint(checkpoints) : std::nullopt;
  for (std::size_t i = 0; i + kept < complete.size(); ++i) {
    const fs::path& folder = complete[i].folder;
    if (best && best->folder == folder) continue;
    // Renamed first: a removal that is cut short must not leave half a checkpoint under its name.
    const fs::path hidden = checkpoints / ("." + folder.filename().string() + ".old");
    remove_folder(hidden);
    std::error_code error;
    fs::rename(folder, hidden, error);
    if (error) fail("cannot remove {}: {}", folder.string(), error.message());
    remove_folder(hidden);
  }
}

void remove_unfinished_checkpoints(const fs::path& checkpoints) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(checkpoints, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(kUnfinishedPrefix)) found.push_back(at->path());
  }
  for (const fs::path& folder : found) remove_folder(folder);
}

void read_moments(const Checkpoint& checkpoint, const ParameterTable& table, float* moment1, float* moment2) {
  check_content(checkpoint.folder, kOptimizerFile, checkpoint.state.files.at(kOptimizerFile));
  const SafetensorsFile file(checkpoint.folder / kOptimizerFile);
  const std::string origin = file.path().string();
  const auto check_metadata = [&](const char* key, const std::string& allowed) {
    const auto found = file.metadata().find(key);
    const std::string value = found == file.metadata().end() ? "nothing" : found->second;
    if (value != allowed)
      refuse("{} in the metadata of {}: found {}; allowed: {}", key, origin, value, allowed);
  };
  for (const auto& [key, value] : optimizer_metadata(checkpoint.state.updates))
    check_metadata(key.c_str(), value);

  std::string faults;
  const auto fault = [&](const std::string& text) { faults += (faults.empty() ? "" : "; ") + text; };
  std::set<std::string> known;
  for (const TensorSpec& spec : optimizer_specs(table)) {
    known.insert(spec.name);
    const SavedTensor* t = file.find(spec.name);
    if (t == nullptr) {
      fault(fmt::format("{} is missing", spec.name));
    } else if (t->shape != spec.shape || t->dtype != spec.dtype) {
      fault(fmt::format("{} is {} {} (allowed: {} {})", spec.name, Json(t->shape).dump(), t->dtype,
                        Json(spec.shape).dump(), spec.dtype));
    }
  }
  for (const SavedTensor& t : file.tensors()) {
    if (!known.contains(t.name)) fault(fmt::format("{} is not known", json_excerpt(t.name)));
  }
  if (!faults.empty()) refuse("{}: does not hold the moments of this model; {}", origin, faults);

  float* const arenas[] = {moment1, moment2};
  for (std::size_t k = 0; k < 2; ++k) {
    std::fill(arenas[k], arenas[k] + table.arena_size, 0.0f);
    for (const Parameter& p : table.parameters)
      file.read_f32(*file.find(moment_name(p, kMoments[k])), 0, p.saved_rows * p.cols, arenas[k] + p.offset);
  }
}

ModelFolder open_model(const std::string& path, CheckpointChoice choice) {
  fs::path folder = path;
  if (!is_folder(folder))
    refuse("{}: {}; allowed: a run's folder, a checkpoint, or a Hugging Face GPT-2 folder", path,
           path_exists(folder) ? "found a file" : "no such folder");
  if (!path_exists(folder / kConfigFile)) {
    const fs::path checkpoints =
        folder.filename() == kCheckpoints ||
                (!folder.has_filename() && folder.parent_path().filename() == kCheckpoints)
            ? folder
            : folder / kCheckpoints;
    std::vector<std::string> skipped;
    const std::optional<Checkpoint> found = choice == CheckpointChoice::best
                                                ? best_checkpoint(checkpoints)
                                                : newest_checkpoint(checkpoints, &skipped);
    if (!found) {
      if (choice == CheckpointChoice::best && newest_checkpoint(checkpoints))
        refuse(
            "{}: none of its checkpoints has a validation loss; allowed: its newest checkpoint, without "
            "asking for "
            "the best",
            path);
      if (!skipped.empty())
        refuse("{}: found no complete checkpoint: {}; allowed: a folder with one", path, skipped.back());
      refuse(
          "{}: found no config.json and no complete checkpoint; allowed: a run's folder, a checkpoint, or a "
          "Hugging "
          "Face GPT-2 folder",
          path);
    }
    folder = found->folder;
  }

  ModelFolder model;
  model.folder = folder;
  if (path_exists(folder / kStateFile)) {
    model.state = read_state(folder);
    // The moments are not needed to open a model: the folder may have been copied without them.
    for (const auto& [name, file] : model.state->files)
      if (name != kOptimizerFile) check_content(folder, name, file);
  }
  model.shape = read_huggingface_config(folder, &model.details);
  return model;
}

}  // namespace octavo
