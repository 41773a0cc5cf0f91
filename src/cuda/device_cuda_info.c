/* SPDX-License-Identifier: MIT
 *
 * device_cuda_info.c: which CUDA devices there are and what they are like.
 */
#include "device_cuda_impl.h"

#include <ctype.h>
#include <stdio.h>

/* CUDA says 'insufficient' of a driver that is not there, too. */
static const char *reason(cudaError_t e)
{
    int version = 0;
    if (e == cudaErrorInsufficientDriver && cudaDriverGetVersion(&version) == cudaSuccess &&
        version == 0)
        return "no CUDA driver is loaded";
    return cudaGetErrorString(e);
}

uint32_t rkvi_device_cuda_count(const char **out_why)
{
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    const char *why = "there is no CUDA device";
    if (e != cudaSuccess) {
        why = reason(e);
        cudaGetLastError();
        n = 0;
    }
    if (out_why)
        *out_why = why;
    return (uint32_t)n;
}

/* -1 where the system does not say. */
static int32_t numa_node_of(int ordinal)
{
    char id[32], path[96];
    int node = -1;
    if (cudaDeviceGetPCIBusId(id, sizeof id, ordinal) != cudaSuccess) {
        cudaGetLastError();
        return -1;
    }
    for (char *p = id; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", id);
    FILE *f = fopen(path, "r");
    if (!f)
        return -1;
    if (fscanf(f, "%d", &node) != 1 || node < 0)
        node = -1;
    fclose(f);
    return node;
}

static cudaError_t read_info(int ordinal, rkvi_device_info *out)
{
    struct cudaDeviceProp prop;
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t e = cudaGetDeviceProperties(&prop, ordinal);
    if (e == cudaSuccess)
        e = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (e != cudaSuccess)
        return e;
    *out = (rkvi_device_info){
        .kernels = "cuda",
        .memory_bytes = total_bytes,
        .memory_free_bytes = free_bytes,
        .n_workers = (uint32_t)prop.multiProcessorCount,
        .numa_node = numa_node_of(ordinal),
        .has_link = true,
        .is_host = false,
    };
    snprintf(out->name, sizeof out->name, "%.63s", prop.name);
    return cudaSuccess;
}

rkv_status rkvi_cuda_info_in(cuda_device *c, CUcontext context, int ordinal, rkvi_device_info *out)
{
    bool pushed;
    rkv_status s = rkvi_cuda_push(context, &pushed);
    if (s != RKV_OK)
        return s;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    const bool relaxed = cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
    const cudaError_t e = read_info(ordinal, out);
    if (e != cudaSuccess)
        s = rkvi_cuda_fail(c, e, "asking a CUDA device for its properties");
    if (relaxed)
        cudaThreadExchangeStreamCaptureMode(&mode);
    if (pushed)
        rkvi_cuda_pop();
    return s;
}

rkv_status rkvi_device_cuda_info(int32_t ordinal, rkvi_device_info *out)
{
    CUcontext context;
    const rkv_status s = rkvi_cuda_context(ordinal, &context);
    return s == RKV_OK ? rkvi_cuda_info_in(NULL, context, ordinal, out) : s;
}
