# shellcheck shell=bash
# Where the Python environment lives: keyed by its requirements and the interpreter, so that a fresh clone finds it.
# Source this, then call one function. Needs: repo root in $CKPTD_ROOT.

# Prints the folder of the environment that fits tests/python/requirements.txt; builds nothing.
torch_env_dir() {
  local key
  key=$( (cat "$CKPTD_ROOT/tests/python/requirements.txt"; /usr/bin/python3 -V) | sha256sum | cut -c1-12)
  echo "${CKPTD_CACHE:-$HOME/.cache/ckptd}/venv-$key"
}

# Builds the environment unless it is complete. A half-built one (no .complete mark) is made anew.
torch_env_build() {
  local dir
  dir=$(torch_env_dir)
  [ -e "$dir/.complete" ] && return 0
  rm -rf "$dir"
  mkdir -p "$(dirname "$dir")"
  /usr/bin/python3 -m venv "$dir" || return 1
  "$dir/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    -r "$CKPTD_ROOT/tests/python/requirements.txt" || return 1
  touch "$dir/.complete"
}
