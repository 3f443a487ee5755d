#!/usr/bin/env bash
# The proof of the README: both commands on a system that has nothing. Run by hand or at night, as root; not in ctest.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)

usage() {
  cat <<END
usage: bare_system.sh [--ubuntu] [--copy PATH] [--at PATH] FOLDER [COMMAND]...

Makes a minimal Debian 12 in FOLDER (debootstrap), or with --ubuntu an Ubuntu 24.04, clones this checkout's HEAD into it, and
runs each COMMAND there from the top of the clone (default: tools/quickstart, then tools/test). Says how long each took;
exit 0 only if all exited 0. FOLDER must not exist; it needs about 20 GB and is left for a look. Network settings of this
machine are copied in: resolv.conf, certificates, Debian's apt sources, pip's configuration. With --copy, PATH too, to the
same place; with --at, the clone lies there instead of in /root/ckptd: a copied cache of the compiler knows one path.
Mounts live in a namespace of their own.
END
}

system='Debian 12' copy='' at=/root/ckptd
if [ "${1:-}" = --ubuntu ]; then system='Ubuntu 24.04' && shift; fi
if [ "${1:-}" = --copy ]; then copy=$(realpath "${2:?a path}") && shift 2; fi
if [ "${1:-}" = --at ]; then at=$(realpath -m "${2:?a path}") && shift 2; fi
case "${1:-}" in -h | --help | '') usage; exit 2 ;; esac
folder=$1
shift
[ $# -gt 0 ] || set -- tools/quickstart tools/test
[ "$(id -u)" = 0 ] || { echo "bare_system.sh: debootstrap and chroot need root" >&2; exit 2; }
[ ! -e "$folder" ] || { echo "bare_system.sh: $folder is there already; remove it first" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "bare_system.sh: no debootstrap. Next: apt-get install debootstrap" >&2; exit 2; }

# copy_in PATH...: files and folders of this machine to the same place inside
copy_in() {
  local path
  for path in "$@"; do
    [ -e "$path" ] || continue
    mkdir -p "$folder$(dirname "$path")"
    cp -aLT "$path" "$folder$path"
  done
}

# Only Debian's own sources, and those apt settings that say how to reach them.
copy_apt() {
  local file
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    if grep -qsE 'debian(-security)?/? ' "$file" || grep -qsE '^URIs: .*/debian(-security)?/?$' "$file"; then copy_in "$file"; fi
  done
  for file in /etc/apt/apt.conf.d/*; do
    if grep -qsiE 'proxy|verify-|cainfo' "$file"; then copy_in "$file"; fi
  done
}

debian() {
  local mirror
  mirror=$(sed -nE 's/^(URIs: |deb (\[[^]]*\] )?)(https?:[^ ]*\/debian)\/?( .*)?$/\3/p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
  debootstrap --variant=minbase bookworm "$folder" "${mirror:-http://deb.debian.org/debian}" || return 1
  rm -f "$folder/etc/apt/sources.list"
  copy_apt
}

# Debian 12 has neither Ubuntu's keys nor a script for this release: the keys come by https, the script is that of them all.
ubuntu() {
  local mirror=http://archive.ubuntu.com/ubuntu keys=usr/share/keyrings/ubuntu-archive-keyring.gpg place
  place=$(mktemp -d)
  curl -fsS -o "$place/keys.deb" "https://archive.ubuntu.com/ubuntu/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb" || return 1
  dpkg-deb -x "$place/keys.deb" "$place"
  debootstrap --variant=minbase --components=main,universe --keyring="$place/$keys" noble \
    "$folder" "$mirror" /usr/share/debootstrap/scripts/gutsy || return 1
  rm -rf "$place"
  for pocket in noble noble-updates noble-security; do
    echo "deb [signed-by=/$keys] $mirror $pocket main universe"
  done >"$folder/etc/apt/sources.list"
}

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
echo "debootstrap of $system into $folder"
if [ "$system" = 'Debian 12' ]; then make=debian; else make=ubuntu; fi
"$make" >"$folder.log" 2>&1 || { tail -n 5 "$folder.log"; exit 1; }
# What Debian's installer and every container runtime write, and debootstrap does not: torchrun looks up localhost.
printf '127.0.0.1 localhost\n::1 localhost\n127.0.1.1 %s\n' "$(hostname)" >"$folder/etc/hosts"
copy_in /etc/resolv.conf /etc/ssl/certs /usr/local/share/ca-certificates /etc/pip.conf ${copy:+"$copy"}
git clone -q --no-hardlinks "$root" "$folder$at"

settings=(HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 TERM=dumb)
while IFS= read -r line; do settings+=("$line"); done < <(env | grep -E '^(PIP_|https?_proxy=|no_proxy=|SSL_CERT_FILE=)' || true)

# Everything mounted inside is gone with the namespace, whatever happens to this script.
inside() {
  # shellcheck disable=SC2016
  env -i "${settings[@]}" unshare --mount --propagation private bash -c '
    set -e
    mount --bind "$1" "$1" # a mount point, as every root is: unshare(1) wants one
    mount -t proc proc "$1/proc"
    mount -t sysfs -o ro sysfs "$1/sys" # UCX looks at its devices there
    mount --rbind /dev "$1/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
    exec chroot "$1" bash -c "cd $3 && exec $2" </dev/null' bash "$folder" "$1" "$at"
}

failures=0
summary=()
for command in "$@"; do
  echo "==== $command"
  began=$SECONDS
  status=0
  inside "$command" || status=$?
  [ "$status" = 0 ] || failures=$((failures + 1))
  summary+=("$(printf '%6d s  exit %d  %s' $((SECONDS - began)) "$status" "$command")")
done
echo "==== on a bare $system, $(nproc) cores"
printf '%s\n' "${summary[@]}"
exit $((failures > 0))
