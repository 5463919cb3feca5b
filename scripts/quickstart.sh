#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing, builds, packs text that this machine already has,
# trains the same small GPT in every precision of configs/quickstart.json, and shows what came out.
#
#   ./scripts/quickstart.sh [--cpu|--cuda] [--no-install]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/packages.sh

usage() { sed -n '2,5s/^# \{0,1\}//p' scripts/quickstart.sh; }

backend=auto
install=yes
for argument in "$@"; do
  case $argument in
    --cpu) backend=cpu ;;
    --cuda) backend=cuda ;;
    --no-install) install=no ;;
    -h | --help) usage && exit 0 ;;
    *) echo "quickstart.sh: found $argument; allowed: --cpu, --cuda, --no-install" >&2 && exit 2 ;;
  esac
done

step() { printf '\n== %s\n' "$*"; }

step "Packages"
install_packages "$install"

step "Build"
has_nvcc() { command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; }
has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }
if [ "$backend" = auto ]; then
  if ! has_nvcc; then
    backend=cpu reason="there is no nvcc" other="--cuda"
  elif ! has_gpu; then
    backend=cpu reason="there is nvcc, but no GPU that nvidia-smi lists" other="--cuda"
  else
    backend=cuda reason="nvcc and a GPU are here" other="--cpu"
  fi
  echo "Building for $backend: $reason. To change that: ./scripts/quickstart.sh $other"
else
  echo "Building for $backend, as asked. To change that: ./scripts/quickstart.sh without --$backend"
fi
configure_and_build "$backend" octavo
octavo=build/$backend/octavo
"$octavo" --version

step "Corpus: the headers of the C++ standard library"
compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "build/$backend/CMakeCache.txt")
headers=
# The compiler's own search path, in its order; the library's folder is the first that holds <vector>.
while read -r folder; do
  if [ -f "$folder/vector" ]; then headers=$(realpath "$folder") && break; fi
done < <("$compiler" -E -x c++ -v /dev/null 2>&1 >/dev/null | sed -n '/^#include <\.\.\.>/,/^End of search/s/^ //p')
if [ -z "$headers" ]; then
  echo "quickstart.sh: $compiler names no folder with the header <vector>; train on your own text instead (README.md)" >&2
  exit 1
fi
corpus=corpora/quickstart
rm -rf "$corpus" # made anew each time: it takes a second, and the compiler may have changed
mkdir -p corpora
# Each file is a document; whole files go to validation, chosen by their content, so that the split is the same anywhere.
"$octavo" data pack "$headers/**/*" --out "$corpus" --tokenizer bytes --val-fraction 0.1

step "Training"
# A former quickstart's runs are replaced: the same command twice does the same thing twice.
sweep=("$octavo" sweep configs/quickstart.json --overwrite)
"${sweep[@]}" --dry-run | tail -n 1
"${sweep[@]}"

folder=runs/quickstart
while IFS=, read -r name _; do
  [ -d "$folder/$name/checkpoints" ] || continue # unsupported here
  step "200 bytes written by $name"
  "$octavo" generate "$folder/$name" --prompt "namespace std" --tokens 200 --temperature 0.8 --seed 1 --ignore-eot
done < <(tail -n +2 "$folder/comparison.csv")

step "Done"
echo "table:   $folder/comparison.md"
if [ -f "$folder/comparison.png" ]; then
  echo "picture: $folder/comparison.png"
else
  echo "picture: not drawn, gnuplot is missing; with it: gnuplot $folder/comparison.gp"
fi
