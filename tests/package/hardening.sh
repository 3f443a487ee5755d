#!/usr/bin/env bash
# hardening.sh BUILD: what is shipped is position-independent, has read-only relocations bound at start, no executable
# stack, no page both writable and executable, stack canaries, and libc's checked functions. (CET is not asked for:
# Debian 12's own start files are built without it.)
set -u
build=$1
failures=0
fail() { echo "FAILED: $1"; failures=$((failures + 1)); }

# wants FILE WHAT PATTERN TEXT: TEXT must match
wants() { grep -qE -- "$3" <<<"$4" || fail "$(basename "$1") has no $2"; }

# refuses FILE WHAT PATTERN TEXT: TEXT must not match
refuses() { if grep -qE -- "$3" <<<"$4"; then fail "$(basename "$1") has $2"; fi; }

check() {
  local file=$1 segments dynamic header symbols
  [ -e "$file" ] || { fail "no $file; build it first"; return; }
  segments=$(readelf -lW "$file") dynamic=$(readelf -dW "$file") header=$(readelf -hW "$file")
  symbols=$(readelf --dyn-syms -W "$file")
  wants "$file" "position-independent code" 'Type: +DYN' "$header"
  wants "$file" "read-only relocations" ' GNU_RELRO ' "$segments"
  wants "$file" "binding at start" 'FLAGS_1.*NOW' "$dynamic"
  wants "$file" "mark of its stack" ' GNU_STACK .* RW ' "$segments"
  refuses "$file" "a segment both writable and executable" 'LOAD .* RWE ' "$segments"
  refuses "$file" "relocations in its text" 'TEXTREL' "$dynamic"
  wants "$file" "stack canary" '__stack_chk_fail' "$symbols"
  wants "$file" "checked function of libc" '__(mem|str|v?s?n?printf|read|fprintf|poll|open)[a-z0-9_]*_chk' "$symbols"
  echo "$(basename "$file"): looked at"
}

# The check proves itself: a program without any of it must fail.
weak=$(mktemp -d)
trap 'rm -rf "$weak"' EXIT
echo 'int main(){return 0;}' >"$weak/weak.c"
cc -no-pie -z execstack -Wl,-z,norelro -o "$weak/weak" "$weak/weak.c" || exit 1
expected=$(check "$weak/weak" | grep -c '^FAILED')
[ "$expected" -ge 6 ] || fail "of a program without protection only $expected things were found"

for program in ckptd ckptd-copier ckptctl; do check "$build/bin/$program"; done
check "$build/lib/libckpt.so"
[ "$failures" = 0 ]
