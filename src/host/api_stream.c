/* SPDX-License-Identifier: MIT
 *
 * api_stream.c: streams of the host executor (rollkv/host.h).  They go straight
 * to the executor, which is thread-safe, without the cache's lock: a sync may
 * block while another thread enqueues.
 */
#include "api_internal.h"

#include "rollkv/host.h"

static rkv_status host_device(const rkv_cache *cache, rkvi_device **out)
{
    if (!cache)
        return rkvi_fail(RKV_E_ARGUMENT, "cache is NULL");
    if (rkvi_handle_config(cache)->device != RKV_DEVICE_HOST)
        return rkvi_fail(RKV_E_UNSUPPORTED,
                         "streams of rollkv/host.h are for caches on RKV_DEVICE_HOST; this one "
                         "is on device %d: use the GPU's own",
                         rkvi_handle_config(cache)->device);
    *out = rkvi_handle_device(cache);
    return RKV_OK;
}

rkv_status rkv_host_stream_create(rkv_cache *cache, void **out_stream)
{
    rkvi_device *dev = NULL;
    rkv_status s = host_device(cache, &dev);
    if (s == RKV_OK && !out_stream)
        s = rkvi_fail(RKV_E_ARGUMENT, "out_stream is NULL");
    if (s == RKV_OK)
        s = rkvi_dev(stream_create, dev, "engine", out_stream);
    return rkvi_api_told(__func__, s);
}

rkv_status rkv_host_stream_destroy(rkv_cache *cache, void *stream)
{
    rkvi_device *dev = NULL;
    rkv_status s = host_device(cache, &dev);
    if (s == RKV_OK && stream)
        s = rkvi_dev(stream_destroy, dev, stream);
    return rkvi_api_told(__func__, s);
}

rkv_status rkv_host_stream_sync(rkv_cache *cache, void *stream)
{
    rkvi_device *dev = NULL;
    rkv_status s = host_device(cache, &dev);
    if (s == RKV_OK)
        s = rkvi_dev(stream_sync, dev, stream);
    return rkvi_api_told(__func__, s);
}

rkv_status rkv_host_stream_call(rkv_cache *cache, void *stream, void (*fn)(void *arg), void *arg)
{
    rkvi_device *dev = NULL;
    rkv_status s = host_device(cache, &dev);
    if (s == RKV_OK && !fn)
        s = rkvi_fail(RKV_E_ARGUMENT, "fn is NULL");
    if (s == RKV_OK)
        s = rkvi_dev(host_call, dev, fn, arg, NULL, 0, stream);
    return rkvi_api_told(__func__, s);
}
