#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Finds what the build, the demonstration and the tests need, and installs what is missing through
# apt-get (Debian 12, Ubuntu 24.04): as root, or through sudo where that asks for no password. Without
# the rights it prints the command to run and stops with status 1. What is there already, from whatever
# source, is left alone.
set -eu

has_command() { command -v "$1" >/dev/null 2>&1; }

# has_library PKG_CONFIG_NAME HEADER...: pkg-config itself may be what is missing.
has_library() {
    pkg-config --exists "$1" 2>/dev/null && return 0
    shift
    for header in "$@"; do
        [ -f "$header" ] && return 0
    done
    return 1
}

has_pip() { has_command python3 && python3 -m pip --version >/dev/null 2>&1; }

missing=
# need PACKAGE CHECK...
need() {
    package=$1
    shift
    "$@" || missing="$missing $package"
}

need gcc has_command cc
need g++ has_command c++
need libc6-dev test -f /usr/include/stdio.h
need binutils has_command nm
need meson has_command meson
need ninja-build has_command ninja
need pkg-config has_command pkg-config
need python3 has_command python3
need python3-pip has_pip
need ca-certificates test -f /etc/ssl/certs/ca-certificates.crt
need libxxhash-dev has_library libxxhash /usr/include/xxhash.h
need libopenblas-dev has_library openblas /usr/include/*/cblas.h
need libcmocka-dev has_library cmocka /usr/include/cmocka.h
need abigail-tools has_command abidiff
need cppcheck has_command cppcheck

if [ -z "$missing" ]; then
    exit 0
fi

install_command="apt-get install -y --no-install-recommends$missing"
if ! has_command apt-get; then
    echo "setup: missing, by their Debian names:$missing" >&2
    echo "setup: there is no apt-get here; install them by your system's means" >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    as_root=
elif has_command sudo && sudo -n true 2>/dev/null; then
    as_root=sudo
else
    echo "setup: packages are missing, and there is no right to install them. As root, run:" >&2
    echo "    apt-get update && $install_command" >&2
    exit 1
fi

apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get "$@" </dev/null; }

# An index that does not know the packages is empty or old; one that names files which are gone
# shows only when the install fails.
echo "setup: installing$missing"
# shellcheck disable=SC2086 # a list of words
apt-cache show --no-all-versions $missing >/dev/null 2>&1 || apt update
# shellcheck disable=SC2086
apt install -y --no-install-recommends $missing || {
    apt update
    apt install -y --no-install-recommends $missing
}
