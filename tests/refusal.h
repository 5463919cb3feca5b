// refusal.h - the message of a refused request, for tests that hold errors to their text.
#pragma once

#include <string>

#include "error.h"

namespace octavo::testing {

/// Runs `f` and returns the message of its RequestError; a text no test expects when there is none, or when
/// the message is not one line.
template <typename F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const RequestError& error) {
    const std::string message = error.what();
    return message.find('\n') == std::string::npos ? message : "MORE THAN ONE LINE: " + message;
  }
  return "NOT REFUSED";
}

}  // namespace octavo::testing
