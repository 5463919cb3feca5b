# packages.sh - which of the distribution's packages the build needs, and how they are installed. Sourced by quickstart.sh
# and test.sh. The names are those of Debian 12 and Ubuntu 24.04.
# shellcheck shell=bash

# One package a line: how its presence is seen (a program on PATH, or "-": ask dpkg), its name, what it is for.
packages_needed() {
  cat <<'LIST'
c++    g++                 the C++ compiler
cmake  cmake               configures the build
ninja  ninja-build         runs the build
-      libcli11-dev        command line
-      nlohmann-json3-dev  JSON
-      libspdlog-dev       logs
-      libdnnl-dev         oneDNN: matrix products on the CPU
-      libpcre2-dev        regular expressions of the BPE tokenizer
-      catch2              tests
gnuplot gnuplot-nox        pictures of the curves
LIST
}

is_installed() { # PROGRAM PACKAGE
  if [ "$1" != - ] && command -v "$1" >/dev/null; then return 0; fi
  command -v dpkg-query >/dev/null &&
    dpkg-query -W -f='${db:Status-Status}' "$2" 2>/dev/null | grep -qx installed
}

# install_packages yes|no - installs what is missing, saying what and why; with "no" only says it.
install_packages() {
  local program package purpose missing=()
  while read -r program package purpose; do
    is_installed "$program" "$package" && continue
    missing+=("$package")
    printf 'missing: %-19s %s\n' "$package" "$purpose"
  done < <(packages_needed)
  if [ "${#missing[@]}" -eq 0 ]; then
    echo "All packages that the build needs are here."
    return 0
  fi

  if ! command -v apt-get >/dev/null; then
    echo "No apt-get here: install the counterparts of these packages by hand. Libraries that stay missing are fetched and built."
    return 0
  fi
  if [ "$1" = no ]; then
    echo "Not installed (--no-install): the build goes on with what is there; libraries that are missing are fetched and built."
    return 0
  fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    # Without a password, or with one where somebody can type it.
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=(sudo)
    else
      echo "No rights to install. Ask an administrator for: apt-get install ${missing[*]}   (or run again with --no-install)"
      return 1
    fi
  fi
  echo "Installing: ${missing[*]}"
  # A package list that is out of date asks for files that the servers no longer have.
  "${as_root[@]}" apt-get update -qq || echo "apt-get update failed; trying with the package lists that are there."
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# configure_and_build PRESET TARGET [CMAKE OPTIONS...] - with Ninja where there is one, on all cores.
configure_and_build() {
  local preset=$1 target=$2 generator=() program compiler=${CXX:-c++}
  shift 2
  for program in "${compiler%% *}" cmake; do
    command -v "$program" >/dev/null || { echo "${0##*/}: found no $program; it cannot go on without" >&2 && return 1; }
  done
  if ! command -v ninja >/dev/null && ! command -v make >/dev/null; then
    echo "${0##*/}: found neither ninja nor make; it cannot go on without one of them" >&2
    return 1
  fi
  if [ ! -f "build/$preset/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake --preset "$preset" "${generator[@]}" "$@"
  cmake --build --preset "$preset" --target "$target" --parallel "$(nproc)"
}
