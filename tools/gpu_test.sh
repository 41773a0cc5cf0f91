#!/bin/sh
# SPDX-License-Identifier: MIT
# gpu_test.sh [BUILD]: on a machine with a GPU, builds with CUDA, runs the GPU tests, then the short ones
# among them under compute-sanitizer, and prints a summary; its last line counts passes.
#
# Environment:
#   GPU_ARCHS      compute capabilities to build for; 90
#   GPU_VARIANTS   attention kernels to build (src/cuda/meson.build); empty: all
#   GPU_TESTS      which tests, by name; empty: all
#   GPU_SANITIZE   tools of compute-sanitizer; "memcheck", "" for none
#   GPU_REPORT     folder for the log and junit; BUILD/gpu
#   CARRY          folder with Debian packages of libcmocka and libxxhash-dev, for machines without; .carry
set -u
cd "$(dirname "$0")/.."
build=${1:-build-gpu}
archs=${GPU_ARCHS:-90}
sanitize=${GPU_SANITIZE-memcheck}
carry=${CARRY:-.carry}
report=${GPU_REPORT:-$build/gpu}
mkdir -p "$build" "$report"
PATH=$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer
export PATH

# CMocka from carried packages, in a folder of the build's own.
if ls "$carry"/libcmocka*.deb >/dev/null 2>&1; then
    prefix=$(mkdir -p "$build/prefix" && cd "$build/prefix" && pwd)
    for deb in "$carry"/*.deb; do
        dpkg -x "$deb" "$prefix"
    done
    lib=$(dirname "$(find "$prefix" -name 'libcmocka.so.0' | head -n 1)")
    sed -i "s|^prefix=.*|prefix=$prefix/usr|; s|=/usr/|=$prefix/usr/|; s|-L/usr/|-L$prefix/usr/|; s|-I/usr/|-I$prefix/usr/|" \
        "$lib/pkgconfig/cmocka.pc"
    PKG_CONFIG_PATH=$lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    CMAKE_PREFIX_PATH=$prefix/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
    LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    LIBRARY_PATH=$lib${LIBRARY_PATH:+:$LIBRARY_PATH}
    CPATH=$prefix/usr/include${CPATH:+:$CPATH}
    export PKG_CONFIG_PATH CMAKE_PREFIX_PATH LD_LIBRARY_PATH LIBRARY_PATH CPATH
    # Where there is no pkg-config, one that knows CMocka alone.
    if ! command -v pkg-config >/dev/null 2>&1; then
        cat >"$prefix/pkg-config" <<EOF
#!/bin/sh
case " \$* " in
*" --version "*) echo 0.29.2 ;;
*" cmocka "*)
    case " \$* " in
    *" --modversion "*) echo 1.1.5 ;;
    *" --cflags "*) echo "-I$prefix/usr/include" ;;
    *" --libs "*) echo "-L$lib -lcmocka" ;;
    esac
    ;;
*) exit 1 ;;
esac
EOF
        chmod +x "$prefix/pkg-config"
        PKG_CONFIG=$prefix/pkg-config
        export PKG_CONFIG
    fi
fi

echo "== build"
start=$(date +%s)
meson=meson
command -v meson >/dev/null 2>&1 || meson="python3 -m mesonbuild.mesonmain"
set -- -Dcuda=enabled "-Dgpu_archs=$archs" "-Dgpu_variants=${GPU_VARIANTS:-}" -Dtests=enabled -Dexamples=disabled
if [ -f "$build/build.ninja" ]; then
    $meson configure "$build" "$@" >"$report/setup.log" 2>&1
else
    $meson setup "$build" "$@" >"$report/setup.log" 2>&1
fi || {
    tail -n 30 "$report/setup.log"
    echo "0 passed: configuring failed"
    exit 1
}
all=$(ls tests/test_cuda_*.c | sed 's|tests/test_||; s|\.c$||')
tests=${GPU_TESTS:-$all}
targets=
for t in $tests; do
    targets="$targets tests/test_$t"
done
ninja -C "$build" $targets >"$report/build.log" 2>&1 || {
    grep -E -A 12 'FAILED|error' "$report/build.log" | head -n 60
    echo "0 passed: building failed"
    exit 1
}
grep -i warning "$report/build.log" | head -n 10
echo "built in $(($(date +%s) - start)) s"
nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader 2>/dev/null

# run NAME COMMAND...: one line of result, the output's end where it failed.
n_pass=0 n_fail=0 n_skip=0
run() {
    name=$1
    shift
    start=$(date +%s)
    timeout "${GPU_TIMEOUT:-280}" "$@" >"$report/$name.log" 2>&1
    rc=$?
    took=$(($(date +%s) - start))
    case $rc in
    0) n_pass=$((n_pass + 1)) result=pass ;;
    77) n_skip=$((n_skip + 1)) result=skip ;;
    *) n_fail=$((n_fail + 1)) result="FAIL (exit $rc)" ;;
    esac
    printf '%-32s %-14s %4d s\n' "$name" "$result" "$took"
    [ "$rc" -eq 0 ] || tail -n 25 "$report/$name.log"
}

echo "== tests"
for t in $tests; do
    run "$t" "$build/tests/test_$t"
done

# Short ones; never the one that faults on purpose.
if [ -n "$sanitize" ] && ! command -v compute-sanitizer >/dev/null 2>&1; then
    echo "compute-sanitizer is not here"
    sanitize=
fi
for tool in $sanitize; do
    echo "== compute-sanitizer $tool"
    for t in ${GPU_SANITIZE_TESTS:-cuda_ops_merge cuda_ops_store}; do
        case " $(echo $tests) " in
        *" $t "*) ;;
        *) continue ;;
        esac
        run "$t.$tool" compute-sanitizer --tool "$tool" --error-exitcode 99 --print-limit 10 "$build/tests/test_$t"
    done
done

grep -h 'from the host' "$report"/cuda_bits.log 2>/dev/null
echo "$n_pass passed, $n_fail failed, $n_skip skipped"
[ "$n_fail" -eq 0 ] && [ "$n_pass" -gt 0 ]
