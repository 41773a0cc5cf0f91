/* SPDX-License-Identifier: MIT
 *
 * rollkv/host.h: streams of the host executor.
 *
 * A cache on RKV_DEVICE_HOST runs its kernels on streams of threads.  An
 * engine either passes NULL everywhere (the cache's default stream) and
 * synchronises before it reads `out`, or creates streams and queues its own
 * work on them.  All calls fail with RKV_E_UNSUPPORTED on a GPU cache.
 * Thread-safe, also beside a running step.
 */
#ifndef ROLLKV_HOST_H
#define ROLLKV_HOST_H

#include "rollkv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A stream is FIFO, and independent of others.  Destroy waits for its work;
 * all streams must be destroyed before the cache. */
RKV_API rkv_status rkv_host_stream_create(rkv_cache *cache, void **out_stream);
RKV_API rkv_status rkv_host_stream_destroy(rkv_cache *cache, void *stream);

/* Blocks until all that was queued on the stream has run. */
RKV_API rkv_status rkv_host_stream_sync(rkv_cache *cache, void *stream);

/* Queues a call of fn(arg) on the stream. */
RKV_API rkv_status rkv_host_stream_call(rkv_cache *cache, void *stream, void (*fn)(void *arg), void *arg);

#ifdef __cplusplus
}
#endif
#endif
