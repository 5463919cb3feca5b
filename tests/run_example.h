// run_example.h - a run's folder made by hand, for the tests of what reads one.
#pragma once

#include <cmath>
#include <filesystem>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "config.h"
#include "files.h"
#include "metrics.h"
#include "run_folder.h"

namespace octavo::testing {

/// Writes resolved.json, run.json and `steps` rows of metrics; `change` may alter each row before it is
/// written. Losses fall as 1 + 4 exp(-step / 20); every tenth step has a validation loss 0.125 above.
inline void write_example_run(const std::filesystem::path& folder, const std::string& name, int steps,
                              const std::function<void(StepRecord&)>& change = {}, RunInfo info = {},
                              const std::string& config = R"({"data": {"train": "x.txt"}})") {
  std::filesystem::create_directories(folder);
  info.name = name;
  write_json_atomically(folder / "run.json", run_json(info));
  write_json_atomically(folder / "resolved.json", dump_config(parse_config(config, "example.json")));
  MetricsLog log(folder, 0);
  for (int step = 1; step <= steps; ++step) {
    StepRecord record;
    record.step = record.updates = step;
    record.tokens = step * 1024;
    record.loss = 1 + 4 * std::exp(-step / 20.0);
    if (step % 10 == 0) record.val_loss = record.loss + 0.125;
    record.lr = 1e-3;
    record.grad_norm = 1.5;
    record.tokens_per_s = 1000;
    if (change) change(record);
    log.append(record);
  }
}

}  // namespace octavo::testing
