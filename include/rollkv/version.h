/* SPDX-License-Identifier: MIT
 *
 * Version of the library, for the preprocessor and for the build: meson.build reads the numbers
 * below, so this file is the only place where they are written.
 *
 * The version of the library that is *running* comes from a call (see rollkv.h); the two differ when
 * a program was compiled against one release and loaded another.
 */
#ifndef ROLLKV_VERSION_H
#define ROLLKV_VERSION_H

/* Semantic version. While the major number is 0, a new minor number may change the API. */
#define RKV_VERSION_MAJOR 0
#define RKV_VERSION_MINOR 1
#define RKV_VERSION_PATCH 0

/* One number that grows with the version; rkv_version() gives that of the library that runs. */
#define RKV_VERSION (RKV_VERSION_MAJOR * 10000 + RKV_VERSION_MINOR * 100 + RKV_VERSION_PATCH)

/* Number of the binary interface: the shared library is librollkv.so.<RKV_ABI>. It rises when a
 * program that was linked before can no longer run; adding calls, or fields at the end of structs
 * that begin with struct_size, leaves it alone. */
#define RKV_ABI 0

#endif /* ROLLKV_VERSION_H */
