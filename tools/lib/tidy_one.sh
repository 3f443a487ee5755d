#!/usr/bin/env bash
# tidy_one.sh UNTIL LEFT FILE: clang-tidy of one file, or, from the second UNTIL on, its name into LEFT.
[ "$(date +%s)" -lt "$1" ] || { echo "$3" >>"$2"; exit 0; }
exec timeout -k 10 900 clang-tidy --quiet -p build/tidy "$3"
