#!/bin/sh
# SPDX-License-Identifier: MIT
#
# check_abi.sh BUILD            compares the shared library with the stored baseline
# check_abi.sh --update BUILD   stores a new baseline: abi/rollkv.abi
#
# BUILD must have debug information (the default build type has). Functions may be added, and fields at
# the end of the structs that abi/rollkv.suppr names; anything else is a change of the ABI.
# Exit status 77: can't be compared here (another architecture than the baseline's, no abidiff).
set -eu
update=
if [ "$1" = --update ]; then
    update=yes
    shift
fi
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
baseline=abi/rollkv.abi

# describe FILE: what the public headers show of the library, without paths and lines, so that only a
# change of the interface changes the file. Both sides of a comparison are made in this way: abidiff's
# own option for headers, given for one side alone, hides real changes.
describe() {
    abidw --headers-dir include --drop-private-types --no-corpus-path --no-comp-dir-path \
        --no-show-locs --out-file "$1" "$build/src/librollkv.so"
}

if ! command -v abidiff >/dev/null 2>&1; then
    echo "no abidiff here"
    exit 77
fi
if [ "$(uname -m)" != x86_64 ]; then
    echo "the baseline is for x86-64"
    exit 77
fi
if [ -n "$update" ]; then
    describe $baseline
    echo "wrote $baseline; say in the commit's message what changed"
    exit 0
fi
if [ ! -f $baseline ]; then
    echo "no $baseline; make it: tools/check_abi.sh --update BUILD" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
describe "$work/now.abi"
abidiff --suppressions abi/rollkv.suppr --no-added-syms $baseline "$work/now.abi"
tools/check_layout.py $baseline "$work/now.abi"
