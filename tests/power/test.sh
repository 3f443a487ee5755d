#!/usr/bin/env bash
# test.sh SOURCE BUILD: a few power cuts, two of each file system, after one protection was taken away and missed.
# With this seed the first cut of each file system falls just after a step was acknowledged. At night (CKPTD_NIGHTLY)
# $CKPTD_CUTS of them, and all protections. Exit 77 = skipped: the last line says why.
set -u
SOURCE=$1 BUILD=$2
if [ -z "${CKPTD_NIGHTLY:-}" ]; then
  exec python3 -B "$SOURCE/tests/power/run" --build "$BUILD" --cuts 6 --chain 2 --prove 1 --seed 46
fi
night=$(date +%F)
exec python3 -B "$SOURCE/tests/power/run" --build "$BUILD" --cuts "${CKPTD_CUTS:-3000}" --guests 2 --prove 9 \
  --seed "$night" --record "$BUILD/power-cuts-$night.jsonl" --keep "$BUILD/power-lost"
