#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Installs what is missing, builds, and runs all tests: the whole suite on a plain build, the quick
# tests under ASan and UBSan, the threaded ones under TSan and in a Clang build, and the checks of
# layers, headers, symbols, ABI and installation.
#
#   tools/test.sh            what CI runs
#   tools/test.sh --full     also the long tests (full products of settings, sizes beyond 4 GiB), clang-tidy's
#                            analyzer, a build with CUDA 12, and one for aarch64 under qemu
#
# The last line counts cases: 'N passed, N failed, N skipped'. The exit status is 0 when something ran
# and nothing failed.
set -eu
cd "$(dirname "$0")/.."

full=
for argument in "$@"; do
    case $argument in
    --full) full=yes ;;
    *)
        sed -n '3,13s/^# \{0,1\}//p' "$0"
        [ "$argument" = --help ] && exit 0
        exit 2 ;;
    esac
done

tools/setup.sh

logs=build/logs
mkdir -p $logs
passed=0 failed=0 skipped=0
summary=$logs/summary
: >$summary
start=$(date +%s)

say() { echo "== $(($(date +%s) - start)) s: $*"; }

# note RESULT NAME [REASON]: counts one check.
note() {
    case $1 in
    passed) passed=$((passed + 1)) ;;
    failed) failed=$((failed + 1)) ;;
    skipped) skipped=$((skipped + 1)) ;;
    esac
    [ "$1" = passed ] || echo "$1: $2${3:+: $3}" >>$summary
}

# check NAME COMMAND...: one check, by exit status; 77 is a skip. Its output is shown as it comes.
check() {
    name=$1
    shift
    say "$name"
    status=0
    "$@" >"$logs/$name.log" 2>&1 || status=$?
    cat "$logs/$name.log"
    case $status in
    0) note passed "$name" ;;
    77) note skipped "$name" "$(tail -n 1 "$logs/$name.log")" ;;
    *) note failed "$name" "see $logs/$name.log" ;;
    esac
}

# configure_and_build FOLDER OPTION...: leaves an existing build folder's settings as they are asked for.
# Builds $targets, or all.
targets=
configure_and_build() {
    folder=$1
    shift
    say "building $folder"
    if [ -f "$folder/build.ninja" ]; then
        meson configure "$folder" "$@" >"$logs/configure.log" 2>&1
    else
        meson setup "$folder" "$@" >"$logs/configure.log" 2>&1
    fi || {
        cat "$logs/configure.log"
        note failed "$folder" "does not configure"
        return 1
    }
    # shellcheck disable=SC2086 # names of targets
    ninja -C "$folder" $targets || {
        note failed "$folder" "does not build"
        return 1
    }
}

# run_tests FOLDER OPTION...: meson test, behind $prefix if that is set; counts what its log says.
prefix=
run_tests() {
    folder=$1
    shift
    say "tests in $folder"
    rm -f "$folder/meson-logs/testlog.json"
    # shellcheck disable=SC2086 # a command and its option
    $prefix meson test -C "$folder" --no-rebuild --print-errorlogs "$@" || true
    if [ ! -s "$folder/meson-logs/testlog.json" ]; then
        note failed "$folder" "ran no test"
        return 0
    fi
    tools/count_tests.py "$folder/meson-logs/testlog.json" >"$logs/count"
    read -r p f s <"$logs/count"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    sed -n "2,\$s,^\([a-z]*\): ,\1: $folder: ,p" "$logs/count" >>$summary
}

# CUDA's kernels run on the CPU: decode's ways to lay out a leaf, types with and without scales.
test_plain() {
    configure_and_build build/gcc --buildtype=debugoptimized --werror -Demulation=enabled \
        -Dgpu_variants=f16_f16_d64,q4_0_q4_0_d64,fp8_fp8_d80,bf16_q8_0_d128 || return 0
    if [ -n "$full" ]; then
        run_tests build/gcc
    else
        run_tests build/gcc --no-suite long
    fi
    check symbols tools/check_symbols.sh build/gcc
    check abi tools/check_abi.sh build/gcc
    check install tools/check_install.sh build/gcc
    if [ -n "$full" ]; then
        check static tools/check_static.sh --tidy build/gcc
    else
        check static tools/check_static.sh build/gcc
    fi
}

