# shellcheck shell=bash
# A UCX that ckptd does not refuse, for its tests, where the distribution's is older than 1.14 (Debian 12): NVIDIA's own
# build from PyPI, pinned, unpacked into ~/.cache/ckptd and never installed. Source this, then: ucx_for_tests.

UCX_WHEEL=libucx-cu12==1.22.0
UCX_WHEEL_SHA256=5cbbef0c140a0a158ae3486089af659b38822b2234cd3dc90ba40a5e6553402a # x86_64

# Sets CKPTD_TEST_UCX for the tests to the path of its libucp.so.0; leaves it where the caller has set it.
ucx_for_tests() {
  local into work status=0
  if [ -n "${CKPTD_TEST_UCX:-}" ] || [ "$(uname -m)" != x86_64 ]; then return 0; fi
  if pkg-config --atleast-version=1.14 ucx 2>/dev/null; then return 0; fi
  into=$HOME/.cache/ckptd/${UCX_WHEEL/==/-}
  if [ ! -e "$into/libucx/lib/libucp.so.0" ]; then
    work=$(mktemp -d)
    { echo "$UCX_WHEEL --hash=sha256:$UCX_WHEEL_SHA256" >"$work/wanted" &&
      python3 -m venv "$work/venv" &&
      "$work/venv/bin/pip" -q --disable-pip-version-check download --no-deps --require-hashes --only-binary :all: \
        -d "$work" -r "$work/wanted" >"$work/log" 2>&1 &&
      mkdir -p "$work/root" "$(dirname "$into")" &&
      python3 -m zipfile -e "$work"/*.whl "$work/root" && mv -T "$work/root" "$into"; } || status=1
    [ "$status" = 0 ] || echo "$UCX_WHEEL: $(tail -n 1 "$work/log"); tests that need it are skipped" >&2
    rm -rf "$work"
    [ "$status" = 0 ] || return 1
  fi
  export CKPTD_TEST_UCX=$into/libucx/lib/libucp.so.0
}
