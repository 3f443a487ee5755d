#!/usr/bin/env bash
# systemd.sh SOURCE BUILD [CHECKS]: ckptd as `cmake --install` leaves it on a machine, under the real systemd.
#
# systemd runs as the first process of a machine of namespaces (systemd/machine.sh); what is asked of the service stands
# in systemd/checks.sh; CHECKS is a list of names, all when there is none. Exit 77 = skipped: the last line says why.
set -u
export SOURCE=$1 BUILD=$2 ONLY=${3:-}
HERE=$(cd "$(dirname "$0")" && pwd)/systemd
FAILURES=0
fail() { echo "FAILED: $1"; FAILURES=$((FAILURES + 1)); }
skip() { echo "skipped: $1"; exit 77; }

[ "$(id -u)" = 0 ] || skip "not root: a machine of namespaces with systemd as its first process needs it"
[ -x /lib/systemd/systemd ] || skip "no /lib/systemd/systemd here; Debian's package systemd has it"
for tool in systemctl systemd-analyze systemd-sysusers systemd-tmpfiles unshare nsenter setpriv useradd; do
  command -v "$tool" >/dev/null || skip "no $tool here"
done
for file in ckptd ckptd-copier ckptctl ckptd-bench ckpt-trainer ckpt-device-trainer; do
  [ -e "$BUILD/bin/$file" ] || skip "no $BUILD/bin/$file in this build"
done
unshare --mount --pid --fork --uts --ipc --net --cgroup true 2>/dev/null || skip "no namespaces here"

PLACE=$(mktemp -d) && STAGE=$PLACE/stage && mkdir -p "$STAGE" && chmod 755 "$PLACE" "$STAGE" || exit 1
. "$HERE/machine.sh"
. "$HERE/asking.sh"
. "$HERE/checks.sh"
finish() {
  machine_stop
  [ -n "${CKPTD_KEEP:-}" ] || rm -rf "$PLACE"
}
trap finish EXIT
trap "exit 143" INT TERM
unshare --mount bash -c "mkdir '$PLACE/cgroup' && mount -t cgroup2 cgroup2 '$PLACE/cgroup'" || skip "no cgroup v2 here"

install_into_stage || { tail -n 5 "$PLACE/install.log"; exit 1; }
run_check install
stage_machine
stage_region
stage_tests
if ! machine_start; then
  echo "FAILED: systemd does not start; its console:"
  tail -n 40 "$PLACE/console.log"
  exit 1
fi
run_checks
[ "$FAILURES" = 0 ] || { echo "---- the end of the service's log"; inside journalctl -u ckptd -u run-ckptd-region.mount --no-pager -n 60; }
exit $((FAILURES > 0))
