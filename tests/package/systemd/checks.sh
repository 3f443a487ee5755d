# shellcheck shell=bash
# What is asked of the service, in order: each check leaves the service running. Source this; needs asking.sh.

# What trains, laid over the machine, and what a test changes of the unit: the host device in the place of a GPU;
# WatchdogSec= as short as a test's patience.
stage_tests() {
  mkdir -p "$STAGE"/opt/test/{bin,lib} "$STAGE/etc/systemd/system/ckptd.service.d"
  cp "$BUILD"/bin/{ckpt-trainer,ckpt-device-trainer} "$STAGE/opt/test/bin"
  cp "$BUILD"/lib/fakecuda/libcuda.so.1 "$STAGE/opt/test/lib"
  printf '[Service]\nEnvironment=LD_LIBRARY_PATH=/opt/test/lib\nWatchdogSec=3s\n' \
    >"$STAGE/etc/systemd/system/ckptd.service.d/test.conf"
}

install_into_stage() { DESTDIR=$STAGE cmake --install "$BUILD" --prefix /usr --strip >"$PLACE/install.log" 2>&1; }

check_install() {
  local file out
  for file in bin/{ckptd,ckptd-copier,ckptctl,ckptd-bench} lib/systemd/system/{ckptd.service,run-ckptd-region.mount} \
    lib/sysusers.d/ckptd.conf lib/tmpfiles.d/ckptd.conf lib/python3/dist-packages/ckptd/__init__.py; do
    [ -e "$STAGE/usr/$file" ] || fail "install: no /usr/$file"
  done
  cmp -s "$SOURCE/deploy/config/ckptd.toml" "$STAGE/etc/ckptd/ckptd.toml" || fail "install: no /etc/ckptd/ckptd.toml"
  echo "# mine" >>"$STAGE/etc/ckptd/ckptd.toml"
  install_into_stage
  has "an edited ckptd.toml" "$(tail -n 1 "$STAGE/etc/ckptd/ckptd.toml")" "# mine"
  ! grep -qE '@[a-z]+@' "$STAGE/usr/lib/systemd/system/ckptd.service" || fail "install: a unit with @"
}

check_units() {
  local out exposure
  out=$(inside systemd-analyze verify ckptd.service run-ckptd-region.mount 2>&1)
  is "systemd-analyze verify" "$?: $out" "0: "
  exposure=$(inside systemd-analyze security --offline=true --threshold=20 --no-pager \
    /usr/lib/systemd/system/ckptd.service) || fail "its exposure is above 2.0"
  tail -n 1 <<<"$exposure"
  # Behind it where it is waited for; nobody waits for it because of this unit.
  has "its order" "$(show After)" "(^| )time-sync.target( |$)"
  ! grep -q time-sync <<<"$(show Wants) $(show Requires)" || fail "the unit pulls time-sync.target in"
}

check_start() {
  local options
  inside systemd-sysusers 2>/dev/null || fail "sysusers"
  inside systemd-tmpfiles --create ckptd.conf || fail "tmpfiles"
  inside useradd --groups ckptd alice || fail "no user alice"
  inside useradd mallory || fail "no user mallory"
  inside systemctl enable --now --quiet ckptd || fail "start: $(inside systemctl status ckptd --no-pager -l)"
  is "at boot" "$(inside systemctl is-enabled ckptd)" enabled
  is "type and state" "$(show Type) $(show ActiveState) $(show SubState)" "notify active running"
  has "status text" "$(show StatusText)" "^running; jobs: 0, connected trainers: 0, flushes: 0$"
  is "user and group" "$(status_of | awk '/^[UG]id:/ {print $2, $3, $4, $5}' | sort -u)" \
    "$(inside id -u ckptd | sed 's/.*/& & & &/')"
  options=$(inside findmnt -no FSTYPE,OPTIONS "$REGION")
  has "the region's mount" "$options" "^tmpfs .*noexec.*mode=700,uid=$(inside id -u ckptd)"
  # Its options name no size where half of the memory is what the kernel gives unasked.
  is "percent of memory in the region" "$(inside df --output=size -B1K "$REGION" |
    awk -v all="$(awk '/^MemTotal:/ {print $2}' /proc/meminfo)" 'NR == 2 {printf "%.0f", 100 * $1 / all}')" 50
  is "exit code of ckptctl status" "$(as alice ckptctl status >/dev/null; echo $?)" 0
  is "ckptctl as somebody else" "$(as mallory ckptctl status >/dev/null 2>&1; echo $?)" 6
}

