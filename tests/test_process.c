/* SPDX-License-Identifier: MIT
 *
 * What happens around the library: two processes at once, a memlock limit of an
 * unprivileged user, a system without NUMA or huge pages, a program that forks
 * and whose parent is killed.
 */
#include "rollkv/host.h"

#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { LAYERS = 2, HEADS = 2, DIM = 64, STEPS = 12, ROWS = 64 };

typedef struct report {
    uint64_t digest, pinned_bytes, unpinned_bytes, vm_bytes;
    int32_t ok, pid, numa_node;
} report;

static float rows[ROWS * HEADS * DIM], out[ROWS * HEADS * DIM];

static rkv_cache *create(void)
{
    rkv_kv_layer_params l[LAYERS] = {RKV_KV_LAYER_PARAMS_INIT, RKV_KV_LAYER_PARAMS_INIT};
    rkv_site_params s[LAYERS] = {RKV_SITE_PARAMS_INIT, RKV_SITE_PARAMS_INIT};
    rkv_cache_params p = RKV_CACHE_PARAMS_INIT;
    rkv_cache *cache = NULL;
    for (uint32_t i = 0; i < LAYERS; i++) {
        l[i].n_kv_heads = HEADS;
        l[i].head_dim_k = DIM;
        l[i].resident_cells = RKV_RESIDENT_NONE;
        s[i].kv_layer = i;
        s[i].n_q_heads = HEADS;
    }
    p.device = RKV_DEVICE_HOST;
    p.kv_layers = l;
    p.sites = s;
    p.n_kv_layers = p.n_sites = LAYERS;
    p.capacity_cells = 1 << 16;
    p.max_rows = ROWS;
    p.tile_cells = 64;
    p.host.n_threads = 1;
    p.numa = 0 + 1; /* node 0 */
    return rkv_cache_create(&p, &cache) == RKV_OK ? cache : NULL;
}

static rkv_status step(rkv_cache *cache, uint32_t n, uint64_t *digest)
{
    const rkv_batch_entry e = {.struct_size = sizeof e, .n_rows = ROWS, .n_new_cells = ROWS};
    const rkv_batch b = {.struct_size = sizeof b, .n_entries = 1, .entries = &e};
    rkv_attend_params a = RKV_ATTEND_PARAMS_INIT;
    a.q = a.k = a.v = (rkv_tensor){.data = rows, .type = RKV_TYPE_F32};
    a.out = (rkv_tensor){.data = out, .type = RKV_TYPE_F32};
    rkv_status st = rkv_step_begin(cache, &b);
    for (a.site = 0; a.site < LAYERS && st == RKV_OK; a.site++) {
        for (uint32_t i = 0; i < ROWS * HEADS * DIM; i++)
            rows[i] = (float)((i * 37u + n * 101u + a.site * 13u) % 64u) / 32 - 1;
        st = rkv_step_attend(cache, &a, NULL);
        if (st == RKV_OK)
            st = rkv_host_stream_sync(cache, NULL);
        for (uint32_t i = 0; i < sizeof out; i++)
            *digest = (*digest ^ ((const unsigned char *)out)[i]) * 0x100000001b3u;
    }
    return st == RKV_OK ? rkv_step_end(cache, NULL, NULL) : st;
}

static uint64_t vm_bytes(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%lu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A cache that has spilled; NULL: something failed. */
static rkv_cache *work(report *r)
{
    rkv_cache_stats s = {.struct_size = sizeof s};
    rkv_cache *cache = create();
    *r = (report){.digest = 0xcbf29ce484222325u, .pid = (int32_t)getpid()};
    rkv_status st = cache ? RKV_OK : RKV_E_SYSTEM;
    for (uint32_t n = 0; n < STEPS && st == RKV_OK; n++)
        st = step(cache, n, &r->digest);
    if (st == RKV_OK)
        st = rkv_cache_stats_get(cache, &s);
    r->pinned_bytes = s.pinned_bytes;
    r->unpinned_bytes = s.unpinned_bytes;
    rkv_cache_info info = {.struct_size = sizeof info};
    r->numa_node = cache && rkv_cache_info_get(cache, &info) == RKV_OK ? info.numa_node : -2;
    r->ok = st == RKV_OK && s.streamed_bytes > 0;
    r->vm_bytes = vm_bytes();
    return cache;
}

/* Runs fn in a child, which reports through a pipe. */
static pid_t spawn(void (*fn)(int fd), int *out_fd)
{
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(fd[0]);
        alarm(100);
        fn(fd[1]);
        _exit(0);
    }
    close(fd[1]);
    *out_fd = fd[0];
    return child;
}

