/* SPDX-License-Identifier: MIT
 *
 * api_device.c: which executors there are, what they grant, and making one.
 */
#include "api_internal.h"
#include "device_host.h"
#include "settings.h"

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
enum { KERNELS_REF, KERNELS_AVX2, KERNELS_AVX512, KERNELS_BEST, KERNELS_COUNT };
static const char *const kernel_names[] = {"ref", "avx2", "avx512"};
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

rkv_status rkvi_api_device_exists(int32_t device)
{
    if (device == RKV_DEVICE_HOST)
        return RKV_OK;
    return rkvi_fail(RKV_E_NO_DEVICE,
                     "there is no device %d: this build has no CUDA executor; use RKV_DEVICE_HOST (%d)",
                     device, (int)RKV_DEVICE_HOST);
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

/* What the executor would say once it is made. */
rkv_status rkvi_api_machine(const rkv_cache_params *p, rkvi_machine *out)
{
    const rkv_status s = rkvi_api_device_exists(p->device);
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
    *out = (rkvi_machine){
        .device_memory_bytes = info.memory_free_bytes,
        .host_memory_bytes = memory_bytes(_SC_PHYS_PAGES),
        .link_bytes_per_s = info.link_bytes_per_s,
        .is_host = info.is_host,
    };
    return RKV_OK;
}

/* Both directions of the link are alike. */
static rkv_status host_create(const rkv_host_params *host, rkvi_device **out)
{
    uint32_t n_threads, set;
    rkv_status s = rkvi_setting_number(RKVI_SETTING_THREADS, THREADS_MAX, &n_threads);
    if (s == RKV_OK)
        s = rkvi_setting_word(RKVI_SETTING_KERNELS, kernel_names, KERNELS_BEST, &set);
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

/* The seam where another executor is added: one more case here, in
 * rkvi_api_device_exists, rkvi_api_machine, and the two calls below. */
rkv_status rkvi_api_device_create(const rkv_cache_params *p, rkvi_device **out)
{
    const rkv_status s = rkvi_api_device_exists(p->device);
    return s == RKV_OK ? host_create(&p->host, out) : s;
}

uint32_t rkv_device_count(void)
{
    return 0;
}

rkv_status rkv_device_info_get(int32_t device, rkv_device_info *out_info)
{
    rkv_status s = rkvi_copy_out_check(&info_spec, out_info);
    if (s == RKV_OK)
        s = rkvi_api_device_exists(device);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    rkv_device_info info = {
        .device = device,
        .memory_bytes = memory_bytes(_SC_PHYS_PAGES),
        .memory_free_bytes = memory_bytes(_SC_AVPHYS_PAGES),
        .n_workers = n_cpus(),
        .numa_node = -1,
    };
    snprintf(info.name, sizeof info.name, "host");
    rkvi_copy_out(&info_spec, &info, out_info);
    return RKV_OK;
}