# The three and no others; the kernel's log although it may not open it.
check_privileges() {
  local pid set
  for set in CapPrm CapEff CapAmb CapBnd; do
    is "$set of the agent" "$(status_of | awk "/^$set:/ {print \$2}")" 00000000000000e0
  done
  is "sandbox" "$(status_of | awk '/^(NoNewPrivs|Seccomp):/ {printf "%s%s ", $1, $2}')" "NoNewPrivs:1 Seccomp:2 "
  pid=$(show MainPID)
  is "descriptors of the kernel's log" "$(inside ls -l "/proc/$pid/fd" | grep -c ' /dev/kmsg$')" 2
  ! as ckptd head -c 1 /dev/kmsg 2>/dev/null || fail "this check is blind: everybody may read /dev/kmsg here"
  ! log | grep rescue.kernel_log || fail "the kernel's log is not read"
  ! inside nsenter --target "$pid" --mount touch /usr/x /home/x 2>/dev/null || fail "it may write everywhere"
}

check_trainer() {
  train first --steps 10 --every 5 --step-ms 20
  wait "$TRAINER" || fail "a trainer of another user: $(tail -n 3 "$PLACE/first.log")"
  said first "^DURABLE 10" || fail "its last step is not durable"
  as mallory /opt/test/bin/ckpt-trainer --job theirs "${JOIN[@]}" --steps 2 --restore-ms 500 >"$PLACE/theirs.log" 2>&1
  is "a trainer that is not in the group" "$?" 1
}

# As its trainer's user, without capabilities; ended by the agent, also when it is stopped.
check_copier() {
  local copier
  as alice /opt/test/bin/ckpt-device-trainer --job gpu --socket /run/ckptd/ckptd.sock >"$PLACE/gpu.log" 2>&1 &
  eventually 10 said gpu "^PULLED" || fail "no copier pulls: $(tail -n 3 "$PLACE/gpu.log")"
  copier=$(inside pgrep -x ckptd-copier | head -n 1)
  is "user of the copier" "$(inside ps -o user= -p "$copier")" alice
  is "capabilities of the copier" \
    "$(inside cat "/proc/$copier/status" | awk '/^Cap(Inh|Prm|Eff|Amb):/ {print $2}' | sort -u)" 0000000000000000
  is "privileges of the copier" "$(inside cat "/proc/$copier/status" | awk '/^NoNewPrivs:/ {print $2}')" 1
  strike STOP ckptd-copier
  strike KILL ckpt-device-tra
  eventually 10 eval '! inside pgrep -x ckptd-copier' || fail "a stopped copier outlives its trainer"
}

check_reload() {
  local pid
  pid=$(show MainPID)
  mark
  set_keys '[retention]\nkeep_last = 3\n[region]\nslots = 3\n'
  inside systemctl reload ckptd || fail "reload fails"
  eventually 5 eval 'log | grep -q "config.applied.*retention.keep_last"' || fail "reload: not applied: $(log)"
  eventually 5 eval 'log | grep -q "config.needs_restart.*region.slots"' || fail "reload: does not say what waits: $(log)"
  set_keys '[retention]\nkeep_lats = 3\n'
  ! inside systemctl reload ckptd 2>/dev/null || fail "reload takes a file with an error"
  has "what reload says of an error" "$(log)" "keep_last"
  is "main process after reload" "$(show MainPID) $(show ActiveState)" "$pid active"
  ! inside systemctl restart ckptd 2>/dev/null || fail "it starts with a file with an error"
  is "with a file with an error" "$(show ActiveState) $(show Result) $(show ExecMainStatus)" "failed exit-code 2"
  inside rm /etc/ckptd/ckptd.toml
  restart reload
}

