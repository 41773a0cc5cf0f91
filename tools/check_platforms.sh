#!/bin/sh
# SPDX-License-Identifier: MIT
#
# check_platforms.sh: systems and processors that the library is not for are refused at configure time, with a
# sentence that names them. They are pretended: nothing is compiled.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# refused SYSTEM CPU_FAMILY
refused() {
    cat >"$work/cross.ini" <<END
[binaries]
c = 'cc'
ar = 'ar'
[properties]
needs_exe_wrapper = true
[host_machine]
system = '$1'
cpu_family = '$2'
cpu = '$2'
endian = 'little'
END
    if meson setup "$work/$1-$2" . --cross-file "$work/cross.ini" -Dtests=disabled >"$work/log" 2>&1; then
        echo "$1 on $2 was not refused" >&2
        exit 1
    fi
    grep "librollkv is for Linux on x86-64 and aarch64, not for $1 on $2" "$work/log" || {
        tail -n 5 "$work/log" >&2
        exit 1
    }
}

refused linux riscv64
refused linux x86
refused darwin aarch64
refused freebsd x86_64
