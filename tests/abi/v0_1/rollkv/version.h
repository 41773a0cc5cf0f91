/* SPDX-License-Identifier: MIT */
/* Headers of 0.1, without comments: what a program of that release was compiled with. */
#ifndef ROLLKV_VERSION_H
#define ROLLKV_VERSION_H
#define RKV_VERSION_MAJOR 0
#define RKV_VERSION_MINOR 1
#define RKV_VERSION_PATCH 0
#define RKV_VERSION (RKV_VERSION_MAJOR * 10000 + RKV_VERSION_MINOR * 100 + RKV_VERSION_PATCH)
#define RKV_ABI 0
#endif
