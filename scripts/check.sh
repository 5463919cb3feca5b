#!/usr/bin/env bash
# Holds the tree to the rules that no compiler knows. Prints each violation as file:line: what is wrong, and exits 1
# where there is one.
#
#   ./scripts/check.sh [ROOT]      ROOT: the tree to check, this one by default
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
cd "${1:-$here/..}"

violations=0
report() { # lines of "file:line: what" on standard input
  local line
  while IFS= read -r line; do
    [ -n "$line" ] || continue
    printf '%s\n' "$line"
    violations=$((violations + 1))
  done
}

# Files below the folders named, with these endings, sorted.
files() { # FOLDERS -- ENDINGS
  local folders=() patterns=() folder
  while [ "$1" != -- ]; do folder=$1 && shift && if [ -d "$folder" ]; then folders+=("$folder"); fi; done
  shift
  for ending in "$@"; do patterns+=(-o -name "*.$ending"); done
  [ "${#folders[@]}" -eq 0 ] || find "${folders[@]}" -type f \( "${patterns[@]:1}" \) -not -path '*/__pycache__/*' | LC_ALL=C sort
}

# --- An operator has one base name: in src/cpu, in tests, and in cuda once there is a backend there ---------------------

# "Operator file" for every operator of src/backend.h that a file of FOLDER defines: void name(const Operator& ...
operators() { # FOLDER
  local names
  names=$(sed -n '/^#define OCTAVO_OPERATORS/,/[^\\]$/p' src/backend.h | grep -oE 'X\([A-Z][A-Za-z0-9]*\)' | tr -d '()' | sed 's/^X//' | paste -sd'|')
  files "$1" -- cpp cu | xargs -r grep -HoE "^void [a-z0-9_]+\(const ($names)&" |
    sed -E 's/^([^:]*):.*const ([A-Za-z0-9]+)&$/\2 \1/' | LC_ALL=C sort -u
}
# Each direction of an operator may have a file of its own: attention_forward.cpp and attention_backward.cpp are attention.
base() { local name=${1##*/} && name=${name%.*} && name=${name%_forward} && echo "${name%_backward}"; }

check_operators() {
  local operator file name cuda_file
  declare -A cuda_of=()
  while read -r operator file; do cuda_of[$operator]=$file; done < <(operators cuda)
  while read -r operator file; do
    name=$(base "$file")
    if [ ! -f "tests/$name.cpp" ]; then
      echo "$file:1: operator $operator is here, but tests/$name.cpp does not exist"
    elif ! grep -qw "$operator" "tests/$name.cpp"; then
      echo "tests/$name.cpp:1: does not use operator $operator of $file"
    fi
    [ "${#cuda_of[@]}" -eq 0 ] && continue
    cuda_file=${cuda_of[$operator]:-}
    if [ -z "$cuda_file" ]; then
      echo "$file:1: operator $operator is not in cuda/; allowed: cuda/$name.cu"
    elif [ "$(base "$cuda_file")" != "$name" ]; then
      echo "$cuda_file:1: operator $operator; allowed: in cuda/$name.cu, as in $file"
    fi
  done < <(operators src/cpu)
}
if [ -f src/backend.h ]; then report < <(check_operators); fi

# --- No file over 600 lines, and names that say a topic -------------------------------------------------------------------

source_files() { files src cuda tests scripts data -- cpp h cu cuh py sh cmake in && find . -maxdepth 1 -name 'CMake*' -printf '%f\n'; }
report < <(source_files | xargs -r awk '
  FNR == 601 { print FILENAME ":601: over 600 lines; allowed: split it by topic" }')
report < <(source_files | grep -E '/([^/]*_(part[0-9]+|impl|utils?|misc)|utils?|misc|helpers?|common)\.[a-z]+$' |
  sed 's/$/:1: the name says no topic; allowed: a file named after what it holds/')

# --- What may be included where -------------------------------------------------------------------------------------------

included() { # REGEX FILES... : file:line of includes whose path matches
  local regex=$1
  shift
  [ "$#" -eq 0 ] || grep -HnE "^[[:space:]]*#[[:space:]]*include[[:space:]]*[<\"]($regex)" "$@" | sed -E 's/^([^:]*:[0-9]+):.*[<"](.*)[>"].*/\1: \2/' || true
}
mapfile -t host < <(files src -- cpp h in)
mapfile -t device < <(files cuda -- cu cuh h)
report < <(included '(cuda|cublas|cudnn|nccl|cub/|cutlass|cute/|nvtx|mma\.h)' "${host[@]}" |
  sed 's/$/ is a CUDA or NCCL header; allowed: in cuda\/ only/')
report < <(included '(mpi\.h|mpi/)' "${host[@]}" "${device[@]}" | grep -v '^src/comm_mpi\.cpp:' |
  sed 's/$/ is the header of MPI; allowed: in src\/comm_mpi.cpp only/')
report < <(included '(nlohmann/|spdlog/|fmt/|CLI/|error\.h|config\.h)' "${device[@]}" |
  sed 's/$/ brings JSON, logging or command-line headers; allowed: in host code only (src\/)/')

# --- Kernels are launched through the one macro LAUNCH --------------------------------------------------------------------

report < <(for file in "${device[@]}"; do
  grep -q '^#define LAUNCH' "$file" && continue
  grep -HnE '<<<|cudaLaunchKernel|cuLaunchKernel' "$file" | sed -E 's/^([^:]*:[0-9]+):.*/\1: a launch of its own; allowed: LAUNCH(...)/' || true
done)

# --- The largest values of the FP8 formats stand in the recipe alone (tests may repeat them) -------------------------------

report < <(for file in "${host[@]}" "${device[@]}"; do
  case $file in src/precision*) continue ;; esac
  sed 's|//.*||' "$file" | grep -nE '(^|[^0-9A-Za-z_.])(448|57344)(\.0*)?[fF]?([^0-9A-Za-z_.]|$)' |
    sed -E "s|^([0-9]+):.*|$file:\1: a format's largest value as a literal; allowed: the constant of src/precision|" || true
done)

# --- Every path that a README names exists -----------------------------------------------------------------------------------

# Paths are looked for from the root and from the README's own folder. What a build, a run or a reader makes is not here.
check_readme() { # FILE
  local folder line word
  folder=$(dirname "$1")
  while IFS=: read -r line word; do
    word=${word#./}
    case $word in build/* | runs/* | corpora/* | checkpoints/* | *:* | '') continue ;; esac
    compgen -G "$word" >/dev/null || compgen -G "$folder/$word" >/dev/null ||
      echo "$1:$line: names $word, which does not exist"
  done < <({
    # In backticks: with a slash and an ending, or the name of a source file. Targets of links.
    # shellcheck disable=SC2016 # the backticks are Markdown's
    grep -noE '`[A-Za-z0-9_./-]+`' "$1" | tr -d '`' |
      grep -E '^[0-9]+:(.*/.*\.(sh|py|cpp|h|cu|cuh|cmake|json|md|txt|in)|[^/]+\.(sh|py|cpp|h|cu|cuh|cmake))$' || true
    grep -noE '\]\([^)# ]+' "$1" | sed 's/](//' || true
    # Anywhere, code blocks included: below one of the tree's folders.
    grep -noE '(^|[^A-Za-z0-9_./$}-])(\./)?(src|cuda|configs|data|scripts|tests|\.ci)/[A-Za-z0-9_.*/-]*[A-Za-z0-9_*/]' "$1" |
      sed -E 's/^([0-9]+):[^A-Za-z0-9_.]?/\1:/' || true
  } | LC_ALL=C sort -t: -k1,1n -k2 -u)
}
report < <(find . -name '*.md' -not -path './build/*' -not -path './runs/*' -not -path './corpora/*' -not -path './.git/*' |
  sed 's|^\./||' | LC_ALL=C sort | while IFS= read -r readme; do check_readme "$readme"; done)

# --- clang-format ------------------------------------------------------------------------------------------------------------

# Releases format differently, so the tree is held to one of them.
formatter=
for candidate in clang-format-14 clang-format; do
  if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q 'version 14\.'; then formatter=$candidate && break; fi
done
if [ ! -f .clang-format ]; then
  echo "SKIPPED: formatting; there is no .clang-format here"
elif [ -z "$formatter" ]; then
  echo "SKIPPED: formatting; found no clang-format 14 (package clang-format-14, on Debian 12 clang-format)"
else
  report < <(files src cuda tests -- cpp h cu cuh | xargs -r -P "$(nproc)" -n 16 "$formatter" --dry-run 2>&1 |
    sed -nE 's/^([^:]+:[0-9]+):[0-9]+: (warning|error): .*/\1: not as clang-format writes it; clang-format -i repairs it/p' |
    LC_ALL=C sort -t: -k1,1 -u)
fi

if [ "$violations" -gt 0 ]; then
  echo "check.sh: $violations violation(s)"
  exit 1
fi
echo "check.sh: the tree keeps its rules"
