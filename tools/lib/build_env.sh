# shellcheck shell=bash
# What every build of this repository shares: the compiler cache and one function that builds a preset.
# Source this with the repository root in $CKPTD_ROOT.

# The cache lies outside the checkout, so a fresh clone builds warm; NOHASHDIR and BASEDIR make its path irrelevant.
export CCACHE_DIR="${CCACHE_DIR:-$HOME/.cache/ckptd/ccache}"
export CCACHE_BASEDIR="$CKPTD_ROOT" CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=5G
# It keeps what a compiler said, in whose language: one for all, else each shell's locale has results of its own.
unset LC_ALL LC_CTYPE LC_MESSAGES
export LANG=C.UTF-8
# Without these two ccache refuses every file that uses the precompiled header.
export CCACHE_SLOPPINESS=pch_defines,time_macros

# One compiler of a gRPC file takes up to 1 GiB: fewer jobs than cores when memory is short.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
  [ "$memory" -lt 1 ] && memory=1
  echo $((cores < memory ? cores : memory))
}

# What a user runs, and the C++ trainer of the quick start.
# shellcheck disable=SC2034
PROGRAMS=(ckptd ckptd-copier ckptctl ckptd-bench ckpt ckpt-trainer)

# build_preset PRESET [TARGET...]: configures and builds. Output of cmake is the caller's to keep.
build_preset() {
  local preset=$1
  shift
  mkdir -p "$CCACHE_DIR" || return 1
  (cd "$CKPTD_ROOT" && cmake --preset "$preset" &&
    cmake --build --preset "$preset" -j "$(build_jobs)" ${1:+--target "$@"}) </dev/null
}
