/* SPDX-License-Identifier: MIT */
/* Headers of 0.1, without comments: what a program of that release was compiled with. */
#ifndef ROLLKV_HOST_H
#define ROLLKV_HOST_H
#include "rollkv.h"
#ifdef __cplusplus
extern "C" {
#endif
RKV_API rkv_status rkv_host_stream_create(rkv_cache *cache, void **out_stream);
RKV_API rkv_status rkv_host_stream_destroy(rkv_cache *cache, void *stream);
RKV_API rkv_status rkv_host_stream_sync(rkv_cache *cache, void *stream);
RKV_API rkv_status rkv_host_stream_call(rkv_cache *cache, void *stream, void (*fn)(void *arg), void *arg);
#ifdef __cplusplus
}
#endif
#endif
