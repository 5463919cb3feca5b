#!/usr/bin/env bash
# Builds everything in the cpu preset and runs all tests; then the fast ones again with oneDNN held to AVX2, where the
# processor's BF16 products are out of reach. Installs what is missing, as quickstart.sh does.
#
#   ./scripts/test.sh [--no-install]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/packages.sh

install=yes
for argument in "$@"; do
  case $argument in
    --no-install) install=no ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' scripts/test.sh && exit 0 ;;
    *) echo "test.sh: found $argument; allowed: --no-install" >&2 && exit 2 ;;
  esac
done

started=$SECONDS
log=$(mktemp)
trap 'rm -f "$log"' EXIT

install_packages "$install"
werror=()
if [ -n "${CI:-}" ]; then werror=(-DOCTAVO_WERROR=ON); fi
configure_and_build cpu all "${werror[@]}"

# The tests against PyTorch and transformers run where a Python has them, and are listed as skipped elsewhere.
export OCTAVO_PYTHON=${OCTAVO_PYTHON:-python3}
if "$OCTAVO_PYTHON" -c 'import torch, transformers' 2>/dev/null; then
  echo "Python references: $OCTAVO_PYTHON has torch and transformers."
else
  echo "Python references: SKIPPED, $OCTAVO_PYTHON has no torch and transformers (pip install -r scripts/requirements-test.txt," \
    "or name another Python in OCTAVO_PYTHON)."
fi

failed=0
# Case by case, two at a time or more; each test's threads give way while they wait.
run_tests() { # TITLE CTEST-ARGUMENTS...
  printf '\n== %s\n' "$1"
  shift
  OMP_WAIT_POLICY=passive ctest --preset cpu --parallel "$(nproc)" "$@" 2>&1 | tee -a "$log" || failed=1
}
run_tests "All tests"
ONEDNN_MAX_CPU_ISA=AVX2 DNNL_MAX_CPU_ISA=AVX2 run_tests "Fast tests, oneDNN held to AVX2" -L fast

# "98% tests passed, 3 tests failed out of 150", once a run.
read -r total bad < <(awk '/tests passed, .* failed out of/ { bad += $4; total += $NF } END { print total + 0, bad + 0 }' "$log")
skipped=$(grep -c '(Skipped)$' "$log" || true)
elapsed=$((SECONDS - started))
printf '\n%d passed, %d failed, %d skipped\n' $((total - bad - skipped)) "$bad" "$skipped"
if [ "$failed" -ne 0 ] || [ "$total" -eq 0 ]; then
  echo "test.sh: FAILED after $((elapsed / 60)) min $((elapsed % 60)) s; one test again: build/cpu/octavo_tests \"its name\""
  exit 1
fi
echo "test.sh: all tests passed in $((elapsed / 60)) min $((elapsed % 60)) s"
