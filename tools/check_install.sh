#!/bin/sh
# SPDX-License-Identifier: MIT
#
# check_install.sh BUILD: installs the library into a folder apart, then builds tests/consumer, a
# project apart that finds it through pkg-config, against the shared and against the static library,
# and runs it.
set -eu
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# With its paths looked up below the folder (sysroot), the build's own prefix need not be changed.
DESTDIR=$work/root meson install -C "$build" --no-rebuild --quiet
pc=$(find "$work/root" -name rollkv.pc)
lib=$(dirname "$(find "$work/root" -name librollkv.so)")
export PKG_CONFIG_SYSROOT_DIR="$work/root" PKG_CONFIG_PATH="${pc%/*}" LD_LIBRARY_PATH="$lib"
[ "$(pkg-config --modversion rollkv)" = "$(tools/read_version.sh version)" ]
for kind in shared static; do
    if ! { meson setup "$work/$kind" tests/consumer "-Ddefault_library=$kind" &&
        ninja -C "$work/$kind"; } >"$work/log" 2>&1; then
        cat "$work/log" >&2
        exit 1
    fi
    echo "$kind: $("$work/$kind/consumer")"
done
# The README's program, by the compiler line that pkg-config gives.
if [ -f examples/minimal.c ]; then
    # shellcheck disable=SC2046 # a list of options
    cc -std=c99 -o "$work/minimal" examples/minimal.c $(pkg-config --cflags --libs rollkv) -lm
    "$work/minimal" >/dev/null
    echo "minimal: ran"
fi
# That the one needs the shared library by its SONAME, and the other does not need it.
soname=librollkv.so.$(tools/read_version.sh abi)
objdump -p "$work/shared/consumer" | grep -q "NEEDED *$soname\$"
if objdump -p "$work/static/consumer" | grep "NEEDED.*librollkv"; then
    echo "the static build still needs the shared library" >&2
    exit 1
fi
