#!/bin/sh
# SPDX-License-Identifier: MIT
#
# check_cuda12.sh: builds the CUDA code with a CUDA 12 toolkit, its warnings as errors, and checks that the
# library loads without a driver. Without a GPU its tests are linked, and skipped.
#
# CUDA12 names a toolkit's folder (bin/nvcc in it). Without it one is put together in build/cuda12, from
# packages that are unpacked, never installed: the compiler from Debian 13's nvidia-cuda-toolkit (12.4; 87 MB),
# headers and runtime from PyPI. It has the runtime as a shared library alone.
#   CUDA12_ARCHS, CUDA12_VARIANTS   what to build for; 80,90 and a kernel of each kind
# Exit status 77: no such toolkit is to be had here.
set -eu
cd "$(dirname "$0")/.."
folder=build/cuda12
archs=${CUDA12_ARCHS:-80,90}
variants=${CUDA12_VARIANTS:-f16_f16_d128,bf16_bf16_d256,fp8_fp8_d80,q8_0_q4_0_d192_128,f16_q8_0_d512}
mkdir -p $folder
here=$(cd $folder && pwd)

none() {
    echo "no CUDA 12 toolkit: $1"
    exit 77
}

# apt-get with lists and settings of its own: nothing of this system changes.
apt() {
    apt-get -qq -o Dir::State="$here/apt" -o Dir::State::status="$here/apt/status" -o Dir::Cache="$here/apt/cache" \
        -o Dir::Etc::sourcelist="$here/apt/sources" -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root "$@"
}

fetch_compiler() {
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    if ! command -v apt-get >/dev/null 2>&1 || ! [ -f $keys ]; then none "no apt-get of Debian's"; fi
    mkdir -p "$here/apt/lists/partial" "$here/apt/cache/archives/partial"
    : >"$here/apt/status"
    echo "deb [arch=amd64 signed-by=$keys] http://deb.debian.org/debian trixie non-free" >"$here/apt/sources"
    apt update >&2 || none "no package lists"
    (cd "$here" && apt download 'nvidia-cuda-toolkit=12.4.*' >&2) || none "no package of the compiler"
    dpkg -x "$here"/nvidia-cuda-toolkit_*.deb "$here/unpacked"
}

fetch_headers() {
    python3 -m pip download --quiet --no-deps --require-hashes --disable-pip-version-check --dest "$here" \
        --requirement tools/cuda12_requirements.txt >&2 || none "no packages of the headers"
    for wheel in "$here"/nvidia_cuda_*.whl; do
        python3 -m zipfile -e "$wheel" "$here/unpacked"
    done
}

# The layout that NVIDIA's installer gives.
put_together() {
    tool=$here/new
    rm -rf "$tool" "$here/unpacked"
    fetch_compiler
    fetch_headers
    mkdir -p "$tool/bin" "$tool/nvvm/bin" "$tool/nvvm/libdevice" "$tool/include" "$tool/lib64"
    for name in cudafe++ fatbinary ptxas nvlink bin2c cuobjdump; do
        cp "$here/unpacked/usr/bin/$name" "$tool/bin"
    done
    cp -r "$here/unpacked/usr/lib/nvidia-cuda-toolkit/bin/nvcc" "$here/unpacked/usr/lib/nvidia-cuda-toolkit/bin/crt" \
        "$tool/bin"
    cp "$here/unpacked/usr/lib/nvidia-cuda-toolkit/bin/cicc" "$tool/nvvm/bin"
    cp "$here"/unpacked/usr/lib/nvidia-cuda-toolkit/libdevice/* "$tool/nvvm/libdevice"
    cp -r "$here"/unpacked/nvidia/cuda_nvcc/include/. "$here"/unpacked/nvidia/cuda_runtime/include/. "$tool/include"
    cp "$here/unpacked/nvidia/cuda_runtime/lib/libcudart.so.12" "$tool/lib64"
    echo "INPUT($tool/lib64/libcudart.so.12)" | sed 's,/new/,/toolkit/,' >"$tool/lib64/libcudart_static.a"
    cat >"$tool/bin/nvcc.profile" <<'END'
TOP                = $(_HERE_)/..
CICC_PATH          = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH              += $(CICC_PATH):$(_HERE_):
INCLUDES          += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES         =+ $(_SPACE_) "-L$(TOP)/lib64"
END
    rm -rf "$here/toolkit" "$here/unpacked"
    mv "$tool" "$here/toolkit"
}

if [ -z "${CUDA12:-}" ]; then
    [ "$(uname -m)" = x86_64 ] || none "not an x86-64 machine"
    [ -x "$here/toolkit/bin/nvcc" ] || put_together
    CUDA12=$here/toolkit
fi
PATH=$CUDA12/bin:$PATH
LD_LIBRARY_PATH=$CUDA12/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH LD_LIBRARY_PATH
release=$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
case $release in
12.*) ;;
*) none "$CUDA12 has CUDA $release" ;;
esac

build=$folder/build
set -- --buildtype=debugoptimized --werror -Dcuda=enabled -Dopenblas=disabled -Dexamples=disabled \
    "-Dgpu_archs=$archs" "-Dgpu_variants=$variants"
if [ -f $build/build.ninja ]; then
    meson configure $build "$@"
else
    meson setup $build "$@"
fi >$folder/configure.log 2>&1 || {
    cat $folder/configure.log
    exit 1
}
targets=$(ls tests/test_cuda_*.c | sed 's/\.c$//')
# shellcheck disable=SC2086 # names of targets
ninja -C $build $targets tests/test_estimate tests/test_create bench/bench_cuda_attend >$folder/build.log 2>&1 || {
    grep -E -A 12 'FAILED|error' $folder/build.log | head -n 60
    exit 1
}
$build/tests/test_estimate >$folder/test_estimate.log 2>&1
$build/tests/test_create >$folder/test_create.log 2>&1
meson test -C $build --no-rebuild --suite gpu >$folder/gpu.log 2>&1 || {
    tail -n 40 $folder/gpu.log
    exit 1
}
echo "CUDA $release: built for sm_$archs: $variants; GPU tests: $(sed -n 's/^\(Ok\|Skipped\): */\1 /p' $folder/gpu.log | tr '\n' ' ')"