static report receive(int fd)
{
    report r = {0};
    assert_int_equal(read(fd, &r, sizeof r), sizeof r);
    return r;
}

static void send_report(int fd, const report *r)
{
    if (write(fd, r, sizeof *r) != sizeof *r)
        _exit(1);
}

static void work_and_report(int fd)
{
    report r;
    rkv_cache_destroy(work(&r));
    send_report(fd, &r);
}

static void test_two_at_once(void **state)
{
    (void)state;
    pid_t child[2];
    int fd[2], status;
    report r[2];
    for (int i = 0; i < 2; i++)
        child[i] = spawn(work_and_report, &fd[i]);
    for (int i = 0; i < 2; i++) {
        r[i] = receive(fd[i]);
        close(fd[i]);
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
        assert_true(r[i].ok);
        assert_true(r[i].pinned_bytes > 0);
        assert_int_equal(r[i].unpinned_bytes, 0);
    }
    assert_int_equal(r[0].digest, r[1].digest);
}

static void work_with_limit(int fd)
{
    const struct rlimit none = {0, 0};
    if (setrlimit(RLIMIT_MEMLOCK, &none))
        _exit(2);
    work_and_report(fd);
}

static void test_memlock_limit(void **state)
{
    (void)state;
    int fd[2], status;
    const pid_t limited = spawn(work_with_limit, &fd[0]), plain = spawn(work_and_report, &fd[1]);
    const report a = receive(fd[0]), b = receive(fd[1]);
    waitpid(limited, &status, 0);
    assert_int_equal(status, 0);
    waitpid(plain, &status, 0);
    assert_true(a.ok);
    assert_int_equal(a.pinned_bytes + a.unpinned_bytes, b.pinned_bytes + b.unpinned_bytes);
    assert_int_equal(a.digest, b.digest);
    close(fd[0]);
    close(fd[1]);
}

/* A call that the system refuses from now on; with `advice`, with that third argument alone. */
typedef struct refusal {
    long call;
    uint32_t advice;
    int error;
    bool keeps_node; /* binding still works */
} refusal;

static bool refuse(const refusal *r)
{
    const struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)r->call, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])), /* little endian */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, r->advice, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, r->advice ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | (uint32_t)r->error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)r->error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof steps / sizeof *steps, (struct sock_filter *)(uintptr_t)steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static const refusal *refused;

static void work_refused(int fd)
{
    if (!refuse(refused))
        _exit(77);
    work_and_report(fd);
}

/* What the kernel has not, or a container forbids, costs speed at most. */
static void test_lacking_system(void **state)
{
    (void)state;
    static const refusal list[] = {
        {SYS_get_mempolicy, 0, ENOSYS, false}, /* a kernel without NUMA */
        {SYS_get_mempolicy, 0, EPERM, false},  /* a container that forbids it */
        {SYS_mbind, 0, EPERM, false},
        {SYS_madvise, MADV_HUGEPAGE, EINVAL, true}, /* a kernel without huge pages */
    };
    int fd, status;
    pid_t child = spawn(work_and_report, &fd);
    const report plain = receive(fd);
    close(fd);
    waitpid(child, &status, 0);
    assert_true(plain.ok);
    for (uint32_t i = 0; i < sizeof list / sizeof *list; i++) {
        report r = {0};
        refused = &list[i];
        child = spawn(work_refused, &fd);
        const ssize_t n = read(fd, &r, sizeof r);
        close(fd);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
            skip(); /* no filters here */
        assert_int_equal(status, 0);
        assert_int_equal(n, sizeof r);
        assert_true(r.ok);
        assert_int_equal(r.digest, plain.digest);
        assert_int_equal(r.numa_node, list[i].keeps_node ? plain.numa_node : -1);
    }
}

/* Without what keeps the tail out of forks a cache is refused: with it, a child would keep the pins. */
static void create_without_dontfork(int fd)
{
    const refusal no_dontfork = {SYS_madvise, MADV_DONTFORK, EINVAL, true};
    if (!refuse(&no_dontfork))
        _exit(77);
    report r = {.ok = create() == NULL && strstr(rkv_error_message(), "forks") != NULL};
    send_report(fd, &r);
}

