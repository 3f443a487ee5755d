#!/usr/bin/env bash
# The layer check checks: throw-away projects made of tools/cmake/ckptd_cc_library.cmake, one good and three forbidden.
# A forbidden one must fail its configure with the words "layer check", the good one must pass.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d /tmp/ckptd-layers.XXXXXX)
trap 'rm -rf "$work"' EXIT
failures=0

# room PROJECT NAME LAYER DEPS [INCLUDE]: one library with one source file
room() {
  local dir="$work/$1/daemon/$2"
  mkdir -p "$dir"
  echo "int $2_value();" >"$dir/$2.h"
  { [ -z "${5:-}" ] || echo "#include \"$5\""; echo "int $2_value() { return 1; }"; } >"$dir/$2.cc"
  echo "ckptd_cc_library(NAME $2 LAYER $3 HDRS $2.h SRCS $2.cc DEPS $4)" >"$dir/CMakeLists.txt"
  echo "add_subdirectory(daemon/$2)" >>"$work/$1/CMakeLists.txt"
}

project() {
  mkdir -p "$work/$1"
  cat >"$work/$1/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.22)
project($1 CXX)
include($root/tools/cmake/ckptd_cc_library.cmake)
END
}

# expect PROJECT pass|refuse WHY
expect() {
  local log="$work/$1.log" got=pass
  cmake -G Ninja -S "$work/$1" -B "$work/$1/build" >"$log" 2>&1 || got=refuse
  if [ "$got" = refuse ] && ! grep -q "layer check" "$log"; then got="another error"; fi
  if [ "$got" = "$2" ]; then
    echo "ok: $3: $got"
  else
    echo "FAILED: $3: wanted $2, got $got"
    cat "$log"
    failures=$((failures + 1))
  fi
}

project good
room good low 1 ""
room good high 2 ckptd::low daemon/low/low.h
expect good pass "a room may use a lower one"

project upward
room upward high 2 ""
room upward low 1 ckptd::high
expect upward refuse "a room must not depend on a higher one"

project sideways
room sideways left 1 ""
room sideways right 1 ckptd::left
expect sideways refuse "a room must not depend on one of its own layer"

project hidden
room hidden low 1 ""
room hidden high 2 "" daemon/low/low.h
expect hidden refuse "an include needs its room in DEPS"

exit $((failures > 0))
