/* SPDX-License-Identifier: MIT
 *
 * api_device.c: which executors there are, what they grant, and making one.
 */
#include "api_internal.h"
#include "device_host.h"
#include "rkvi_config.h"
#include "settings.h"
#include "thread.h"
#if RKVI_HAVE_CUDA
#include "device_cuda.h"
#endif

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#define THREADS_MAX 4096u

static const rkvi_copy_spec params_spec = {"rkv_cache_params", sizeof(rkv_cache_params),
                                           offsetof(rkv_cache_params, kv_layers)};
static const rkvi_copy_spec info_spec = {"rkv_device_info", sizeof(rkv_device_info),
                                         offsetof(rkv_device_info, name)};

/* An executor keeps a pointer to its kernels: one table for each set, filled
 * once and never freed. */
enum { KERNELS_REF, KERNELS_AVX2, KERNELS_AVX512, KERNELS_AVX512VNNI, KERNELS_BEST, KERNELS_COUNT };
static const char *const kernel_names[] = {"ref", "avx2", "avx512", "avx512vnni"};
static rkvi_ops kernels[KERNELS_COUNT];
static pthread_once_t kernels_once = PTHREAD_ONCE_INIT;

static void fill_kernels(void)
{
    for (uint32_t i = 0; i < KERNELS_COUNT; i++)
        rkvi_ops_best(&kernels[i], i < KERNELS_BEST ? kernel_names[i] : NULL);
}

rkv_status rkvi_api_params(const rkv_cache_params *params, rkv_cache_params *out)
{
    return rkvi_copy_in(&params_spec, params, out);
}

/* ---- the seam where other executors are added: GPUs, numbered from 0 ---- */

#if RKVI_HAVE_CUDA

static uint32_t gpu_count(const char **out_why)
{
    return rkvi_device_cuda_count(out_why);
}

static rkv_status gpu_info(int32_t device, rkvi_device_info *out)
{
    return rkvi_device_cuda_info(device, out);
}

static rkv_status gpu_create(int32_t device, rkvi_device **out)
{
    const rkvi_device_cuda_settings settings = {.ordinal = device};
    return rkvi_device_cuda_create(&settings, out);
}

#else

static uint32_t gpu_count(const char **out_why)
{
    *out_why = "this build has no CUDA executor";
    return 0;
}

/* Never reached: there is no such device. */
static rkv_status gpu_info(int32_t device, rkvi_device_info *out)
{
    *out = (rkvi_device_info){0};
    return rkvi_api_device_exists(device);
}

static rkv_status gpu_create(int32_t device, rkvi_device **out)
{
    (void)out;
    return rkvi_api_device_exists(device);
}

#endif

rkv_status rkvi_api_device_exists(int32_t device)
{
    const char *why = "";
    if (device == RKV_DEVICE_HOST)
        return RKV_OK;
    const uint32_t n = gpu_count(&why);
    if (device >= 0 && (uint32_t)device < n)
        return RKV_OK;
    if (n > 0)
        return rkvi_fail(
            RKV_E_NO_DEVICE,
            "there is no device %d: GPUs are 0 to %u; the host executor is RKV_DEVICE_HOST (%d)",
            device, n - 1, (int)RKV_DEVICE_HOST);
    return rkvi_fail(RKV_E_NO_DEVICE, "there is no device %d: %s; use RKV_DEVICE_HOST (%d)", device,
                     why, (int)RKV_DEVICE_HOST);
}

static uint64_t memory_bytes(int name)
{
    const long pages = sysconf(name), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
}

static uint32_t n_cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

static rkvi_machine machine_of(const rkvi_device_info *info)
{
    return (rkvi_machine){
        .device_memory_bytes = info->memory_free_bytes,
        .host_memory_bytes = memory_bytes(_SC_PHYS_PAGES),
        .link_bytes_per_s = info->link_bytes_per_s,
        .is_host = info->is_host,
    };
}

/* What the executor would say once it is made. */
rkv_status rkvi_api_machine(const rkv_cache_params *p, rkvi_machine *out)
{
    rkvi_device_info info;
    rkv_status s = rkvi_api_device_exists(p->device);
    if (s == RKV_OK && p->device != RKV_DEVICE_HOST) {
        s = gpu_info(p->device, &info);
        if (s == RKV_OK)
            *out = machine_of(&info);
        return s;
    }
    if (s != RKV_OK)
        return s;
    const uint64_t ram_bytes = memory_bytes(_SC_PHYS_PAGES);
    *out = (rkvi_machine){
        .device_memory_bytes = p->host.memory_bytes ? p->host.memory_bytes : ram_bytes,
        .host_memory_bytes = ram_bytes,
        .link_bytes_per_s = p->host.link_bytes_per_s,
        .is_host = true,
    };
    return RKV_OK;
}

