#!/usr/bin/env bash
# debian.sh SOURCE BUILD: the packages of tools/deb: lintian; installed, upgraded under an agent at work, removed,
# installed again, purged, by dpkg under the real systemd in a machine of namespaces (systemd/machine.sh).
#
# What is asked stands in debian/checks.sh. Exit 77 = skipped: the last line says why.
set -u
SOURCE=$(realpath "$1") && BUILD=$(realpath "$2") && export SOURCE BUILD || exit 1
HERE=$(cd "$(dirname "$0")" && pwd)
FAILURES=0
fail() { echo "FAILED: $1"; FAILURES=$((FAILURES + 1)); }
skip() { echo "skipped: $1"; exit 77; }

[ "$(id -u)" = 0 ] || skip "not root: a machine of namespaces with systemd as its first process needs it"
[ -x /lib/systemd/systemd ] || skip "no /lib/systemd/systemd here; Debian's package systemd has it"
for tool in dpkg-buildpackage dh dh_python3 fakeroot lintian deb-systemd-helper unshare nsenter setpriv; do
  command -v "$tool" >/dev/null || skip "no $tool here: apt install debhelper dh-python fakeroot lintian init-system-helpers"
done
for file in bin/{ckptd,ckptd-copier,ckptctl,ckptd-bench,ckpt-trainer} lib/libckpt.so.1; do
  [ -e "$BUILD/$file" ] || skip "no $BUILD/$file in this build"
done
unshare --mount --pid --fork --uts --ipc --net --cgroup true 2>/dev/null || skip "no namespaces here"

PLACE=$(mktemp -d) && STAGE=$PLACE/stage && mkdir -p "$STAGE" && chmod 755 "$PLACE" "$STAGE" || exit 1
. "$HERE/systemd/machine.sh"
. "$HERE/systemd/asking.sh"
. "$HERE/debian/checks.sh"
finish() {
  machine_stop
  [ -n "${CKPTD_KEEP:-}" ] || rm -rf "$PLACE"
}
trap finish EXIT
trap "exit 143" INT TERM
unshare --mount bash -c "mkdir '$PLACE/cgroup' && mount -t cgroup2 cgroup2 '$PLACE/cgroup'" || skip "no cgroup v2 here"

run_check build
[ "$FAILURES" = 0 ] || exit 1
run_check lintian
stage_machine
stage_region
stage_packages
if ! machine_start; then
  echo "FAILED: systemd does not start; its console:"
  tail -n 40 "$PLACE/console.log"
  exit 1
fi
run_check install
[ "$(show ActiveState)" = active ] && for check in development upgrade remove again purge; do run_check $check; done
[ "$FAILURES" = 0 ] || inside journalctl -u ckptd -u run-ckptd-region.mount --no-pager -n 40
exit $((FAILURES > 0))
