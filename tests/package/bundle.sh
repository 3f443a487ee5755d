#!/usr/bin/env bash
# bundle.sh SOURCE BUILD VERSION: the tar runs from a folder of its own, with what it brings along.
# Exit 77 = skipped: the last line says why.
set -u
source=$1 build=$2 version=$3
failures=0
fail() { echo "FAILED: $1"; failures=$((failures + 1)); }
skip() { echo "skipped: $1"; exit 77; }

for file in bin/ckptd bin/ckptd-copier bin/ckptctl bin/ckptd-bench lib/libckpt.so.1; do
  [ -e "$build/$file" ] || skip "no $build/$file in this build"
done
place=$(mktemp -d) || exit 1
trap 'rm -rf "$place"' EXIT

cmake -D "BUILD=$build" -D "SOURCE=$source" -D "VERSION=$version" -P "$source/tools/cmake/bundle.cmake" || exit 1
tar=$(echo "$build"/ckptd-"$version"-linux-*.tar.gz)
tar -xzf "$tar" -C "$place" || exit 1
home=$(echo "$place"/ckptd-*)

clean() { env -i PATH=/usr/bin:/bin HOME="$place" "$@"; }
clean "$home/bin/ckptd" --version | grep -qx "ckptd $version" || fail "ckptd --version"
clean "$home/bin/ckptd" --check-config --config "$home/etc/ckptd/ckptd.toml" >/dev/null || fail "ckptd --check-config"
clean "$home/bin/ckptd-copier" --help | grep -q -- --socket || fail "ckptd-copier --help"
clean "$home/bin/ckptctl" --help | grep -q status || fail "ckptctl --help"
clean "$home/bin/ckptd-bench" --help | grep -q gpu-d2h-push || fail "ckptd-bench --help"

# A machine that has no driver, whatever this one has: what cannot be loaded comes first.
mkdir "$place/none" && : >"$place/none/libcuda.so.1"
clean LD_LIBRARY_PATH="$place/none" "$home/bin/ckptd-bench" gpu-restore 2>"$place/bench.log"
status=$?
[ $status = 1 ] || fail "ckptd-bench gpu-restore without a driver: exit status $status: $(tail -n 3 "$place/bench.log")"
grep -q "no CUDA driver here" "$place/bench.log" || fail "ckptd-bench does not say that there is no driver"

# Everything but glibc comes from the tar, also the libraries that libraries need.
for file in "$home"/bin/*; do
  outside=$(clean ldd "$file" | awk '$3 ~ /^\// {print $3}' | grep -v "^$place/" |
    grep -vE '/(lib(c|m|dl|pthread|rt|resolv|util|anl|nsl|mvec)\.so)')
  [ -z "$outside" ] || fail "$(basename "$file") takes from this machine: $(tr '\n' ' ' <<<"$outside")"
  clean ldd "$file" | grep -q "$place/" || fail "$(basename "$file") takes nothing from the tar: this test sees nothing"
done

for file in "$home"/bin/*; do
  paths=$(readelf -d "$file" | sed -n 's/.*R[UN]*PATH.*\[\(.*\)\]/\1/p')
  [ "$paths" = "\$ORIGIN/../lib" ] || fail "$(basename "$file") looks for libraries in '$paths'"
done

if command -v python3 >/dev/null; then
  (cd / && clean PYTHONPATH="$home/python" PYTHONDONTWRITEBYTECODE=1 python3 -c '
import ctypes, pathlib, sys
library = pathlib.Path(sys.path[1]) / "ckptd" / "libckpt.so"
ctypes.CDLL(str(library)).ckpt_open') || fail "libckpt.so beside the Python package does not load"

  for script in run second compare; do
    clean LD_LIBRARY_PATH="$place/none" "$home/tests/gpu/$script" --out "$place/$script" >"$place/$script.log" 2>&1
    status=$?
    [ $status = 77 ] || fail "tests/gpu/$script without a driver: exit status $status: $(tail -n 3 "$place/$script.log")"
    grep -q "^No CUDA driver answered" "$place/$script.log" || fail "tests/gpu/$script does not say that no driver answered"
    grep -q "^skipped probe: device: no driver" "$place/$script.log" || fail "tests/gpu/$script does not say what is missing"
    grep -q "GPU: not probed" "$place/$script/summary.md" || fail "tests/gpu/$script writes no summary"
  done
fi
echo "bundle: $(du -m "$tar" | cut -f1) MiB, $(find "$home" -type f | wc -l) files"
exit $((failures > 0))
