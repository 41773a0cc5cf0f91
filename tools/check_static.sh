#!/bin/sh
# SPDX-License-Identifier: MIT
#
# check_static.sh BUILD          cppcheck over the library's C code: some seconds
# check_static.sh --tidy BUILD   clang-tidy as well (.clang-tidy): minutes
#
# BUILD is a configured build folder. Exit status 77: no cppcheck here.
#
# Left out, as they were never right here:
#   autoVariables            jobs and callbacks that end before the variable does
#   unknownEvaluationOrder   *out++ = (struct){.row = row++}: two variables
set -eu
tidy=
if [ "$1" = --tidy ]; then
    tidy=yes
    shift
fi
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
if ! command -v cppcheck >/dev/null 2>&1; then
    echo "no cppcheck here"
    exit 77
fi
cppcheck -j "$(nproc)" --quiet --error-exitcode=1 --std=c11 --enable=warning,performance,portability --inline-suppr \
    --suppress=missingInclude --suppress=missingIncludeSystem --suppress=autoVariables \
    --suppress=unknownEvaluationOrder -D__linux__ -Iinclude -Isrc/host "-I$build/src" "-I$build/src/cuda" \
    --template='{file}:{line}: {id}: {message}' src/host/*.c
if [ -n "$tidy" ]; then
    if ! command -v clang-tidy >/dev/null 2>&1; then
        echo "no clang-tidy here"
        exit 77
    fi
    echo src/host/*.c | tr ' ' '\n' | xargs -n 4 -P "$(nproc)" clang-tidy -p "$build" --quiet
fi
echo "$(echo src/host/*.c | wc -w) files${tidy:+, clang-tidy too}"
