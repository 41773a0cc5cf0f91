#!/bin/sh
# SPDX-License-Identifier: MIT
# Prints the version ("version") or the ABI number ("abi") that include/rollkv/version.h states.
set -eu
header=$(dirname "$0")/../include/rollkv/version.h
number() { sed -n "s/^#define $1 \([0-9][0-9]*\)\$/\1/p" "$header" | grep .; }
case ${1:-} in
version)
    echo "$(number RKV_VERSION_MAJOR).$(number RKV_VERSION_MINOR).$(number RKV_VERSION_PATCH)" ;;
abi)
    number RKV_ABI ;;
*)
    echo "usage: $0 version|abi" >&2
    exit 2 ;;
esac
