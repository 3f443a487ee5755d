# shellcheck shell=bash
# A machine that runs systemd, made of this one: its own processes, network, /dev, /run and /tmp, and this machine's
# files with everything that is written to them in memory. Nothing of this machine is touched, and it is gone when its
# first process is, which ends with whoever started it. Source this; needs root, $STAGE (files that go over this machine's) and $PLACE (a folder).

MACHINE_PID='' MACHINE_CGROUP=''

# Without the services of this machine: stands in $STAGE before the machine starts.
stage_machine() {
  local unit
  mkdir -p "$STAGE/etc/systemd/system"
  printf '[Unit]\nRequires=basic.target\nAllowIsolate=yes\n' >"$STAGE/etc/systemd/system/test.target"
  for unit in systemd-udevd systemd-udev-trigger systemd-timesyncd systemd-journal-flush systemd-hwdb-update ldconfig \
    systemd-tmpfiles-setup systemd-sysusers systemd-update-utmp e2scrub_reap; do
    ln -sfn /dev/null "$STAGE/etc/systemd/system/$unit.service"
  done
  for unit in timers.target sockets.target.wants/dbus.socket dbus.socket swap.target systemd-udevd-kernel.socket \
    systemd-udevd-control.socket; do
    mkdir -p "$(dirname "$STAGE/etc/systemd/system/$unit")"
    ln -sfn /dev/null "$STAGE/etc/systemd/system/$unit"
  done
}

# What the first process of the new namespaces does: mounts, then it becomes systemd.
machine_boot() {
  local root=$PLACE/mem/root node
  set -e
  mount --make-rprivate /
  mount -t tmpfs -o mode=755 tmpfs "$PLACE/mem"
  mkdir "$PLACE"/mem/{upper,work,root}
  mount -t overlay -o "lowerdir=/,upperdir=$PLACE/mem/upper,workdir=$PLACE/mem/work" overlay "$root"
  cp -a --no-preserve=ownership "$STAGE/." "$root"
  mount -t proc proc "$root/proc"
  mount --bind "$root/proc/sys" "$root/proc/sys"
  mount -o remount,bind,ro "$root/proc/sys" # most of it is this machine's
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  mkdir "$root"/dev/{shm,pts,old}
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  mount -t devpts -o newinstance,mode=620,ptmxmode=666 devpts "$root/dev/pts"
  for node in "null 1 3 666" "zero 1 5 666" "full 1 7 666" "random 1 8 666" "urandom 1 9 666" "tty 5 0 666" "kmsg 1 11 600"; do
    read -r name major minor mode <<<"$node"
    mknod -m "$mode" "$root/dev/$name" c "$major" "$minor"
  done
  ln -s /proc/self/fd "$root/dev/fd"
  cd "$root"
  pivot_root . dev/old
  umount -l /dev/old
  rmdir /dev/old
  # A container, for systemd: it leaves clocks, kernel settings and devices alone.
  exec env -i container=ckptd-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=test.target \
    --log-target=journal --show-status=no
}

# Its cgroups lie in one of their own, which machine_stop removes.
machine_namespaces() {
  mkdir -p "$PLACE/cgroup" "$PLACE/mem"
  mount -t cgroup2 cgroup2 "$PLACE/cgroup" || exit 1
  mkdir "$PLACE/cgroup/$1" && echo $$ >"$PLACE/cgroup/$1/cgroup.procs" || exit 1
  exec unshare --fork --kill-child --pid --mount --uts --ipc --net --cgroup bash "${BASH_SOURCE[0]}" boot
}

# machine_start: true when systemd says that it runs.
machine_start() {
  local i outer
  MACHINE_CGROUP=ckptd-test-$$
  export PLACE STAGE
  setpriv --pdeathsig KILL unshare --mount bash "${BASH_SOURCE[0]}" namespaces "$MACHINE_CGROUP" >"$PLACE/console.log" 2>&1 </dev/null &
  outer=$!
  for ((i = 0; i < 200; i++)); do
    MACHINE_PID=$(cat "/proc/$outer/task/$outer/children" 2>/dev/null)
    MACHINE_PID=${MACHINE_PID% }
    if [ -n "$MACHINE_PID" ] && [ "$(cat "/proc/$MACHINE_PID/comm" 2>/dev/null)" = systemd ] &&
      inside test -S /run/systemd/private 2>/dev/null; then
      inside systemctl is-system-running --wait >/dev/null
      return 0
    fi
    kill -0 "$outer" 2>/dev/null || return 1
    sleep 0.05
  done
  return 1
}

machine_stop() {
  [ -n "$MACHINE_CGROUP" ] || return 0
  [ -z "$MACHINE_PID" ] || kill -KILL "$MACHINE_PID" 2>/dev/null
  wait
  unshare --mount bash "${BASH_SOURCE[0]}" sweep "$MACHINE_CGROUP"
}

machine_sweep() {
  mkdir -p "$PLACE/cgroup"
  mount -t cgroup2 cgroup2 "$PLACE/cgroup" || exit 1
  [ ! -d "$PLACE/cgroup/$1" ] || find "$PLACE/cgroup/$1" -depth -type d -exec rmdir {} +
}

# inside COMMAND...: in the machine, as its root.
inside() {
  nsenter --target "$MACHINE_PID" --mount --uts --ipc --net --pid --cgroup --root --wd -- \
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C "$@"
}

# as USER COMMAND...: in the machine, as somebody with that user's groups and no privileges.
as() {
  local user=$1
  shift
  inside setpriv --reuid "$user" --regid "$user" --init-groups --no-new-privs --inh-caps=-all \
    env LD_LIBRARY_PATH=/opt/test/lib:/usr/lib "$@"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then "machine_$1" "${@:2}"; fi
