/* SPDX-License-Identifier: MIT
 *
 * api_state_file.c: states to and from files, on top of the callbacks.
 */
#include "api_internal.h"
#include "step_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* An open file; `error` keeps the system's reason for the sentence. */
typedef struct file {
    int fd;
    int error;
} file;

#define CHUNK_BYTES ((uint64_t)1 << 30) /* what one system call surely takes */
#define ENDED (-1)                      /* in place of an errno: the file is shorter than it was */

static int32_t write_file(void *user, const void *data, uint64_t size_bytes)
{
    file *f = user;
    const uint8_t *at = data;
    while (size_bytes) {
        const ssize_t n = write(f->fd, at, size_bytes < CHUNK_BYTES ? size_bytes : CHUNK_BYTES);
        if (n < 0 && errno != EINTR) {
            f->error = errno;
            return 1;
        }
        at += n > 0 ? n : 0;
        size_bytes -= n > 0 ? (uint64_t)n : 0;
    }
    return 0;
}

static int32_t read_file(void *user, void *data, uint64_t size_bytes)
{
    file *f = user;
    uint8_t *at = data;
    while (size_bytes) {
        const ssize_t n = read(f->fd, at, size_bytes < CHUNK_BYTES ? size_bytes : CHUNK_BYTES);
        if (n == 0 || (n < 0 && errno != EINTR)) {
            f->error = n ? errno : ENDED;
            return 1;
        }
        at += n > 0 ? n : 0;
        size_bytes -= n > 0 ? (uint64_t)n : 0;
    }
    return 0;
}

/* The reason comes first; of a long path, its end: the name of the file. */
static rkv_status io_failed(const char *what, const char *path, int error)
{
    enum { MOST = 200 };
    char text[128];
    const size_t n = strlen(path);
    const char *reason = error == ENDED ? "the file became shorter meanwhile" : strerror_r(error, text, sizeof text);
    return rkvi_fail(RKV_E_IO, "%s: %s %s%s", reason, what, n > MOST ? "..." : "", n > MOST ? path + n - MOST : path);
}

static rkv_status file_params(const rkv_state_params *params, const char *path, rkv_state_params *out)
{
    const rkv_status s = rkvi_api_state_params(params, out);
    if (s != RKV_OK)
        return s;
    if (!path || !*path)
        return rkvi_fail(RKV_E_ARGUMENT, "path is %s", path ? "empty" : "NULL");
    if (out->read || out->write || out->user || out->size_bytes)
        return rkvi_fail(RKV_E_ARGUMENT,
                         "read, write, user and size_bytes must be 0: the file takes their place");
    return RKV_OK;
}

/* --------------------------------------------------------------------- save */

/* A name in an existing folder: what was renamed is there after a crash too. */
static int sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    const int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int error = fd < 0 ? errno : 0;
    /* Some file systems have no way to sync a folder. */
    if (fd >= 0 && fsync(fd) != 0 && errno != EINVAL)
        error = errno;
    if (fd >= 0)
        close(fd);
    free(folder);
    return error;
}

static rkv_status finish_file(file *f, const char *temporary, const char *path)
{
    int error = fsync(f->fd) == 0 ? 0 : errno;
    if (close(f->fd) != 0 && !error)
        error = errno;
    f->fd = -1;
    if (error)
        return io_failed("writing", temporary, error);
    if (rename(temporary, path) != 0)
        return io_failed("renaming the finished state to", path, errno);
    error = sync_folder(path);
    return error ? io_failed("syncing the folder of", path, error) : RKV_OK;
}

static rkv_status save_as(rkv_cache *cache, rkv_state_params *p, char *temporary, const char *path)
{
    file f = {.fd = mkostemp(temporary, O_CLOEXEC)};
    if (f.fd < 0)
        return io_failed("making", temporary, errno);
    p->write = write_file;
    p->user = &f;
    rkv_status s = rkvi_api_state_run(cache, p, false);
    if (s != RKV_OK && f.error)
        s = io_failed("writing", temporary, f.error);
    if (s == RKV_OK)
        s = finish_file(&f, temporary, path);
    if (f.fd >= 0)
        close(f.fd);
    if (s != RKV_OK)
        unlink(temporary); /* after the rename it is gone already */
    return s;
}

static rkv_status save_file(rkv_cache *cache, const rkv_state_params *params, const char *path)
{
    static const char suffix[] = ".XXXXXX";
    rkv_state_params p;
    rkv_status s = file_params(params, path, &p);
    if (s != RKV_OK)
        return s;
    const size_t bytes = strlen(path) + sizeof suffix;
    char *temporary = malloc(bytes);
    if (!temporary)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a name of %zu bytes", bytes);
    snprintf(temporary, bytes, "%s%s", path, suffix);
    s = save_as(cache, &p, temporary, path);
    free(temporary);
    return s;
}

rkv_status rkv_state_save_file(rkv_cache *cache, const rkv_state_params *params, const char *path)
{
    return rkvi_api_told(__func__, save_file(cache, params, path));
}

/* --------------------------------------------------------------------- load */

static rkv_status check_file(const file *f, const char *path, uint64_t *out_bytes)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0)
        return io_failed("reading", path, errno);
    if (!S_ISREG(st.st_mode))
        return rkvi_fail(RKV_E_IO, "no regular file: reading %s", path);
    if (st.st_size == 0)
        return rkvi_fail(RKV_E_DATA, "an empty file, which no state is: %s", path);
    *out_bytes = (uint64_t)st.st_size;
    return RKV_OK;
}

static rkv_status load_file(rkv_cache *cache, const rkv_state_params *params, const char *path)
{
    rkv_state_params p;
    rkv_status s = file_params(params, path, &p);
    if (s != RKV_OK)
        return s;
    file f = {.fd = open(path, O_RDONLY | O_CLOEXEC)};
    if (f.fd < 0)
        return io_failed("opening", path, errno);
    s = check_file(&f, path, &p.size_bytes);
    if (s == RKV_OK) {
        p.read = read_file;
        p.user = &f;
        s = rkvi_api_state_run(cache, &p, true);
        if (s != RKV_OK && f.error)
            s = io_failed("reading", path, f.error);
    }
    close(f.fd);
    return s;
}

rkv_status rkv_state_load_file(rkv_cache *cache, const rkv_state_params *params, const char *path)
{
    return rkvi_api_told(__func__, load_file(cache, params, path));
}