# killed NAME: the agent was, whichever way, while NAME trains.
goes_on() {
  wait "$TRAINER" || fail "$1: the trainer does not go on: $(tail -n 3 "$PLACE/$1.log")"
  said "$1" "^DURABLE 40" || fail "$1: its last step is not durable"
  is "$1: result" "$(digest "$1")" "$(digest undisturbed)"
}

check_killed() {
  local pid restarts
  train undisturbed --steps 40 --every 5
  wait "$TRAINER"
  pid=$(show MainPID) restarts=$(show NRestarts)
  train killed --steps 40 --every 5 --step-ms 60
  eventually 10 said killed "^CAPTURED 10" || fail "killed: nothing captured"
  inside kill -KILL "$pid"
  eventually 10 main_changed "$pid" || fail "a killed agent is not started again"
  is "restarts" "$(show NRestarts)" $((restarts + 1))
  goes_on killed
}

# Storage has nothing of it: what comes back was in the region.
check_adopted() {
  local pid
  set_keys '[durability]\nflush_every = 1000000\n'
  restart adopted
  train adopted --steps 1000 --every 5 --step-ms 20
  eventually 10 said adopted "^CAPTURED 15" || fail "adopted: nothing captured"
  strike KILL ckpt-trainer
  wait "$TRAINER"
  is "on storage" "$(inside find "$STORAGE/adopted" -name manifest.json)" ""
  pid=$(show MainPID)
  inside kill -KILL "$pid"
  eventually 10 main_changed "$pid" || fail "adopted: not started again"
  train adopted --steps 40 --every 5
  wait "$TRAINER" || fail "adopted: $(tail -n 3 "$PLACE/adopted.log")"
  has "restored from the region, bit for bit" "$(cat "$PLACE/adopted.log")" "^RESTORED step=(15|[2-9]5|[2-9]0) source=1 "
  is "adopted: result" "$(digest adopted)" "$(digest undisturbed)"
  inside rm /etc/ckptd/ckptd.toml
  restart adopted
}

# watchdog NAME COMMAND...: which makes the agent hang. WatchdogSec=3s.
watchdog() {
  local name=$1 pid began
  shift
  pid=$(show MainPID)
  mark
  train "$name" --steps 40 --every 5 --step-ms 150
  eventually 10 said "$name" "^CAPTURED 5" || fail "$name: nothing captured"
  began=$(date +%s%N)
  "$@" "$pid"
  eventually 8 main_changed "$pid" || fail "$name: the watchdog does not restart it"
  echo "$name: restarted after $((($(date +%s%N) - began) / 1000000)) ms"
  is "$name: timeouts that systemd tells of" "$(log | grep -c "Watchdog timeout")" 1
  goes_on "$name"
}
stop_process() { inside kill -STOP "$1"; }
# One thread as if it hung, the others go on: a tracer holds it until the process is killed.
stop_control_thread() {
  inside python3 - "$1" <<'PY' &
import ctypes, os, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
for request in (0x4206, 0x4207):  # PTRACE_SEIZE, PTRACE_INTERRUPT
    if libc.ptrace(request, pid, None, None) != 0:
        sys.exit(f"ptrace {request:#x}: {os.strerror(ctypes.get_errno())}")
try:
    while True:
        os.waitpid(pid, 0x40000000)  # __WALL
except ChildProcessError:
    pass  # it is gone
PY
}

check_frozen() { watchdog frozen stop_process; }
check_hung() { watchdog hung stop_control_thread; }

