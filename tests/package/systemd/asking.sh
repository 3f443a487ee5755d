# shellcheck shell=bash
# shellcheck disable=SC2034 # read by those who source it
# How a test asks the service: what it says, what its trainers say, what they should. Source this; needs machine.sh.

REGION=/run/ckptd/region STORAGE=/var/lib/ckptd
JOIN=(--socket /run/ckptd/ckptd.sock --gate-ms 20000)

# A kernel without huge pages for tmpfs refuses the option; then, and only then, it is left out.
stage_region() {
  local file=$STAGE/etc/systemd/system/run-ckptd-region.mount.d/test.conf
  unshare --mount mount -t tmpfs -o huge=within_size tmpfs "$PLACE/stage" 2>/dev/null && return
  echo "this kernel has no huge= for tmpfs: the mount unit is changed"
  mkdir -p "$(dirname "$file")"
  printf '[Mount]\nOptions=\nOptions=%s\n' \
    "$(sed -n 's/^Options=//p' "$SOURCE/deploy/systemd/run-ckptd-region.mount" | sed 's/,huge=within_size//')" >"$file"
}

show() { inside systemctl show ckptd --property "$1" --value; }
status_of() { inside cat "/proc/$(show MainPID)/status"; }
log() { inside journalctl -u ckptd -o cat --no-pager --after-cursor "$CURSOR"; }
mark() { CURSOR=$(inside journalctl -n 0 --show-cursor --no-pager | sed -n 's/^-- cursor: //p'); }
is() { [ "$2" = "$3" ] || fail "$1: '$2', not '$3'"; } # is WHAT FOUND EXPECTED
has() { grep -qE -- "$3" <<<"$2" || fail "$1: no '$3' in: $(tail -n 5 <<<"$2")"; } # has WHAT TEXT PATTERN

# eventually SECONDS COMMAND...: looks again until it is true.
eventually() {
  local end=$(($(date +%s%N) + $1 * 1000000000))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$(date +%s%N)" -lt "$end" ] || return 1
    sleep 0.05
  done
}
said() { grep -q -- "$2" "$PLACE/$1.log"; }

# train NAME ARGUMENT...: alice's trainer in the background; what it says stands in $PLACE/NAME.log.
train() {
  local name=$1
  shift
  as alice /opt/test/bin/ckpt-trainer --job "$name" "${JOIN[@]}" "$@" >"$PLACE/$name.log" 2>&1 &
  TRAINER=$!
}
# Of the machine, by name: `kill` of this machine would hit nsenter.
strike() { inside pkill "-$1" -x "$2"; }
digest() { sed -n 's/^DIGEST //p' "$PLACE/$1.log"; }
main_changed() { [ "$(show MainPID)" != "$1" ] && [ "$(show ActiveState)" = active ]; }

# set_keys TEXT: the configuration; set_unit TEXT: a drop-in of the service.
set_keys() { printf '%b' "$1" | inside tee /etc/ckptd/ckptd.toml >/dev/null; }
set_unit() {
  printf '[Service]\n%b' "$1" | inside tee /etc/systemd/system/ckptd.service.d/case.conf >/dev/null
  inside systemctl daemon-reload
}
restart() { inside systemctl restart ckptd || fail "$1: it does not start: $(inside systemctl status ckptd --no-pager | tail -n 5)"; }

run_check() {
  local began before=$FAILURES
  began=$(date +%s%N)
  [ -z "$MACHINE_PID" ] || mark
  "check_$1"
  printf '%-8s %6d ms  %s\n' "$([ "$FAILURES" = "$before" ] && echo ok || echo FAILED)" \
    $((($(date +%s%N) - began) / 1000000)) "$1"
}