test_asan() {
    bulk='--no-suite bulk'
    [ -z "$full" ] || bulk=
    # A sanitizer's first report ends the program, so that a test can't pass with one.
    # Its code at -O1 looks to the compiler as if variables were used unset.
    configure_and_build build/asan --debug --optimization=1 --werror \
        -Db_sanitize=address,undefined -Db_lundef=false \
        '-Dc_args=-fno-sanitize-recover=all -Wno-maybe-uninitialized' || return 0
    # shellcheck disable=SC2086 # an option and its value
    ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
        run_tests build/asan --suite quick $bulk --timeout-multiplier 4
}

# Prints the command prefix that lets TSan programs start here, or fails. Kernels that place mappings
# with more random bits than the compiler's run-time library expects need them fixed.
tsan_prefix() {
    echo 'int main(void) { return 0; }' >$logs/tsan.c
    cc -fsanitize=thread -o $logs/tsan $logs/tsan.c 2>/dev/null || return 1
    if $logs/tsan 2>/dev/null; then
        echo env
    elif setarch -R $logs/tsan 2>/dev/null; then
        echo setarch -R
    else
        return 1
    fi
}

test_tsan() {
    prefix=$(tsan_prefix) || {
        note skipped build/tsan "programs built with -fsanitize=thread do not start here"
        return 0
    }
    # Without OpenBLAS: it is not instrumented, and its threads would be reported.
    configure_and_build build/tsan --debug --optimization=1 --werror -Db_sanitize=thread \
        -Db_lundef=false -Dopenblas=disabled -Dbench=disabled -Dexamples=disabled || return 0
    long=
    [ -z "$full" ] || long='--suite tsan_long'
    # shellcheck disable=SC2086 # an option and its value
    TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 \
        run_tests build/tsan --suite tsan $long --timeout-multiplier 10
    prefix=
}

test_clang() {
    command -v clang >/dev/null 2>&1 || {
        note skipped build/clang "no clang here"
        return 0
    }
    CC=clang configure_and_build build/clang --buildtype=debugoptimized --werror || return 0
    if [ -n "$full" ]; then
        run_tests build/clang --suite quick
    else # the fake CUDA runtime is not in the plain build, whose kernels are the emulation's
        run_tests build/clang --suite tsan --suite tsan_long --suite fake
    fi
}

# The CUDA code: compiled for one architecture, a kernel of each kind; with --full all of them. GPU tests
# run where there is a GPU, else they show as skipped.
test_cuda() {
    if ! command -v nvcc >/dev/null 2>&1 && ! [ -x /usr/local/cuda/bin/nvcc ]; then
        note skipped build/cuda "no nvcc here"
        return 0
    fi
    archs=90 variants=f16_f16_d128,fp8_fp8_d80,q8_0_q4_0_d192_128,f16_q8_0_d512
    if [ -n "$full" ]; then
        archs=80,86,89,90,100,120 variants=
    fi
    # With NVTX's ranges, where the toolkit has its headers in the usual place.
    nvtx=disabled
    [ ! -f /usr/local/cuda/include/nvtx3/nvToolsExt.h ] || nvtx=enabled
    # Host programs were built above.
    targets=$(ls tests/test_cuda_*.c tests/test_generate_cuda.c | sed 's/\.c$//')
    targets="$targets bench/rollkv-bench bench/bench_cuda_attend src/librollkv.so.$(tools/read_version.sh version)"
    configure_and_build build/cuda --buildtype=debugoptimized --werror -Dcuda=enabled \
        -Dgpu_archs="$archs" -Dgpu_variants="$variants" -Dopenblas=disabled -Dnvtx=$nvtx || return 0
    targets=
    run_tests build/cuda --suite gpu
    check cuda_symbols tools/check_symbols.sh build/cuda
    check cuda_static tools/check_static.sh build/cuda src/cuda/*.c
}

# Tests of the example engine read a real model; without one they skip.
say model
if ROLLKV_MODEL=$(tools/fetch_model.sh); then
    export ROLLKV_MODEL
else
    echo "model: not to be had; the tests that need it are skipped"
fi

check layers tools/check_layers.py
check layers_found tools/check_layers.py --self-test
check docs tools/check_docs.py
check platforms tools/check_platforms.sh
check headers tools/check_headers.sh
test_plain
test_asan
test_tsan
test_clang
test_cuda
if [ -n "$full" ]; then
    check cuda12 tools/check_cuda12.sh
    check aarch64 tools/check_aarch64.sh
fi

say "done"
cat $summary
if [ $((passed + failed)) = 0 ]; then
    echo "nothing ran"
    failed=1
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
