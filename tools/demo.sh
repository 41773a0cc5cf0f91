#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Installs what is missing, builds, fetches a small real model, lets it read a long text with a device
# limit that holds a small part of the cache, and compares ways of reading the rest. Arguments are
# passed on to the program; --help lists them.
set -eu
cd "$(dirname "$0")/.."

tools/setup.sh
build=build/release
if [ ! -f $build/build.ninja ]; then
    echo "demo: configuring $build"
    meson setup $build --buildtype=release -Dtests=disabled
fi
echo "demo: building"
ninja -C $build
model=$(tools/fetch_model.sh)

# A text of more than 4,000 tokens that every Debian and Ubuntu machine has.
text=/usr/share/common-licenses/GPL-3
echo "demo: reading $text"
exec $build/examples/generate/rollkv-generate --model "$model" --prompt-file "$text" --compare "$@"
