#!/bin/sh
# SPDX-License-Identifier: MIT
#
# check_static.sh BUILD [FILE...]          cppcheck and clang-tidy's quick checks (.clang-tidy) over the library's
#                                          C code, or the files named: seconds
# check_static.sh --tidy BUILD [FILE...]   clang-tidy's analyzer as well: minutes
#
# BUILD is a configured build folder. Exit status 77: no cppcheck here. Without clang-tidy it says so.
#
# Left out, as they were never right here:
#   autoVariables            jobs and callbacks that end before the variable does
#   unknownEvaluationOrder   *out++ = (struct){.row = row++}: two variables
set -eu
checks=-clang-analyzer-*
if [ "$1" = --tidy ]; then
    checks=
    shift
fi
build=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- src/host/*.c
if ! command -v cppcheck >/dev/null 2>&1; then
    echo "no cppcheck here"
    exit 77
fi
cppcheck -j "$(nproc)" --quiet --error-exitcode=1 --std=c11 --enable=warning,performance,portability --inline-suppr \
    --suppress=missingInclude --suppress=missingIncludeSystem --suppress=autoVariables \
    --suppress=unknownEvaluationOrder -D__linux__ -Iinclude -Isrc/host -Isrc/cuda "-I$build/src" "-I$build/src/cuda" \
    --template='{file}:{line}: {id}: {message}' "$@"
if command -v clang-tidy >/dev/null 2>&1; then
    n_each=$((($# + $(nproc) * 4 - 1) / ($(nproc) * 4)))
    echo "$@" | tr ' ' '\n' | xargs -n $n_each -P "$(nproc)" clang-tidy -p "$build" --quiet "--checks=$checks" 2>&1 |
        grep -v 'warnings\{0,1\} generated\.$' >&2 && exit 1
    echo "$# files, clang-tidy${checks:+ without its analyzer}"
else
    echo "$# files; no clang-tidy here"
fi
