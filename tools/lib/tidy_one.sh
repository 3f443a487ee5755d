#!/usr/bin/env bash
# tidy_one.sh UNTIL LEFT FILE: clang-tidy of one unit (tidy_units.py), or, from the second UNTIL on, its name into LEFT.
# What was clean stays clean while nothing of it changes: the version and the rules of clang-tidy, how the file is
# compiled, and the file with all that it includes, comments too (NOLINT is one). A finding is never kept.
set -o pipefail
[ "$(date +%s)" -lt "$1" ] || { echo "$3" >>"$2"; exit 0; }

command=$(python3 -c 'import json, os, sys
print(next(c["command"] for c in json.load(open("build/tidy/compile_commands.json"))
           if os.path.relpath(c["file"]) == sys.argv[1]))' "$3") || exit 1
command=${command/ -o * -c / -E -C }
looked_at() { clang-tidy --version && cat .clang-tidy && echo "$command" && sh -c "$command"; }
# The folder of the checkout is no part of the verdict.
key=$(looked_at 2>/dev/null | sed "s|$PWD|.|g" | sha256sum) && known=$HOME/.cache/ckptd/tidy/${key%% *} || known=
if [ -n "$known" ] && [ -e "$known" ]; then touch "$known" && exit 0; fi
# A unit of several sources includes them.
timeout -k 10 900 clang-tidy --quiet --checks=-bugprone-suspicious-include -p build/tidy "$3" || exit 1
[ -z "$known" ] || { mkdir -p "${known%/*}" && : >"$known"; }
