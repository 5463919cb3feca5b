// commands.h - the commands of the program: each registers its arguments with CLI11, and when it is the one
// asked for sets `action` to what does the work and returns the exit status.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace octavo {

using Action = std::function<int()>;

void register_train(CLI::App& app, Action& action);
void register_sweep(CLI::App& app, Action& action);
void register_eval(CLI::App& app, Action& action);
void register_generate(CLI::App& app, Action& action);
void register_export(CLI::App& app, Action& action);
void register_info(CLI::App& app, Action& action);
void register_plot(CLI::App& app, Action& action);
void register_diff(CLI::App& app, Action& action);
void register_data(CLI::App& app, Action& action);  // pack | synth | info
void register_config(CLI::App& app, Action& action);

}  // namespace octavo
