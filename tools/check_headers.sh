#!/bin/sh
# SPDX-License-Identifier: MIT
# Compiles each public header alone, as C99, C11, C++11 and C++17, pedantically, with each compiler here.
set -eu
cd "$(dirname "$0")/.."

failed=0
count=0
# check COMPILER LANGUAGE STANDARD HEADER
check() {
    command -v "$1" >/dev/null 2>&1 || return 0
    count=$((count + 1))
    # The typedef is for headers of macros alone: an empty unit is an error to pedantic C.
    echo "#include <rollkv/$4>
typedef int alone;" |
        "$1" -std="$3" -pedantic -Wall -Wextra -Wundef -Werror -Iinclude -fsyntax-only -x "$2" - || {
        echo "$4 does not compile alone: $1 -std=$3" >&2
        failed=$((failed + 1))
    }
}
for path in include/rollkv/*.h; do
    header=${path##*/}
    for standard in c99 c11; do
        check gcc c $standard "$header"
        check clang c $standard "$header"
    done
    for standard in c++11 c++17; do
        check g++ c++ $standard "$header"
        check clang++ c++ $standard "$header"
    done
done
echo "$count compilations, $failed failed"
[ $failed = 0 ] && [ $count -gt 0 ]
