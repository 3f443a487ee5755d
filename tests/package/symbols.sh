#!/usr/bin/env bash
# symbols.sh lib BUILD | symbols.sh release BUILD
#
# lib: what libckpt.so asks of the system and what it shows. It must load on RHEL 9 and Ubuntu 22.04 beside whatever
#      PyTorch bundles, so: GLIBC_2.34 and GLIBCXX_3.4.29 at most, no iostream, no regex, only ckpt_* exported.
# release: the shipped agent holds no failpoint, the dev build holds them (else this would find nothing by mistake).
# Exit 77 = skipped: the last line says why.
set -u
build=$2
failures=0
fail() { echo "FAILED: $1"; failures=$((failures + 1)); }
skip() { echo "skipped: $1"; exit 77; }

# newest NAME FILE: the highest version of that family the file needs, 0 if none
newest() { readelf -V "$2" | grep -oE "\b$1_[0-9.]+" | sed "s/$1_//" | sort -Vu | tail -n 1 | grep . || echo 0; }

# at_most NAME LIMIT FILE
at_most() {
  local needs
  needs=$(newest "$1" "$3")
  echo "$1: needs $needs, limit $2"
  [ "$(printf '%s\n%s\n' "$needs" "$2" | sort -V | tail -n 1)" = "$2" ] || fail "$(basename "$3") needs $1_$needs"
}

check_lib() {
  local lib="$build/lib/libckpt.so" found
  [ -e "$lib" ] || skip "no $lib in this build"
  readelf -n "$lib" >/dev/null || fail "$lib is no ELF file"
  if nm -D "$lib" | grep -qE '__(asan|tsan)_'; then skip "a sanitizer build needs newer symbols"; fi
  at_most GLIBC 2.34 "$lib"
  at_most GLIBCXX 3.4.29 "$lib"
  at_most CXXABI 1.3.13 "$lib" # the compiler of GLIBCXX_3.4.29, gcc 11
  found=$(nm -DC --defined-only "$lib" | awk '$2 != "A" {print $3}' | sed 's/@.*//' | grep -v '^ckpt_[a-z0-9_]*$')
  [ -z "$found" ] || fail "exported beside ckpt_*: $(head -n 5 <<<"$found" | tr '\n' ' ')"
  nm -D --defined-only "$lib" | grep -q ' ckpt_open' || fail "ckpt_open is not exported"
  found=$(nm -DC "$lib" | grep -E 'std::(__cxx11::)?(basic_)?(iostream|ostream|istream|ios_base|regex)|std::(cout|cerr|cin)\b')
  [ -z "$found" ] || fail "iostream or regex: $(head -n 3 <<<"$found")"
  readelf -d "$lib" | grep -q 'SONAME.*libckpt\.so\.1' || fail "the soname is not libckpt.so.1"
}

# The names as the sources write them, CKPTD_FP("publish.after_write"), and the variable that arms them.
failpoints() {
  local daemon
  daemon=$(dirname "$0")/../../daemon
  echo CKPTD_FAILPOINTS
  grep -rhoE 'CKPTD_FP(_STATUS)?\("[^"]+"' "$daemon" --include='*.cc' | sed 's/.*"\(.*\)"/\1/' | sort -u
}

check_release() {
  local agent="$build/bin/ckptd" name found=0 total
  [ -e "$agent" ] || skip "no $agent in this build"
  total=$(failpoints | wc -l)
  [ "$total" -gt 0 ] || skip "no failpoint in the sources yet"
  while read -r name; do
    echo "  in the agent: $name"
    found=$((found + 1))
  done < <(strings "$agent" | grep -xFf <(failpoints) | sort -u)
  echo "$found of $total failpoints are in $agent"
  if grep -q '^CKPTD_FAILPOINTS:BOOL=ON' "$build/CMakeCache.txt"; then
    [ "$found" -gt 0 ] || fail "a build with failpoints shows none: this test is blind"
  else
    [ "$found" = 0 ] || fail "failpoints in a build that must not have any"
  fi
}

case "$1" in
  lib) check_lib ;;
  release) check_release ;;
  *) echo "usage: symbols.sh lib|release BUILD" >&2; exit 2 ;;
esac
exit $((failures > 0))
