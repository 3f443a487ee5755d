#!/usr/bin/env bash
# Builds what the legs of tools/test need, one after the other, while the legs before them run: their tests wait for
# clocks and for other processes a fifth of the time. Says "LEG STATUS" of each as soon as it is built; a build that
# was done before is not done again beside tests that use it. The caller runs it as SCHED_IDLE, so that a test that
# wants a core has it at once.
# usage: build_ahead.sh ROOT LOGS LEG...
set -u
CKPTD_ROOT=$1 LOGS=$2
. "$CKPTD_ROOT/tools/lib/build_env.sh"
shift 2

# Preset and targets of a leg; nothing where it needs no build. fakecuda is the host device, a GPU for the tests.
build_of() {
  case "$1" in
    release | python) echo release "${PROGRAMS[@]}" fakecuda ;;
    plain) [ -n "${CKPTD_NIGHTLY:-}" ] && echo dev || echo dev plain_tests ;;
    threads) echo dev ;;
    tsan) echo tsan sanitized_tests ;;
    asan) [ -n "${CKPTD_NIGHTLY:-}" ] && echo asan || echo asan sanitized_tests ;;
    coverage) echo coverage ;;
  esac
}

declare -A status_of
for leg; do
  read -r -a build <<<"$(build_of "$leg")"
  if [ ${#build[@]} -gt 0 ] && [ -z "${status_of[${build[*]}]:-}" ]; then
    build_preset "${build[@]}" >"$LOGS/build-${build[0]}.log" 2>&1
    status_of[${build[*]}]=$?
  fi
  echo "$leg ${status_of[${build[*]:-none}]:-0} ${build[0]:-}"
done
