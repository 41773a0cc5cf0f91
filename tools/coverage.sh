#!/bin/sh
# SPDX-License-Identifier: MIT
#
# tools/coverage.sh [TEST...]: lines and branches of the library's C code that the quick tests (or the named
# ones) reach, by file; needs clang and llvm. The build folder is build/coverage (ROLLKV_COVERAGE_BUILD).
#
# tools/coverage.sh --missing   afterwards: the lines that were not reached. docs/coverage.md says why.
set -eu
cd "$(dirname "$0")/.."
build=${ROLLKV_COVERAGE_BUILD:-build/coverage}
find_tool() {
    for name in "$1" "$1-14" "$1-15" "$1-16" "$1-17" "$1-18" "/usr/lib/llvm-14/bin/$1"; do
        command -v "$name" && return 0
    done
    echo "no $1 here" >&2
    exit 77
}
profdata=$(find_tool llvm-profdata)
cov=$(find_tool llvm-cov)
others='(tests|device_check|device_sim|device_poison)'
if [ "${1:-}" = --missing ]; then
    "$cov" export "$build/src/librollkv.so" -object "$build/tests/test_ops_bits" -instr-profile="$build/all.profdata" \
        -ignore-filename-regex="$others" -format=lcov | awk -F '[:,]' -v build="$build/" '
        /^SF:/ { file = substr($0, 4); split("", text); n = 0
                 if (file !~ /^\//) file = build file
                 while ((getline line < file) > 0) text[++n] = line
                 close(file); sub(".*/", "", file) }
        /^DA:/ && $3 == 0 { print file ":" $2 ": " text[$2] }'
    exit 0
fi
[ -f "$build/build.ninja" ] || CC=${CC:-clang} meson setup "$build" -Dbuildtype=debugoptimized -Dbench=disabled \
    -Dexamples=disabled -Db_lundef=false -Dc_args="-fprofile-instr-generate -fcoverage-mapping" \
    -Dc_link_args="-fprofile-instr-generate" >/dev/null
ninja -C "$build" >/dev/null
rm -rf "$build/profiles"
suite="--suite quick"
[ $# = 0 ] || suite=
# shellcheck disable=SC2086 # two words
LLVM_PROFILE_FILE="$(cd "$build" && pwd)/profiles/%p-%m.profraw" meson test -C "$build" --no-rebuild --timeout-multiplier 4 \
    $suite "$@" >"$build/tests.log" 2>&1 || tail -n 20 "$build/tests.log"
"$profdata" merge -sparse "$build"/profiles/*.profraw -o "$build/all.profdata"
"$cov" report "$build/src/librollkv.so" -object "$build/tests/test_ops_bits" -instr-profile="$build/all.profdata" \
    -ignore-filename-regex="$others" 2>/dev/null | cut -c1-250
