#!/bin/sh
# SPDX-License-Identifier: MIT
#
# gpu_sizing.sh [--executor NAME] [BUILD] [FOLDER]: on a machine with a GPU, the ring's size by the library's rule
# against a sweep: the cliff bench of BUILD (build) at both shapes, over the link as it is and slowed, with the ring by
# the rule and of several sizes. Writes for each shape and link a JSON file and what was printed into FOLDER (sizing),
# then a table, and for each how far the rule is from the best ring. With --executor sim in virtual time, without a GPU.
#
# Environment:
#   SIZING_SHAPES    shapes; qwen14b gemma-a4b
#   SIZING_LINKS     GB/s, 0 for the link as it is; 0 25 6.4
#   SIZING_RINGS     MB, 0 for the rule's; 0 16 32 64 128 256
#   SIZING_COMMIT    what to note as the commit, where the build does not know it
#   SIZING_TIMEOUT   seconds for each shape and link; 300
set -u
executor=cuda
build='' folder=''
while [ $# -gt 0 ]; do
    case $1 in
    --executor)
        [ $# -ge 2 ] || { echo "gpu_sizing.sh: --executor needs a name" >&2; exit 2; }
        executor=$2
        shift ;;
    --executor=*) executor=${1#*=} ;;
    -h | --help) sed -n '4,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "gpu_sizing.sh: '$1' is no option; see --help" >&2; exit 2 ;;
    *)
        if [ -z "$build" ]; then build=$1; elif [ -z "$folder" ]; then folder=$1; else
            echo "gpu_sizing.sh: '$1' is one argument too many; see --help" >&2
            exit 2
        fi ;;
    esac
    shift
done
build=${build:-build} folder=${folder:-sizing}
bench=$build/bench/rollkv-bench
rings=$(echo "${SIZING_RINGS:-0 16 32 64 128 256}" | tr ' ' ,)
[ -x "$bench" ] || { echo "gpu_sizing.sh: there is no $bench" >&2; exit 2; }
mkdir -p "$folder" || exit 1

# run SHAPE LINK: one cliff, of few points, with all rings.
failed=0
files=''
run() {
    name=$1-link$2
    link=$2
    set -- --shape "$1" --ring-mb "$rings" --points 0.75,1,1.25,2 --steps 6
    [ "$link" = 0 ] || set -- "$@" --link-gbs "$link"
    # A tile of 256 cells on all sites of qwen14b is more than this link brings within a step.
    case $name in qwen14b-link6.4) set -- "$@" --tile-cells 64 ;; esac
    [ "$executor" != cuda ] || set -- "$@" --no-op-level --tail-gib 1
    printf '\r%-40s' "$name" >&2
    if timeout "${SIZING_TIMEOUT:-300}" "$bench" cliff --executor "$executor" "$@" \
        ${SIZING_COMMIT:+--commit "$SIZING_COMMIT"} --json "$folder/$name.json" >"$folder/$name.txt" 2>"$folder/$name.err"; then
        files="$files $folder/$name.json"
        rm -f "$folder/$name.err"
    else
        printf '\r%s: ' "$name" >&2
        tr '\r' '\n' <"$folder/$name.err" | tail -n 1 >&2
        rm -f "$folder/$name.json"
        failed=$((failed + 1))
    fi
}

for shape in ${SIZING_SHAPES:-qwen14b gemma-a4b}; do
    for link in ${SIZING_LINKS:-0 25 6.4}; do
        run "$shape" "$link"
    done
done
printf '\r%-40s\r' '' >&2
[ -n "$files" ] || { echo "gpu_sizing.sh: nothing was measured" >&2; exit 1; }

# shellcheck disable=SC2086
python3 - "$rings" $files <<'PYTHON'
import json
import sys

asked = [float(x) for x in sys.argv[1].split(",")]
rings = {}  # file -> [(ring as asked, curve)]
for path in sys.argv[2:]:
    with open(path, encoding="utf-8") as f:
        curves = json.load(f)
    for ring, curve in zip(asked, curves if isinstance(curves, list) else [curves]):
        rings.setdefault(path, []).append((ring, curve))


def over(row):
    return row["ring"]["step_ns"] / row["bound_ns"]


def at(curve, point):
    return next(over(row) for row in curve["rows"] if point in row["points_asked"])


print(f"{'shape':<10} {'link GB/s':>9} {'ring MB':>12} {'tail MB':>8} {'resident ms':>12} {'ring ms':>9} {'over the bound':>15}")
for curves in rings.values():
    for ring, curve in curves:
        size = f"{curve['settings']['ring_bytes'] * 1e-6:.1f}" + (" (rule)" if not ring else "")
        for row in curve["rows"]:
            print(f"{curve['settings']['shape']:<10} {curve['link_bytes_per_s'] * 1e-9:9.2f} {size:>12} {row['ring']['tail_bytes'] * 1e-6:8.1f} "
                  f"{row['resident']['step_ns'] * 1e-6:12.3f} {row['ring']['step_ns'] * 1e-6:9.3f} {over(row):15.3f}")

print("\nthe rule against the best of the rings at each point, both over their bounds")
for curves in rings.values():
    rule = next((c for ring, c in curves if not ring), None)
    others = [c for ring, c in curves if ring]
    if not rule or not others:
        continue
    off = []
    for point in rule["settings"]["points"]:
        best = min(others, key=lambda c: at(c, point))
        off.append((at(rule, point) / at(best, point) - 1, point, best["settings"]["ring_bytes"] * 1e-6))
    most = max(off)
    each = ", ".join(f"{100 * o:+.1f} % at {p:g}" for o, p, _ in off)
    print(f"{rule['settings']['shape']} at {rule['link_bytes_per_s'] * 1e-9:.2f} GB/s: {each}; at most {100 * most[0]:.1f} %, where "
          f"{most[2]:.0f} MB is best and the rule's {rule['settings']['ring_bytes'] * 1e-6:.1f}")
PYTHON
status=$?
[ $failed -eq 0 ] || echo "$failed runs failed"
[ $status -eq 0 ] && [ $failed -eq 0 ]