rkv_status rkvi_api_machine_of(rkvi_device *dev, rkvi_machine *out)
{
    rkvi_device_info info;
    const rkv_status s = rkvi_dev(info, dev, &info);
    if (s != RKV_OK)
        return s;
    *out = machine_of(&info);
    return RKV_OK;
}

rkv_status rkvi_api_supported(rkvi_device *dev, const rkvi_config *cfg)
{
    rkv_status s = RKV_OK;
    if (!dev->vt->geom_prepare)
        return RKV_OK;
    for (uint32_t i = 0; i < cfg->n_layers && s == RKV_OK; i++)
        s = rkvi_dev(geom_prepare, dev, &cfg->layers[i].geom);
    return s;
}

/* Both directions of the link are alike. */
static rkv_status host_create(const rkv_host_params *host, uint32_t set, rkvi_device **out)
{
    uint32_t n_threads;
    const rkv_status s = rkvi_setting_number(RKVI_SETTING_THREADS, THREADS_MAX, &n_threads);
    if (s != RKV_OK)
        return s;
    pthread_once(&kernels_once, fill_kernels);
    const rkvi_link_settings link = {
        .bytes_per_s = host->link_bytes_per_s,
        .cost_ns = (int64_t)host->copy_cost_ns,
        .latency_ns = (int64_t)host->copy_latency_ns,
    };
    const rkvi_device_host_settings settings = {
        .n_workers = host->n_threads ? host->n_threads : n_threads,
        .limits.memory_bytes = host->memory_bytes,
        .h2d = link,
        .d2h = link,
    };
    return rkvi_device_host_create(&settings, &kernels[set], out);
}

/* Threads start with a cache: the setting is looked at here. */
static rkv_status name_threads(void)
{
    uint32_t on;
    const rkv_status s = rkvi_setting_number(RKVI_SETTING_THREAD_NAMES, 1, &on);
    if (s == RKV_OK)
        rkvi_threads_name(on);
    return s;
}

rkv_status rkvi_api_device_create(const rkv_cache_params *p, rkvi_device **out)
{
    uint32_t set; /* a GPU's cache has a use for it with cpu_threads */
    rkv_status s = rkvi_api_device_exists(p->device);
    if (s == RKV_OK)
        s = name_threads();
    if (s == RKV_OK)
        s = rkvi_setting_word(RKVI_SETTING_KERNELS, kernel_names, KERNELS_BEST, &set);
    if (s != RKV_OK)
        return s;
    return p->device == RKV_DEVICE_HOST ? host_create(&p->host, set, out) : gpu_create(p->device, out);
}

uint32_t rkv_device_count(void)
{
    const char *why;
    return gpu_count(&why);
}

static rkv_status device_info(int32_t device, rkv_device_info *out)
{
    rkvi_device_info gpu;
    *out = (rkv_device_info){
        .device = device,
        .name = "host",
        .memory_bytes = memory_bytes(_SC_PHYS_PAGES),
        .memory_free_bytes = memory_bytes(_SC_AVPHYS_PAGES),
        .n_workers = n_cpus(),
        .numa_node = -1,
    };
    if (device == RKV_DEVICE_HOST)
        return RKV_OK;
    const rkv_status s = gpu_info(device, &gpu);
    if (s != RKV_OK)
        return s;
    snprintf(out->name, sizeof out->name, "%s", gpu.name);
    out->memory_bytes = gpu.memory_bytes;
    out->memory_free_bytes = gpu.memory_free_bytes;
    out->n_workers = gpu.n_workers;
    out->numa_node = gpu.numa_node;
    return RKV_OK;
}

rkv_status rkv_device_info_get(int32_t device, rkv_device_info *out_info)
{
    rkv_device_info info;
    rkv_status s = rkvi_copy_out_check(&info_spec, out_info);
    if (s == RKV_OK)
        s = rkvi_api_device_exists(device);
    if (s == RKV_OK)
        s = device_info(device, &info);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    rkvi_copy_out(&info_spec, &info, out_info);
    return RKV_OK;
}
