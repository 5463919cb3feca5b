#include "run_job.h"

#include <cstring>
#include <new>
#include <utility>

#include <nlohmann/json.hpp>

#include "child_process.h"
#include "error.h"
#include "json_text.h"

namespace octavo {
namespace {

using Json = nlohmann::ordered_json;
using End = RunReport::End;

std::string job_text(const RunRequest& request) {
  return Json{{"config", dump_config(request.config)},
              {"overwrite", request.use == FolderUse::overwrite},
              {"resume", request.use == FolderUse::resume},
              {"command", request.command},
              {"label", request.label}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

RunRequest read_job(const std::string& text) {
  const Json job = parse_foreign_json(text, "--job");
  RunRequest request;
  request.config = parse_config(job.at("config").dump(), "--job");
  request.use = job.at("overwrite") ? FolderUse::overwrite
                : job.at("resume")  ? FolderUse::resume
                                    : FolderUse::fresh;
  request.command = job.at("command");
  request.label = job.at("label");
  return request;
}

std::string report_text(const RunReport& report) {
  return Json{{"end", static_cast<int>(report.end)},
              {"message", report.message},
              {"peak_memory_gib", report.peak_memory_gib},
              {"told", report.told}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// What can be said of a child that said nothing.
RunReport unreported(const ChildEnd& end, const StopSignal& stop) {
  // Asked to stop before it could catch the signal, or twice.
  for (const int signal : kStopSignals)
    if (end.signal == signal || (end.signal == 0 && end.status == 128 + signal) ||
        (stop.received() == signal && end.status == exit_status_of(signal)))
      return {.end = End::stopped,
              .status = exit_status_of(signal),
              .message = fmt::format("ended at once by {}", name_of_signal(signal))};
  if (end.signal == 0)
    return {.end = End::failed,
            .status = end.status,
            .message = fmt::format("the process ended with status {}", end.status)};
  return {.end = End::failed,
          .status = end.status,
          .message = fmt::format("the process was ended by signal {} ({}){}", end.signal,
                                 strsignal(end.signal), end.signal == SIGKILL ? "; was memory short?" : "")};
}

}  // namespace

RunReport run_in_child(const RunRequest& request, const StopSignal& stop) {
  const ChildEnd end = run_child({"train", request.config.output.dir, "--job"}, job_text(request), stop);
  const Json said = Json::parse(end.said, nullptr, /*allow_exceptions=*/false);
  if (!said.is_object()) return unreported(end, stop);
  return {.end = static_cast<End>(said.at("end").get<int>()),
          .status = end.status,
          .message = said.at("message"),
          .peak_memory_gib = said.at("peak_memory_gib"),
          .told = said.at("told")};
}

int train_for_parent(int socket) {
  const StopSignal stop;
  Console console;
  std::string label;
  RunReport report;
  // A run that fails is a result of the sweep, with its reason in train.log.
  const auto failed = [&](const std::string& why, int status) {
    console.warn(fmt::format("{} failed: {}", label, why));
    report = {.end = End::failed, .status = status, .message = why, .told = true};
  };
  try {
    RunRequest request = read_job(read_from_parent(socket));
    label = request.label;
    PreparedRun run = prepare_run(std::move(request));
    const RunOutcome outcome = execute_run(run, console, stop);
    report = {.end = outcome.status == 0 ? End::finished : End::stopped,
              .status = outcome.status,
              .message = outcome.message,
              .peak_memory_gib = outcome.peak_memory_gib};
  } catch (const UnsupportedError& e) {
    report = {.end = End::unsupported, .status = 2, .message = e.reason()};
  } catch (const RequestError& e) {
    failed(e.what(), 2);
  } catch (const RunError& e) {
    failed(e.what(), 1);
  } catch (const std::bad_alloc&) {
    failed("out of memory", 1);
  } catch (const std::exception& e) {
    failed(std::string("internal error: ") + e.what(), 1);
  }
  console.finish();
  write_to_parent(socket, report_text(report));
  return report.status;
}

}  // namespace octavo
