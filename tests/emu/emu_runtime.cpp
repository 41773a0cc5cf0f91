/* SPDX-License-Identifier: MIT
 *
 * emu_runtime.cpp: the runtime's calls that launchers make: one device, whose
 * launches run before they return.
 */
#include "emu_ptx.hpp"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* A kernel, what calls it, and the shared memory that it has been allowed. */
struct kernel {
    const void *entry;
    emu_go go;
    size_t smem_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kernel kernels[4096];
static uint32_t n_kernels;

/* With the lock held. */
static kernel *find(const void *entry)
{
    for (uint32_t i = 0; i < n_kernels; i++)
        if (kernels[i].entry == entry)
            return &kernels[i];
    if (n_kernels == sizeof kernels / sizeof *kernels)
        emu_fail("more than %u kernels", n_kernels);
    kernels[n_kernels] = {entry, nullptr, 48 << 10};
    return &kernels[n_kernels++];
}

void emu_register(const void *entry, emu_go go)
{
    pthread_mutex_lock(&lock);
    find(entry)->go = go;
    pthread_mutex_unlock(&lock);
}

/* ---------------------------------------------------------------------- device */

uint32_t emu_arch(void)
{
    static uint32_t arch;
    if (!arch) {
        const char *text = getenv("ROLLKV_EMU_ARCH");
        arch = text ? (uint32_t)strtoul(text, nullptr, 10) : EMU_ARCH;
    }
    return arch;
}

/* Shared memory of a multiprocessor, of which a block may have all but 1 KB. */
static int sm_bytes(void)
{
    const uint32_t arch = emu_arch();
    return arch >= 120 || arch == 86 || arch == 89 ? 100 << 10 : arch >= 90 ? 228 << 10 : 164 << 10;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    if (device != 0)
        return cudaErrorInvalidDevice;
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = (int)emu_arch() / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = (int)emu_arch() % 10; break;
    case cudaDevAttrMultiProcessorCount: *value = 1 + (int)(emu_random() % 40); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = sm_bytes(); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = sm_bytes() - 1024; break;
    }
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *)
{
    attributes->unused = 0;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *entry, cudaFuncAttribute, int value)
{
    if (value < 0 || value > sm_bytes() - 1024)
        return cudaErrorInvalidValue;
    pthread_mutex_lock(&lock);
    find(entry)->smem_bytes = (size_t)value;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

uint64_t rkvk_now_ns(void)
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* --------------------------------------------------------------------- launches */

static bool is_legal(const emu_shape &s, size_t smem_allowed)
{
    const uint64_t threads = (uint64_t)s.block.x * s.block.y * s.block.z;
    return threads >= 1 && threads <= 1024 && s.grid.x >= 1 && s.grid.x <= 0x7fffffffu && s.grid.y >= 1 &&
           s.grid.y <= 65535 && s.grid.z >= 1 && s.grid.z <= 65535 && s.smem_bytes <= smem_allowed;
}

static cudaError_t launch(const void *entry, const emu_shape &shape, void **params)
{
    pthread_mutex_lock(&lock);
    const kernel k = *find(entry);
    pthread_mutex_unlock(&lock);
    if (!is_legal(shape, k.smem_bytes))
        return cudaErrorInvalidValue;
    emu_launch(entry, k.go, shape, params);
    return cudaSuccess;
}

static emu_index index_of(dim3 d)
{
    return {d.x, d.y, d.z};
}

cudaError_t cudaLaunchKernel(const void *entry, dim3 grid, dim3 block, void **params, size_t smem_bytes, cudaStream_t)
{
    return launch(entry, {index_of(grid), index_of(block), smem_bytes, false}, params);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *entry, void **params)
{
    bool early = false;
    for (unsigned i = 0; i < config->numAttrs; i++)
        early = early || config->attrs[i].val.programmaticStreamSerializationAllowed;
    return launch(entry, {index_of(config->gridDim), index_of(config->blockDim), config->dynamicSmemBytes, early},
                  params);
}
