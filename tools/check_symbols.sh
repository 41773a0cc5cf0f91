#!/bin/sh
# SPDX-License-Identifier: MIT
# check_symbols.sh BUILD: the names in rollkv.map, those that the shared library exports and those that the
# public headers declare are the same; every name in the static library that can collide with a user's
# begins with rkv_, rkvi_ or rkvk_. NVTX's headers define weak ones, which all who include them share.
set -eu
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if grep -v '^#' rollkv.map | grep 'rkv_.*[*]'; then
    echo "rollkv.map has a wildcard; list the names" >&2
    exit 1
fi
sed -n 's/^[[:space:]]*\(rkv_[a-z0-9_]*\);.*/\1/p' rollkv.map | sort >"$work/map"
# Sanitizers and coverage add names of their own, so this is meant for a plain build.
nm -D --defined-only "$build/src/librollkv.so" | awk '$2 != "A" { print $3 }' |
    sed 's/@.*//' | sort >"$work/exported"
status=0
diff -u --label rollkv.map "$work/map" --label "nm -D" "$work/exported" || status=1
cat include/rollkv/*.h | tr '\n' ' ' | sed 's/RKV_API /\n&/g' |
    sed -n 's/^RKV_API [^(;]*\(rkv_[a-z0-9_]*\)(.*/\1/p' | sort >"$work/declared"
diff -u --label rollkv.map "$work/map" --label headers "$work/declared" || status=1
nm -g --defined-only "$build/src/librollkv.a" 2>/dev/null | awk 'NF == 3 && !($2 ~ /[VW]/ && $3 ~ /[Nn]vtx/) { print $3 }' |
    grep -v '^rkv[ik]\{0,1\}_' >"$work/foreign" && {
    echo "names in librollkv.a outside rkv_, rkvi_ and rkvk_:" >&2
    cat "$work/foreign" >&2
    status=1
}
echo "$(wc -l <"$work/exported") symbols exported"
[ -s "$work/exported" ] || status=1
exit $status