# TimeoutStopSec= is far too short for it: the agent asks for more time, and says what it does.
check_drain() {
  local pid
  set_unit 'Environment=CKPTD_FAILPOINTS=flush.before_finish=sleep:2500\nTimeoutStopSec=1s\n'
  restart drain
  pid=$(show MainPID)
  train drain --steps 1000 --every 5 --step-ms 20
  eventually 10 said drain "^CAPTURED 5" || fail "drain: nothing captured"
  is "durable before the stop" "$(inside find "$STORAGE/drain" -name manifest.json)" ""
  mark
  inside systemctl stop ckptd || fail "stop fails"
  is "after stop" "$(show ActiveState) $(show Result)" "inactive success"
  has "drain: the agent says" "$(log)" 'agent.end.*flushed=all'
  has "captured step on storage" "$(inside find "$STORAGE/drain" -name manifest.json)" 'step-0000000005'
  strike KILL ckpt-trainer
  wait "$TRAINER"
  inside ckptctl verify "$(inside find "$STORAGE/drain" -name 'step-*5.a*' -type d | head -n 1)" >/dev/null ||
    fail "drain: what is on storage is not whole"
  [ -n "$(inside find "$REGION/drain" -name 'slot-*')" ] || fail "the region goes with the service"
  set_unit ''
  inside systemctl start ckptd || fail "drain: it does not start"
}

check_full() {
  local pid
  pid=$(show MainPID)
  mark
  inside mount -o "remount,size=$(($(inside df --output=used -k "$REGION" | tail -n 1) + 8192))k" "$REGION"
  train full --steps 10 --every 5 --bytes 64000000 --close-ms 2000
  wait "$TRAINER"
  has "a region that is full: the trainer" "$(cat "$PLACE/full.log")" "^DROPPED 10 REGION_FULL"
  has "a region that is full: the log" "$(log)" 'REGION_FULL.*needs .*, free '
  is "service with a full region" "$(show MainPID) $(show ActiveState)" "$pid active"
  inside mount -o remount,size=50% "$REGION"
  train full --steps 20 --every 5 --step-ms 100 --bytes 64000000
  wait "$TRAINER"
  said full "^DURABLE 20" || fail "full: it does not recover: $(tail -n 3 "$PLACE/full.log")"
}

# What the README says of a storage.root outside of the sandbox.
check_elsewhere() {
  set_keys '[storage]\nroot = "/srv/ckpt"\n'
  inside install -d -o ckptd -g ckptd -m 700 /srv/ckpt
  restart elsewhere
  eventually 10 eval 'inside ckptctl status | grep -q "/srv/ckpt.*Read-only"' ||
    fail "elsewhere: ckptctl status does not say it: $(inside ckptctl status)"
  eventually 10 eval 'show StatusText | grep -q "problems: 1, see ckptctl status"' || fail "elsewhere: $(show StatusText)"
  set_unit 'ReadWritePaths=/srv/ckpt\n'
  restart elsewhere
  train elsewhere --steps 10 --every 5 --step-ms 20
  wait "$TRAINER"
  has "elsewhere" "$(inside find /srv/ckpt -name manifest.json)" "step-0000000010"
  inside rm /etc/ckptd/ckptd.toml
  set_unit ''
  restart elsewhere
}

# What the README says of a host without /dev/kmsg.
check_no_kernel_log() {
  inside mv /dev/kmsg /dev/kmsg.away
  ! inside systemctl restart ckptd 2>/dev/null || fail "no /dev/kmsg: it starts as if there was one"
  set_unit 'StandardInput=null\n'
  mark
  restart "no /dev/kmsg"
  has "no /dev/kmsg" "$(log)" "rescue.kernel_log.*not readable"
  inside mv /dev/kmsg.away /dev/kmsg
  set_unit ''
  restart "/dev/kmsg again"
}

check_end() {
  inside systemctl stop run-ckptd-region.mount || fail "the region cannot be given back"
  is "without its region" "$(show ActiveState) $(inside findmnt -n "$REGION")" "inactive "
}

# Without a service there is nothing more to ask.
run_checks() {
  local check
  run_check units
  run_check start
  [ "$(show ActiveState)" = active ] || return
  for check in privileges trainer copier reload killed adopted frozen hung drain full elsewhere no_kernel_log end; do
    [[ " ${ONLY:-$check} " != *" $check "* ]] || run_check "$check"
  done
}
