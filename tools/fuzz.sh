#!/bin/sh
# SPDX-License-Identifier: MIT
#
# tools/fuzz.sh [SECONDS [NAME...]]: runs the fuzzers (api, state; both without NAME) for so long each, 60
# unless said otherwise, with ASan and UBSan. Needs clang. Starts from tests/fuzz/corpus/NAME; new inputs go
# to build/fuzz/NAME, findings to build/fuzz/NAME-*. The last lines report executions and covered edges; the
# exit status is 1 when something was found. ROLLKV_FUZZ_BUILD is the build folder (build/fuzz).
#
#   tools/fuzz.sh --keep    afterwards: keeps the inputs in tests/fuzz/corpus that add coverage, up to 512
#                           bytes each, those that AFL++ found among them
#   tools/fuzz.sh --afl [SECONDS [NAME...]]   the same with AFL++, in build/fuzz-afl; its inputs go to
#                           build/fuzz-afl/NAME/default/queue, findings to .../crashes and .../hangs
set -eu
cd "$(dirname "$0")/.."
keep='' afl=''
case ${1:-} in
--keep) keep=yes ;;
--afl) afl=-afl CC=afl-clang-fast ;;
esac
[ -z "$keep$afl" ] || shift
compiler=${CC:-clang}
command -v "$compiler" >/dev/null 2>&1 || { echo "no $compiler here"; exit 77; }
build=${ROLLKV_FUZZ_BUILD:-build/fuzz}$afl
seconds=${1:-60}
[ $# = 0 ] || shift
[ $# -gt 0 ] || set -- api state

# no-link: the library is instrumented, and only the fuzzers get libFuzzer's main. Adding 0 to a null
# pointer (an empty list) is no finding.
[ -f "$build/build.ninja" ] || CC=$compiler meson setup "$build" -Dfuzz=true -Dtests=disabled -Dbench=disabled \
    -Dexamples=disabled -Db_sanitize=address,undefined -Db_lundef=false \
    -Dc_args="-fsanitize=fuzzer-no-link -fno-sanitize-recover=all -fno-sanitize=pointer-overflow" >/dev/null
ninja -C "$build" -j "$(nproc)" >/dev/null

failed=0
for name; do
    mkdir -p "$build/$name"
    if [ -n "$keep" ]; then
        # shellcheck disable=SC2046 # a folder or nothing
        "$build/tests/fuzz/fuzz_$name" -merge=1 -max_len=512 "tests/fuzz/corpus/$name" "$build/$name" \
            $(find "$build-afl/$name/default/queue" -maxdepth 0 2>/dev/null) >"$build/$name.log" 2>&1
        continue
    fi
    if [ -n "$afl" ]; then
        # Sanitizers map terabytes; the machine's governor and core pattern are its owner's.
        AFL_NO_UI=1 AFL_AUTORESUME=1 AFL_SKIP_CPUFREQ=1 AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES=1 \
            afl-fuzz -V "$seconds" -m none -t 20000 -i "tests/fuzz/corpus/$name" -o "$build/$name" \
            -- "$build/tests/fuzz/fuzz_$name" >"$build/$name.log" 2>&1 || { failed=1; tail -n 20 "$build/$name.log"; }
        sed -n 's/^\(execs_done\|edges_found\|total_edges\|corpus_count\|saved_crashes\|saved_hangs\) *: /\1 /p' \
            "$build/$name/default/fuzzer_stats" | tr '\n' ' ' | sed "s/^/$name: /; s/ $/\n/"
        [ -z "$(find "$build/$name/default/crashes" -name 'id*')" ] || failed=1
        continue
    fi
    "$build/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$build/$name-" -max_len=2048 -len_control=20 "$build/$name" "tests/fuzz/corpus/$name" \
        >"$build/$name.log" 2>&1 || {
        failed=1
        tail -n 40 "$build/$name.log"
    }
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log")
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$build/$name.log" | tail -n 1)
    echo "$name: ${executions:-?} executions, ${edges:-?} covered edges, corpus of $(find "$build/$name" -type f | wc -l)"
done
exit $failed
