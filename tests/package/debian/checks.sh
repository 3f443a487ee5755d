# shellcheck shell=bash
# What is asked of the packages, in order. Source this; needs systemd/asking.sh.

FIRST=0.1.0 SECOND=0.1.0+test1
PACKAGES=(ckptd libckpt1 libckpt-dev python3-ckptd)

# renumbered FROM TO: the packages of the folder FROM as SECOND, in TO.
renumbered() {
  local deb tree=$PLACE/renumbered
  mkdir -p "$2"
  for deb in "$1"/*.deb; do
    rm -rf "$tree"
    dpkg-deb -R "$deb" "$tree" && sed -i "/^\(Version\|Depends\):/s/\b$FIRST\b/$SECOND/g" "$tree/DEBIAN/control" &&
      dpkg-deb -Znone -b "$tree" "$2" || return 1
  done
}

# Two versions, to have something to upgrade to. What is in them is the same: what differs is what dpkg does.
check_build() {
  local version
  FIRST=$(sed -n '1s/.*(\(.*\)).*/\1/p' "$SOURCE/deploy/debian/changelog")
  SECOND=$FIRST+test1
  is "version of the agent" "$("$BUILD/bin/ckptd" --version)" "ckptd $FIRST"
  CKPTD_BUILD=$BUILD "$SOURCE/tools/deb" "$STAGE/opt/debs/$FIRST" >"$PLACE/deb.log" 2>&1 ||
    fail "tools/deb: $(tail -n 20 "$PLACE/deb.log")"
  renumbered "$STAGE/opt/debs/$FIRST" "$STAGE/opt/debs/$SECOND" >"$PLACE/deb.log" 2>&1 ||
    fail "another version: $(tail -n 20 "$PLACE/deb.log")"
  for version in "$FIRST" "$SECOND"; do
    is "packages of $version" "$(find "$STAGE/opt/debs/$version" -name '*.deb' -printf '%f\n' | sed 's/_.*//' | sort | xargs)" \
      "$(printf '%s\n' "${PACKAGES[@]}" | sort | xargs)"
  done
}

