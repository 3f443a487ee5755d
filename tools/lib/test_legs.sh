# shellcheck shell=bash
# The legs of tools/test. Each leg_NAME writes its output to stdout (kept as $LOGS/NAME/log) and its results as XML
# where tools/lib/count.py finds them; its exit status counts too. A leg whose own tests all passed but that exits
# non-zero (a build that broke, a hang) is one failure more.

LEG_LIMIT=1500 # seconds: a hang is told as this leg's failure, not as a silent job
TIDY_LIMIT=100 # seconds for clang-tidy by day
PLAIN="crash|network|plain|power" # labels of the plain leg's tests
# Of one thread each, beside others that are not: nothing for the thread sanitizer to see. What takes long is named here,
# and tools/cmake/test_weights.cmake names whole binaries.
ONE_THREAD='TransferSimulation.*:ParityFetchTest.*:Decode.*:*PublishCrashTest.*:ViewState.*:Decoder.*'
# Thousands of names of one user, each looked at for the next one: by day in the plain leg alone.
MANY_NAMES=LimitsOfOthers.JobsAndRanks
ROWS=() PASSED=0 FAILED=0 SKIPPED=0

# The legs' builds, each begun when the one before is done: a process of its own that tells of each through $BUILDS.
begin_builds() {
  local idle=(chrt --idle 0)
  "${idle[@]}" true 2>/dev/null || idle=() # a container may forbid it
  exec {BUILDS}< <(exec setsid "${idle[@]}" bash "$CKPTD_ROOT/tools/lib/build_ahead.sh" "$CKPTD_ROOT" "$LOGS" "$@")
  BUILDER=$!
}

end_builds() { [ -z "${BUILDER:-}" ] || kill -- "-$BUILDER" 2>/dev/null || true; }

# Waits until what a leg needs is built; tells how long that took. Fails as the build did, with its output.
await_build() {
  local leg=$1 began=$SECONDS built status preset
  read -r built status preset <&"$BUILDS" && [ "$built" = "$leg" ] || { echo "no word from the builds"; return 1; }
  [ -z "$preset" ] || echo ", $((SECONDS - began)) of them for its build" >"$LOGS/$leg/built"
  [ "$status" = 0 ] || cat "$LOGS/build-$preset.log"
  return "$status"
}

# ctest over one preset; arguments select tests. The gtest binaries write finer counts beside ctest's.
run_ctest() {
  local leg=$1 preset=$2 slots=6 # for each core (tools/cmake/test_weights.cmake)
  shift 2
  case "$preset" in asan | tsan) slots=4 ;; esac # all wait less
  GTEST_OUTPUT="xml:$LOGS/$leg/gtest/" timeout -k 10 "$LEG_LIMIT" \
    ctest --test-dir "$CKPTD_ROOT/build/$preset" -j "$((slots * $(nproc)))" --no-tests=error --output-on-failure --timeout 300 \
    --test-output-size-passed 65536 --output-junit "$LOGS/$leg/ctest.xml" "$@"
}

# safe.directory: a CI job may run as root in a checkout of another user.
repo_git() { git -C "$CKPTD_ROOT" -c safe.directory='*' "$@"; }

# Our files of these patterns; never an empty list, which would pass any check.
sources() { repo_git ls-files -- "$@" | grep . || { echo "git lists no $*" >&2; return 1; }; }

# What is right to one version is wrong to another: Debian 12's judges. has_version_14 LEG TOOL: else a skip is recorded.
has_version_14() {
  command -v "$2" >/dev/null || return 0 # the leg then fails for want of it
  "$2" --version | grep -q 'version 14\.' && return 0
  printf '<testsuite><testcase name="%s"><skipped message="judged by %s 14, Debian 12&apos;s; here is another"/></testcase></testsuite>' \
    "$2" "$2" >"$LOGS/$1/pytest-$2.xml"
  return 1
}

