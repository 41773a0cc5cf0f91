#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Installs what is missing, builds, fetches a small real model, lets it read a long text with a device
# limit that holds a small part of the cache, and compares ways of reading the rest: all resident,
# copies op by op, the ring, and the bound that no copying can beat. Runs on the first GPU where there
# is one and nvcc to build for it, else on the CPU. Arguments are passed on to the program; --help lists
# them.
set -eu
cd "$(dirname "$0")/.."

# The GPU's compute capability as nvcc writes it (90), or nothing.
gpu_arch() {
    command -v nvidia-smi >/dev/null 2>&1 || return 0
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed -n '1s/\.//p'
}

has_nvcc() { command -v nvcc >/dev/null 2>&1 || [ -x /usr/local/cuda/bin/nvcc ]; }

tools/setup.sh
arch=$(gpu_arch)
cuda=-Dcuda=disabled
build=build/release
if [ -n "$arch" ] && has_nvcc; then
    # Only the kernels that this model on this GPU can ask for: all of them take long.
    cuda="-Dcuda=enabled -Dgpu_archs=$arch -Dgpu_variants=f16_f16_d64,q8_0_q8_0_d64,q4_0_q4_0_d64"
    build=build/release-gpu
elif [ -n "$arch" ]; then
    echo "demo: there is a GPU but no nvcc to build for it: the CPU is used"
fi
if [ ! -f $build/build.ninja ]; then
    echo "demo: configuring $build"
    # shellcheck disable=SC2086 # a list of options
    meson setup $build --buildtype=release -Dtests=disabled -Dbench=disabled $cuda
fi
echo "demo: building"
ninja -C $build
model=$(tools/fetch_model.sh)
program=$build/examples/generate/rollkv-generate

# A text of more than 4,000 tokens that every Debian and Ubuntu machine has.
text=/usr/share/common-licenses/GPL-3
if [ "$($program --which-device)" = cuda ]; then
    # All of the text: 180 MB of K and V.
    set -- --tile 64 --device-limit-mb 64 --tokens 200 --ignore-eos "$@"
else
    # Less of it, since the CPU takes its time: 105 MB of K and V.
    set -- --tile 64 --device-limit-mb 64 --max-prompt-tokens 4500 "$@"
fi
echo "demo: reading $text"
exec $program --model "$model" --prompt-file "$text" --compare "$@"