static void test_forks_cannot_be_kept_out(void **state)
{
    (void)state;
    int fd, status;
    report r = {0};
    const pid_t child = spawn(create_without_dontfork, &fd);
    const ssize_t n = read(fd, &r, sizeof r);
    close(fd);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(status, 0);
    assert_int_equal(n, sizeof r);
    assert_true(r.ok);
}

/* Forks with the cache alive; the child reports too, and both stay. */
static void work_and_fork(int fd)
{
    report r;
    work(&r);
    const pid_t child = fork();
    if (child == 0) {
        r.pid = (int32_t)getpid();
        r.vm_bytes = vm_bytes();
        alarm(60);
    }
    send_report(fd, &r);
    for (;;)
        pause();
}

/* The child of a killed parent holds none of the tail's memory. */
static void test_killed_parent(void **state)
{
    (void)state;
    int fd, status;
    const pid_t parent = spawn(work_and_fork, &fd);
    report a = receive(fd), b = receive(fd);
    if (a.pid != (int32_t)parent) {
        const report c = a;
        a = b;
        b = c;
    }
    assert_int_equal(a.pid, parent);
    assert_true(a.ok);
    assert_int_equal(kill(parent, SIGKILL), 0);
    assert_int_equal(waitpid(parent, &status, 0), parent);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(kill(b.pid, 0), 0); /* it lives on */
    print_message("parent %llu bytes of address space, %llu of them pinned; child %llu\n",
                  (unsigned long long)a.vm_bytes, (unsigned long long)a.pinned_bytes, (unsigned long long)b.vm_bytes);
    assert_true(a.pinned_bytes >= (uint64_t)4 << 20);
    assert_true(b.vm_bytes + a.pinned_bytes <= a.vm_bytes);
    kill(b.pid, SIGKILL);
    close(fd);
}

/* Threads of the program but this one, and how many are called rkv-...; those take no signal of the program's. */
static uint32_t count_threads(uint32_t *named)
{
    uint32_t n = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    *named = 0;
    for (struct dirent *e; (e = readdir(tasks));) {
        char path[300], line[256], name[64] = "";
        unsigned long long blocked = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        FILE *f = atoi(e->d_name) && atoi(e->d_name) != getpid() ? fopen(path, "r") : NULL;
        while (f && fgets(line, sizeof line, f))
            if (sscanf(line, "Name: %63s", name) != 1)
                sscanf(line, "SigBlk: %llx", &blocked);
        if (!f)
            continue;
        fclose(f);
        n++;
        if (strncmp(name, "rkv-", 4))
            continue;
        assert_true(blocked >> (SIGUSR1 - 1) & blocked >> (SIGINT - 1) & blocked >> (SIGTERM - 1) & 1);
        ++*named;
    }
    closedir(tasks);
    return n;
}

/* Threads have names where the setting asks for them, and no others. */
static void test_threads(void **state)
{
    (void)state;
    report r;
    uint32_t named, unnamed;
    unsetenv("ROLLKV_THREAD_NAMES");
    rkv_cache *cache = work(&r);
    assert_non_null(cache);
    const uint32_t n = count_threads(&unnamed);
    assert_int_equal(unnamed, 0);
    assert_true(n >= 4); /* streams: three of the library's and the default one */
    rkv_cache_destroy(cache);
    setenv("ROLLKV_THREAD_NAMES", "1", 1);
    cache = work(&r);
    assert_non_null(cache);
    assert_int_equal(count_threads(&named), n);
    assert_true(named >= 4 && named <= n); /* a sanitizer's may be among them */
    rkv_cache_destroy(cache);
    setenv("ROLLKV_THREAD_NAMES", "0", 1);
    cache = work(&r);
    assert_non_null(cache);
    count_threads(&named);
    assert_int_equal(named, 0);
    rkv_cache_destroy(cache);
    unsetenv("ROLLKV_THREAD_NAMES");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_at_once),
        cmocka_unit_test(test_memlock_limit),
        cmocka_unit_test(test_lacking_system),
        cmocka_unit_test(test_forks_cannot_be_kept_out),
        cmocka_unit_test(test_killed_parent),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