leg_format() {
  local bad=0
  set -o pipefail
  cd "$CKPTD_ROOT" || return 1
  if has_version_14 format clang-format; then
    sources '*.cc' '*.h' '*.hpp' | xargs clang-format --dry-run -Werror || bad=1
  fi
  if command -v shellcheck >/dev/null; then
    sources '*.sh' .ci/run tools/build tools/deb tools/test tools/quickstart tools/reliability tools/bench/*/run \
      tests/fuzz/run tests/power/init tests/power/life tests/memory/script | xargs shellcheck -x -S warning || bad=1
  fi
  return $bad
}

leg_release() { run_ctest release release -L package; }

# By day a test runs in one build, or under both sanitizers. Here what a sanitizer is too slow for, or what it hides; by
# night everything.
leg_plain() {
  if [ -n "$CKPTD_NIGHTLY" ]; then run_ctest plain dev; return; fi
  run_ctest plain dev -L "$PLAIN|bounds" -LE night
}

leg_threads() { CKPTD_TEST_IO=threads run_ctest threads dev -L integration; }

leg_tsan() {
  local bytes="|bytes" once="-E ^client_device_one_queue_test$" status=0 suppressions
  [ -z "$CKPTD_NIGHTLY" ] || bytes="" once="" # the same threads a second time, with one queue of the device
  # UCX and protobuf are Debian's, and not instrumented: what they do themselves (protobuf: the first use of a type)
  # cannot be judged, what is done around it can. Where all users can read it, as trainers of other users must: a clone
  # in root's home is for root alone.
  suppressions=$(mktemp) && install -m 644 "$CKPTD_ROOT/tools/lib/tsan.supp" "$suppressions"
  export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 suppressions=$suppressions"
  # liburing maps and unmaps its rings by raw system calls that the sanitizer does not see: two rings that had the same
  # address one after the other look like a race. The crash tests are the plain leg's: they count kills, not races.
  export CKPTD_TEST_IO=threads GTEST_FILTER="-$ONE_THREAD"
  run_ctest tsan tsan -LE "$PLAIN|package|one_thread$bytes" $once || status=$?
  rm -f "$suppressions"
  return "$status"
}

leg_asan() {
  export ASAN_OPTIONS="detect_stack_use_after_return=1 strict_string_checks=1" UBSAN_OPTIONS="print_stacktrace=1"
  export CKPTD_KILLS=20 # of each kind: enough to run the code of a crash; the plain leg counts them
  if [ -n "$CKPTD_NIGHTLY" ]; then run_ctest asan asan -LE "package|network"; return; fi
  export GTEST_FILTER="-$MANY_NAMES"
  run_ctest asan asan -LE "$PLAIN|package"
}

# pytest over some of the Python tests: a name for its results, then what to run.
run_pytest() {
  local name=$1
  shift
  timeout -k 10 "$LEG_LIMIT" "$(torch_env_dir)/bin/python" -m pytest "$@" -q -rs -p no:cacheprovider \
    --disable-warnings --durations=10 -o junit_logging=all --junit-xml="$LOGS/python/pytest-$name.xml"
}

# Training loops use one core each: one worker a core, a file's tests on one of them; what measures time behind all others.
leg_python() {
  local most=0 alone=0
  torch_env_build || return 1
  cd "$CKPTD_ROOT" || return 1
  export CKPTD_BUILD="$CKPTD_ROOT/build/release" PYTHONPATH="$CKPTD_ROOT/client/python" PYTHONDONTWRITEBYTECODE=1
  run_pytest most tests/python --ignore=tests/python/test_overhead.py \
    -n "$(nproc)" --maxprocesses=8 --dist=loadfile || most=$?
  run_pytest alone tests/python/test_overhead.py || alone=$?
  return $((most | alone))
}

# Files to look at: all at night, else what changed since origin/main, or in the last commit when that is where we are,
# the newest change first.
tidy_files() {
  local base file
  base=${CKPTD_TIDY_BASE:-$(repo_git merge-base HEAD origin/main 2>/dev/null)}
  if [ -z "$base" ] || [ "$base" = "$(repo_git rev-parse HEAD)" ]; then base=HEAD~1; fi
  if [ -n "$CKPTD_NIGHTLY" ] || ! repo_git rev-parse -q --verify "$base^{commit}" >/dev/null; then
    sources '*.cc'
  else
    { repo_git diff --name-only -- '*.cc'; repo_git log --name-only --format= "$base.." -- '*.cc'; } | awk '!seen[$0]++' |
      while read -r file; do [ ! -e "$CKPTD_ROOT/$file" ] || echo "$file"; done
  fi
}

# Sources on stdin; what the tidy preset compiles them in, several of a room together, in their order.
compiled_units() {
  python3 "$CKPTD_ROOT/tools/lib/tidy_units.py" "$CKPTD_ROOT/build/tidy/compile_commands.json"
}

# What protoc writes is all that clang-tidy needs of a build.
generate_headers() {
  local headers
  cmake --preset tidy >/dev/null || return 1
  mapfile -t headers < <(ninja -C build/tidy -t targets all | sed -n 's|^\([^/].*\.pb\.h\): CUSTOM_COMMAND$|\1|p')
  ninja -C build/tidy "${headers[@]}"
}

# A day's changes fit into its time by day, a month's do not: what is not reached is told as skipped. None is at night.
leg_tidy() {
  local files left=$LOGS/tidy/left status=0
  has_version_14 tidy clang-tidy || return 0
  cd "$CKPTD_ROOT" && generate_headers || return 1
  mapfile -t files < <(tidy_files | compiled_units)
  echo "clang-tidy: ${#files[@]} units"
  [ ${#files[@]} -eq 0 ] && return 0
  local seconds=${CKPTD_NIGHTLY:+$LEG_LIMIT}
  printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" \
    bash "$CKPTD_ROOT/tools/lib/tidy_one.sh" "$(($(date +%s) + ${seconds:-$TIDY_LIMIT}))" "$left" || status=1
  [ ! -e "$left" ] || sort "$left" | sed 's|.*|<testcase name="&"><skipped message="not reached in '"$TIDY_LIMIT"' s"/></testcase>|' |
    sed '1i<testsuite>' | sed '$a</testsuite>' >"$LOGS/tidy/pytest-tidy.xml"
  return $status
}

# A process that is killed counts, one that became another user does not, nor one in a guest. Kills by the thousand add no
# line. The counters are mapped files: on a disk, everything that counts stands still while the disk is behind.
leg_coverage() {
  local status=0 raw
  raw=$(mktemp -d /dev/shm/counters-XXXXXX) && chmod 755 "$raw" || return 1
  LLVM_PROFILE_FILE="$raw/%m%c.profraw" CKPTD_KILLS=20 CKPTD_NIGHTLY='' CKPTD_STEPS=1000000 \
    run_ctest coverage coverage -LE "package|power" || status=1
  llvm-profdata merge -o "$LOGS/coverage/profile" "$raw"/*.profraw &&
    python3 "$CKPTD_ROOT/tools/lib/coverage.py" "$CKPTD_ROOT" "$LOGS/coverage/profile" || status=1
  rm -rf "$raw"
  return $status
}

# The Python environment is fetched while the compilers run.
prefetch_torch() {
  case " $* " in *" python "*) ;; *) return 0 ;; esac
  [ -e "$(torch_env_dir)/.complete" ] && return 0
  echo "Fetching torch from PyPI while the build runs (about 7 GB on disk)"
  torch_env_build >"$LOGS/torch.log" 2>&1 </dev/null &
  TORCH_JOB=$!
}

# Runs one leg in a subshell, adds its counts and remembers its row.
run_leg() {
  local leg=$1 start=$SECONDS took status=0 passed=0 failed=0 skipped=0
  mkdir -p "$LOGS/$leg/gtest"
  printf '%-9s ...' "$leg"
  if [ "$leg" = python ] && [ -n "${TORCH_JOB:-}" ]; then wait "$TORCH_JOB"; fi
  await_build "$leg" >"$LOGS/$leg/log" 2>&1 && ( "leg_$leg" ) >>"$LOGS/$leg/log" 2>&1 </dev/null || status=$?
  python3 "$CKPTD_ROOT/tools/lib/count.py" "$LOGS/$leg" >"$LOGS/$leg/counts" 2>>"$LOGS/$leg/log" || status=1
  read -r passed failed skipped <"$LOGS/$leg/counts"
  if [ "$status" != 0 ] && [ "${failed:-0}" = 0 ]; then failed=1; fi
  if [ "$status" = 0 ] && [ "${passed:-0}" = 0 ] && [ "${skipped:-0}" = 0 ]; then passed=1; fi # a leg that is one check
  PASSED=$((PASSED + ${passed:-0})) FAILED=$((FAILED + ${failed:-0})) SKIPPED=$((SKIPPED + ${skipped:-0}))
  took=$((SECONDS - start))
  printf ' %d passed, %d failed, %d skipped in %d s%s\n' "${passed:-0}" "${failed:-0}" "${skipped:-0}" "$took" \
    "$(cat "$LOGS/$leg/built" 2>/dev/null)"
  ROWS+=("$leg $took ${passed:-0} ${failed:-0} ${skipped:-0}")
  if [ "${failed:-0}" != 0 ]; then show_failure "$leg"; fi
}

show_failure() {
  echo "---- $1: the last lines of build/logs/$1/log"
  tail -n 40 "$LOGS/$1/log"
  [ ! -s "$LOGS/$1/failures" ] || cat "$LOGS/$1/failures"
  echo "----"
}

# The commit under test, and whether what runs is not quite that.
tested_commit() {
  printf '%s' "$(repo_git rev-parse --short=12 HEAD)"
  if repo_git status --porcelain | grep -qv ' tests/NIGHTLY.md$'; then
    printf ', with changes that are not committed'
  fi
}

# The night's result for people who come later: record_night FILE COMMIT_AT_BEGIN ARGUMENT...
record_night() {
  local file=$1 commit=$2
  shift 2
  [ "$(tested_commit)" = "$commit" ] || commit="$commit, and the sources changed during the run"
  if printf '%s\n' "${ROWS[@]}" | python3 "$CKPTD_ROOT/tools/lib/nightly.py" "$CKPTD_ROOT/$file" "$LOGS" "$commit" \
    "CKPTD_KILLS=$CKPTD_KILLS CKPTD_STEPS=$CKPTD_STEPS CKPTD_FUZZ_SECONDS=$CKPTD_FUZZ_SECONDS CKPTD_CUTS=$CKPTD_CUTS \
tools/test $*" "$SECONDS"; then
    printf '\nrecorded in %s\n' "$file"
  else
    echo "the record could not be written: $file"
    FAILED=$((FAILED + 1))
  fi
}

print_table() {
  local row leg
  echo
  printf '%-9s %8s %8s %8s %8s\n' leg seconds passed failed skipped
  for row in "${ROWS[@]}"; do
    read -r -a row <<<"$row"
    printf '%-9s %8s %8s %8s %8s\n' "${row[@]}"
  done
  echo "all in $SECONDS s; logs in build/logs"
  for leg in "$LOGS"/*/counts; do
    tail -n +2 "$leg" | sed "s/^/  $(basename "$(dirname "$leg")"): /"
  done
  echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
  [ "$FAILED" = 0 ]
}
