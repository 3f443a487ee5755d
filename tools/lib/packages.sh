# shellcheck shell=bash
# The distribution's packages this repository needs, in six sets, and one function that installs what is missing.
# Source this, then: packages_ensure build sanitize test. Needs root or sudo only when something is missing.

# Prints the packages of one set; fails on a distribution or set we do not know.
packages_list() {
  local id version clang guest=()
  # shellcheck disable=SC1091
  id=$(. /etc/os-release && echo "$ID-${VERSION_ID:-}")
  case "$id" in
    debian-12)
      clang=14
      guest=(qemu-system-x86 busybox-static cpio e2fsprogs xfsprogs) ;; # its kernel is fetched by tests/power
    ubuntu-24.04) clang=18 ;;
    *)
      version=$(echo "$id" | tr - ' ')
      echo "ckptd builds on Debian 12 and Ubuntu 24.04; this is $version. Next: a container of one of them." >&2
      return 1 ;;
  esac
  case "$1" in
    build)
      echo g++ cmake ninja-build ccache pkg-config lld git ca-certificates libisal-dev \
        libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev libssl-dev libboost-dev \
        liburing-dev libucx-dev libsystemd-dev nlohmann-json3-dev libtomlplusplus-dev libgtest-dev libgmock-dev python3 python3-venv ;;
    sanitize) echo clang clang-tidy clang-format "libclang-rt-$clang-dev" llvm ;;
    deb) echo build-essential debhelper dh-python dpkg-dev fakeroot lintian python3-numpy ;;
    bench) echo fio iperf3 ucx-utils ;;
    nodes) echo iproute2 ;; # tools/quickstart --nodes
    test) echo binutils iproute2 iptables openssl procps python3-dev strace systemd util-linux "${guest[@]}" ;;
    *) echo "packages_list: no set named $1" >&2; return 1 ;;
  esac
}

# Prints those of the arguments that are not installed.
packages_missing() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

# A cloud image that has just booted installs by itself: what holds dpkg's lock is waited for.
_packages_apt() {
  local sudo=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "Not root, and there is no sudo. Next: run this as root once." >&2; return 1; }
    sudo=(sudo)
    [ -t 0 ] || sudo+=(-n)
  fi
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C \
    apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

# apt's own words for the size: "Need to get 61.2 MB of archives", "312 MB of additional disk space will be used".
# Nothing is changed, so no lock is needed.
_packages_size() {
  LC_ALL=C apt-get -o Debug::NoLocking=1 --assume-no --no-install-recommends install "$@" 2>/dev/null |
    sed -nE -e 's/^Need to get ([^ ]+ [kMG]?B)( of|\/).*/\1 to fetch/p' \
      -e 's/^After this operation, ([^ ]+ [kMG]?B) of add.*/\1 on disk/p' |
    paste -sd ',' | sed 's/,/, /'
}

# Lists older than a day name files the mirror no longer has. For the lock of the lists apt itself does not wait.
_packages_refresh() {
  local tries=10 try said reason
  find /var/lib/apt/lists -maxdepth 1 -name '*_Packages*' -mtime -1 2>/dev/null | grep -q . && return 0
  for ((try = 1; ; try++)); do
    said=$(_packages_apt update 2>&1) && return 0
    reason=$(grep -m 1 '^E: ' <<<"$said") || return 1 # not apt's word, but sudo's
    [ "$try" -lt "$tries" ] || return 1
    echo "apt-get update waits 5 s (try $try of $tries): ${reason#E: }" >&2
    sleep 5
  done
}

# packages_ensure SET...: one line of what is installed and how big it is, silence when nothing is missing.
packages_ensure() {
  local set list wanted=() missing=() log
  for set in "$@"; do
    list=$(packages_list "$set") || return 1
    read -ra list <<<"$list"
    wanted+=("${list[@]}")
  done
  mapfile -t missing < <(packages_missing "${wanted[@]}")
  [ ${#missing[@]} -eq 0 ] && return 0
  log=$(mktemp)
  _packages_refresh
  echo "Installing ${#missing[@]} packages ($(_packages_size "${missing[@]}")): ${missing[*]}"
  if ! _packages_apt install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "apt could not install: ${missing[*]}" >&2
    echo "Next: check the network and 'apt-get update', or install these by hand, then run this again. Log: $log" >&2
    return 1
  fi
  rm -f "$log"
}

# packages_unpack PACKAGE PROGRAM: a package whose installation would start a service. It is fetched and unpacked into
# ~/.cache/ckptd/PACKAGE, never installed; nothing is done where PROGRAM (an absolute path) is in the system or there.
packages_unpack() {
  local package=$1 program=$2 into=$HOME/.cache/ckptd/$1 work status=0
  if [ -x "$program" ] || [ -x "$into$program" ]; then return 0; fi
  _packages_refresh
  mkdir -p "$HOME/.cache/ckptd"
  work=$(mktemp -d "$into.XXXXXX")
  { (cd "$work" && apt-get -qq download "$package" >log 2>&1) && dpkg-deb -x "$work"/*.deb "$work/root" &&
    chmod 755 "$work/root" && mv -T "$work/root" "$into"; } || status=1
  [ "$status" = 0 ] || echo "apt-get download $package: $(tail -n 1 "$work/log"); tests that need it are skipped" >&2
  rm -rf "$work"
  return "$status"
}