check_lintian() {
  local out
  out=$(lintian --allow-root --fail-on error --tag-display-limit 0 "$STAGE/opt/debs/$FIRST"/*.deb 2>&1) ||
    fail "lintian: $(grep '^E:' <<<"$out")"
  echo "lintian: $(grep -c '^E:' <<<"$out") errors, $(grep -c '^W:' <<<"$out") warnings"
}

stage_packages() {
  mkdir -p "$STAGE/opt/test/bin" "$STAGE/usr/sbin"
  cp "$BUILD/bin/ckpt-trainer" "$STAGE/opt/test/bin"
  printf '#!/bin/sh\nexit 0\n' >"$STAGE/usr/sbin/policy-rc.d" # images for containers have one that forbids every start
  chmod 755 "$STAGE/usr/sbin/policy-rc.d"
}

# dpkg_does WHAT ARGUMENT...
dpkg_does() {
  local what=$1
  shift
  inside env DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin dpkg "$@" >"$PLACE/dpkg.log" 2>&1 </dev/null ||
    fail "$what: $(tail -n 8 "$PLACE/dpkg.log")"
}
debs() { inside find "/opt/debs/$1" -name '*.deb'; }
version_of() { inside dpkg-query -W -f '${db:Status-Abbrev}${Version}' "$1"; }
# The number of a mount is never given twice: the same number is the same memory.
region_mount() { inside findmnt -no ID "$REGION"; }

check_install() {
  local package
  mapfile -t package < <(debs "$FIRST")
  dpkg_does install -i "${package[@]}"
  inside useradd --groups ckptd alice || fail "no user alice in the group ckptd"
  is "service" "$(show ActiveState) $(inside systemctl is-enabled ckptd)" "active enabled"
  is "user of the agent" "$(inside ps -o user= -p "$(show MainPID)")" ckptd
  [ -n "$(region_mount)" ] || fail "no region is mounted"
  is "ckptctl status" "$(as alice ckptctl status >/dev/null; echo $?)" 0
  as alice ckptctl version | grep -q "$FIRST" || fail "ckptctl version: $(as alice ckptctl version)"
  for package in "${PACKAGES[@]}"; do is "$package" "$(version_of "$package")" "ii $FIRST"; done
  is "files that are not as packed" "$(inside dpkg --verify "${PACKAGES[@]}")" ""
}

# A C program against libckpt-dev, and Python against python3-ckptd, which finds libckpt1 without libckpt-dev.
check_development() {
  inside bash -c 'printf "#include <ckpt/ckpt.h>\n#include <stdio.h>\nint main(void) { puts(ckpt_code_name(0)); return 0; }\n" >/tmp/use.c
    cc -Wall -Wextra -Werror -o /tmp/use /tmp/use.c -lckpt && /tmp/use' >"$PLACE/use.log" 2>&1 ||
    fail "a C program: $(tail -n 3 "$PLACE/use.log")"
  inside rm "$(inside sh -c 'echo /usr/lib/*/libckpt.so')" # as where libckpt-dev is not installed
  inside python3 -c '# not `import ckptd`, which needs torch
import sys
sys.path.insert(0, "/usr/lib/python3/dist-packages/ckptd")
import _lib
print(_lib.library()._name)' >"$PLACE/use.log" 2>&1 ||
    fail "Python: $(tail -n 3 "$PLACE/use.log")"
  is "the library that Python found" "$(cat "$PLACE/use.log")" libckpt.so.1
}

# A trainer trains through it. Nothing goes to storage by itself: what is restored was in the region all along.
check_upgrade() {
  local pid mount began package
  mapfile -t package < <(debs "$SECOND")
  set_keys '# mine\n[durability]\nflush_every = 1000000\n'
  restart upgrade
  train undisturbed --steps 60 --every 5
  wait "$TRAINER"
  pid=$(show MainPID) mount=$(region_mount)
  train upgraded --steps 60 --every 5 --step-ms 100
  eventually 10 said upgraded "^CAPTURED 10" || fail "upgrade: nothing captured"
  began=$(date +%s%N)
  dpkg_does upgrade -i "${package[@]}"
  echo "upgraded in $((($(date +%s%N) - began) / 1000000)) ms"
  main_changed "$pid" || fail "the old agent still runs: $pid"
  is "version of ckptd" "$(version_of ckptd)" "ii $SECOND"
  is "mount of the region" "$(region_mount)" "$mount"
  is "an edited ckptd.toml" "$(inside head -n 1 /etc/ckptd/ckptd.toml)" "# mine"
  kill -0 "$TRAINER" 2>/dev/null || fail "upgrade: the trainer ended before it: $(tail -n 3 "$PLACE/upgraded.log")"
  wait "$TRAINER" || fail "upgrade: the trainer does not go on: $(tail -n 3 "$PLACE/upgraded.log")"
  grep -qE "^CAPTURED ([45][05]|60)" "$PLACE/upgraded.log" || fail "upgrade: no save behind it: $(tail -n 3 "$PLACE/upgraded.log")"
  is "result" "$(digest upgraded)" "$(digest undisturbed)"
}

# What stays is told, and what stays is enough to go on.
check_remove() {
  train removed --steps 1000 --every 5 --step-ms 20
  eventually 10 said removed "^CAPTURED 10" || fail "remove: nothing captured"
  strike KILL ckpt-trainer
  wait "$TRAINER"
  dpkg_does remove --remove ckptd
  grep -q "$REGION stays" "$PLACE/dpkg.log" || fail "remove does not say what stays: $(cat "$PLACE/dpkg.log")"
  is "service" "$(show ActiveState)" inactive
  [ -n "$(inside find "$STORAGE/removed" -name manifest.json)" ] || fail "remove does not flush what is captured"
  [ -n "$(inside find "$REGION/removed" -name 'slot-*')" ] || fail "remove drops what trainers saved"
  inside test ! -e /usr/bin/ckptd || fail "remove leaves the agent"
}

check_again() {
  local package
  package=$(debs "$SECOND" | grep /ckptd_)
  dpkg_does "install again" -i "$package"
  is "service" "$(show ActiveState)" active
  train removed --steps 60 --every 5
  wait "$TRAINER" || fail "again: $(tail -n 3 "$PLACE/removed.log")"
  has "restored from memory" "$(cat "$PLACE/removed.log")" "^RESTORED step=[1-9][0-9]* source=1 "
}

# Everything goes but checkpoints and the user, who owns them.
check_purge() {
  local left
  dpkg_does purge --purge "${PACKAGES[@]}"
  grep -q "$STORAGE has checkpoints and is left" "$PLACE/dpkg.log" || fail "purge does not say what stays: $(cat "$PLACE/dpkg.log")"
  is "mount of the region" "$(region_mount)" ""
  [ -n "$(inside find "$STORAGE/removed" -name manifest.json)" ] || fail "purge deletes checkpoints"
  left=$(inside find /etc /lib/systemd /usr/bin /usr/lib /usr/include /usr/share /var/lib /run -xdev \
    \( -name '*ckptd*' -o -name '*ckptctl*' -o -name '*libckpt*' -o -name ckpt \) -not -path "$STORAGE*" \
    -not -path '/etc/systemd/system/run-ckptd-region.mount.d*' -not -path '/run/systemd/*')
  is "left behind" "$left" ""
}
