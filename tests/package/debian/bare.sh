#!/usr/bin/env bash
# bare.sh DIRECTORY: the packages of DIRECTORY on a system that has nothing: what they say they depend on is enough.
#
# By hand or at night, on a Debian without systemd as its first process:
#   tests/package/bare_system.sh --copy build/deb FOLDER 'bash tests/package/debian/bare.sh /PATH/OF/build/deb'
set -eu
export DEBIAN_FRONTEND=noninteractive
debs=("$1"/*.deb)
[ ! -e /usr/bin/ckptd ] || { echo "bare.sh: ckptd is installed here; this asks a bare system" >&2; exit 2; }

apt-get -qq update
apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends "${debs[@]}" >/tmp/install.log 2>&1 || { tail /tmp/install.log; exit 1; }
echo "installed: $(dpkg-query -W -f '${Package} ${Version}, ' ckptd libckpt1 libckpt-dev python3-ckptd)"
ckptd --version
ckptd --check-config >/dev/null
id ckptd
setpriv --reuid ckptd --regid ckptd --clear-groups -- env HOME=/tmp ckptd-bench flush.durable --bytes 64MiB --n 1 --dir /tmp

apt-get -qq -o Dpkg::Use-Pty=0 purge -y ckptd libckpt1 libckpt-dev python3-ckptd >/tmp/purge.log 2>&1 || { tail /tmp/purge.log; exit 1; }
left=$(find /etc /usr /lib /var/lib -xdev \( -name '*ckptd*' -o -name 'ckptctl*' -o -name 'libckpt*' \) -not -path '*/deb-systemd-helper*')
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
echo "purged, nothing left"
