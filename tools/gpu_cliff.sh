#!/bin/sh
# SPDX-License-Identifier: MIT
#
# gpu_cliff.sh FOLDER [SHAPE...]: on a machine with a GPU, builds the cliff bench and measures the curves
# of both shapes (qwen14b, gemma-a4b) into FOLDER: <shape>.txt, .json and .svg; with a slowed link
# <shape>-<link>gbs. The last lines are a short table of each.
#
# Environment:
#   CLIFF_BUILD      build folder; build-cliff
#   CLIFF_LINKS      link speeds in GB/s, "full" for the link as it is; full
#   CLIFF_POINTS     points of the full link (rollkv-bench cliff --help)
#   CLIFF_SLOW_POINTS  points of slowed links; 0.5,0.9,1,1.1,1.5,2,4
#   CLIFF_STEPS      measured steps a point; 24
#   CLIFF_OPTIONS    further options of rollkv-bench cliff
#   CLIFF_COMMIT     what to note as the commit, where there is no git
#   CLIFF_TIMEOUT    seconds for each curve; 200
#   GPU_ARCHS        compute capabilities to build for; 90
set -u
[ $# -ge 1 ] || { sed -n '4,18s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
shapes=${*:-qwen14b gemma-a4b}
cd "$(dirname "$0")/.." || exit 1
build=${CLIFF_BUILD:-build-cliff}
PATH=$PATH:/usr/local/cuda/bin
export PATH

start=$(date +%s)
say() { echo "== $(($(date +%s) - start)) s: $*"; }

mkdir -p "$build"
say build
meson=meson
command -v meson >/dev/null 2>&1 || meson="python3 -m mesonbuild.mesonmain"
set -- -Dcuda=enabled "-Dgpu_archs=${GPU_ARCHS:-90}" -Dgpu_variants=f16_f16_d128,f16_f16_d256,f16_f16_d512 \
    -Dbuildtype=release -Dtests=disabled -Dexamples=disabled
if [ -f "$build/build.ninja" ]; then
    $meson configure "$build" "$@" >"$build/setup.log" 2>&1
else
    $meson setup "$build" "$@" >"$build/setup.log" 2>&1
fi || { tail -n 30 "$build/setup.log"; exit 1; }
ninja -C "$build" bench/rollkv-bench >"$build/build.log" 2>&1 || {
    grep -E -A 12 'FAILED|error' "$build/build.log" | head -n 60
    exit 1
}

# curve NAME OPTIONS...: its files, and its summary kept for the end.
failed=0
summary=
curve() {
    name=$1
    shift
    say "$name"
    if timeout "${CLIFF_TIMEOUT:-200}" "$build/bench/rollkv-bench" cliff --executor cuda "$@" \
        ${CLIFF_STEPS:+--steps "$CLIFF_STEPS"} ${CLIFF_COMMIT:+--commit "$CLIFF_COMMIT"} ${CLIFF_OPTIONS:-} \
        --json "$out/$name.json" --svg "$out/$name.svg" >"$out/$name.txt" 2>"$build/$name.err"; then
        cat "$out/$name.txt"
        summary="$summary $name"
    else
        tail -n 5 "$build/$name.err" | tr '\r' '\n' | tail -n 5
        rm -f "$out/$name.txt"
        failed=$((failed + 1))
    fi
}

for link in ${CLIFF_LINKS:-full}; do
    for shape in $shapes; do
        if [ "$link" = full ]; then
            curve "$shape" --shape "$shape" ${CLIFF_POINTS:+--points "$CLIFF_POINTS"}
        else
            curve "$shape-${link}gbs" --shape "$shape" --link-gbs "$link" \
                --points "${CLIFF_SLOW_POINTS:-0.5,0.9,1,1.1,1.5,2,4}"
        fi
    done
done

say "done"
for name in $summary; do # from the short table on
    echo
    awk '/ring at most/ { on = 1 } on' "$out/$name.txt"
done
[ "$failed" -eq 0 ] && [ -n "$summary" ]
