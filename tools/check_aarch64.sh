#!/bin/sh
# SPDX-License-Identifier: MIT
#
# check_aarch64.sh [TEST...]: builds library, tests, benches and examples for aarch64, warnings as errors, and runs
# tests: on an aarch64 machine the quick ones, elsewhere those in qemu's user mode that don't take it too long
# (or the ones named).
#
# Elsewhere it needs a cross compiler and qemu, and installs them where it may: they add to a system and change
# nothing of it. CMocka and xxHash come from Debian's packages for arm64, unpacked in build/aarch64.
# Exit status 77: no compiler or no qemu here.
set -eu
cd "$(dirname "$0")/.."
folder=build/aarch64
mkdir -p $folder
here=$(cd $folder && pwd)
build=$folder/build
qemu_tests='diag pool tile seq seq_shift seq_share ring plan geometry config estimate struct_sizes cache ops_math
    ops_store ops_merge ops_turn ops_bits profile cells device_sim arena'

none() {
    echo "aarch64: $1"
    exit 77
}

# apt-get with lists of its own, for arm64: nothing of this system changes.
apt() {
    apt-get -qq -o Dir::State="$here/apt" -o Dir::State::status="$here/apt/status" -o Dir::Cache="$here/apt/cache" \
        -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root "$@"
}

install_tools() {
    command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 && command -v qemu-aarch64 >/dev/null 2>&1 && return 0
    command -v apt-get >/dev/null 2>&1 || none "no cross compiler or qemu, and no apt-get"
    [ "$(id -u)" = 0 ] || none "needs gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends gcc-aarch64-linux-gnu \
        libc6-dev-arm64-cross qemu-user >$folder/install.log 2>&1 || none "see $folder/install.log"
}

fetch_libraries() {
    [ -d "$here/root" ] && return 0
    mkdir -p "$here/apt/lists/partial" "$here/apt/cache/archives/partial"
    : >"$here/apt/status"
    apt update >&2 || none "no package lists for arm64"
    (cd "$here" && apt download libcmocka-dev libcmocka0 libxxhash-dev libxxhash0 >&2) || none "no packages for arm64"
    for deb in "$here"/*_arm64.deb; do
        dpkg -x "$deb" "$here/new"
    done
    mv "$here/new" "$here/root"
}

if [ "$(uname -m)" != aarch64 ]; then
    install_tools
    fetch_libraries
    cat >$folder/cross.ini <<END
[binaries]
c = 'aarch64-linux-gnu-gcc'
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
exe_wrapper = ['qemu-aarch64', '-L', '/usr/aarch64-linux-gnu', '-E', 'LD_LIBRARY_PATH=$here/root/usr/lib/aarch64-linux-gnu']
[built-in options]
c_args = ['-isystem', '$here/root/usr/include']
c_link_args = ['-L$here/root/usr/lib/aarch64-linux-gnu']
[properties]
pkg_config_libdir = '$here/root/usr/lib/aarch64-linux-gnu/pkgconfig'
sys_root = '$here/root'
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
END
    cross="--cross-file $folder/cross.ini"
else
    cross=
    qemu_tests=
fi
# shellcheck disable=SC2086 # an option and its value
[ -f $build/build.ninja ] || meson setup $build $cross --buildtype=debugoptimized --werror -Dcuda=disabled \
    -Dopenblas=disabled >$folder/configure.log 2>&1 || {
    cat $folder/configure.log
    exit 1
}
ninja -C $build >$folder/build.log 2>&1 || {
    grep -E -A 12 'FAILED|error' $folder/build.log | head -n 60
    exit 1
}
# shellcheck disable=SC2086 # names
[ $# -gt 0 ] || set -- $qemu_tests
meson test -C $build --no-rebuild --suite quick --timeout-multiplier 4 --print-errorlogs "$@" >$folder/tests.log 2>&1 || {
    tail -n 60 $folder/tests.log
    exit 1
}
echo "aarch64: built; tests: $(sed -n 's/^\(Ok\|Fail\|Skipped\): */\1 /p' $folder/tests.log | tr '\n' ' ')"
