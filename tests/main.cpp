// main.cpp - the tests' entry point, for Catch2 in version 2 (a header that this file makes whole) or 3 (a
// library).
#define CATCH_CONFIG_RUNNER
#include "catch.h"

int main(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}
