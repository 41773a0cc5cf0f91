/* SPDX-License-Identifier: MIT
 *
 * Calls of CUDA that fail, each kind's nth in turn, through creation, steps,
 * growth, sharing, drafts, states, cells, captured graphs and destruction: an
 * error that names CUDA's, nothing left, no error left for others to find, and
 * the same call then succeeds, with the bits of an untouched cache.  Errors that
 * stay with the context, in any call or from work in mid-step, end the cache:
 * each later call says so, and destroying it gives everything back.
 *
 * The linker wraps the runtime (cuda_wrap.h): the same program runs over a GPU
 * and over the fake runtime.  ROLLKV_TEST_FULL=1: every nth.
 */
#include "cuda_wrap.h"
#include "fault_scripts.h"

#include "cuda_fixture.h"

#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>
#if FAKE_CUDA
#include "fake_cuda.h"
#endif

static jmp_buf ended;
static cudaError_t injected;
static wrap_kind what; /* and which of them */
static uint64_t which;
static bool is_sticky;
static uint32_t n_failed, n_ended;
static bool is_warm; /* what the fixture keeps has been made */

static void arm(wrap_kind kind, uint64_t nth, cudaError_t error, bool sticky)
{
    what = kind;
    which = nth;
    injected = error;
    wrap_arm(kind, nth, (int)error, sticky);
}

static void message_names_it(void)
{
    if (!strstr(rkv_error_message(), cudaGetErrorName(injected)))
        fail_msg("not a word of %s: %s", cudaGetErrorName(injected), rkv_error_message());
}

static bool failed(rkv_status s)
{
    if (s == RKV_OK)
        return false;
    n_failed++;
    if (s == RKV_E_POISONED)
        longjmp(ended, 1);
    if (is_sticky || (s != RKV_E_DEVICE_CALL && s != RKV_E_DEVICE_MEMORY && s != RKV_E_HOST_MEMORY))
        fail_msg("%s: %s", rkv_status_name(s), rkv_error_message());
    message_names_it();
    return true;
}

/* ------------------------------------------------------------------- a graph */

static rkv_graph graph;
static rkvi_graph *exec;

static void drop_exec(fx *w)
{
    rkvi_graph *gone = exec;
    exec = NULL;
    graph = (rkv_graph){.struct_size = sizeof graph};
    const int64_t held = (int64_t)wrap_holds().execs;
    if (gone)
        rkvi_dev(graph_destroy, w->dev, gone);
    if (gone && (int64_t)wrap_holds().execs == held)
        rkvi_dev(graph_destroy, w->dev, gone); /* the call that failed came before the graph's end */
}

/* False: it failed, and the stream is captured no more. */
static bool capture(fx *w)
{
    bool bad = false;
    drop_exec(w);
    if (failed(rkvi_dev(capture_begin, w->dev, w->stream, false)))
        return false;
    rkv_status s = rkv_graph_capture(w->cache, 0, 0, w->stream);
    for (uint32_t site = 0; site < w->model.n_sites && s == RKV_OK; site++)
        s = fx_attend(w, site);
    const rkv_status e = s == RKV_OK ? rkv_graph_capture_end(w->cache, w->stream, &graph) : s;
    char text[400];
    snprintf(text, sizeof text, "%s", rkv_error_message());
    const rkv_status c = rkvi_dev(capture_end, w->dev, w->stream, &exec);
    if (e == RKV_OK)
        bad = failed(c);
    else
        bad = failed(rkvi_fail(e, "%s", text));
    if (bad)
        drop_exec(w);
    return !bad;
}

static bool replay(fx *w)
{
    uint64_t key = 0;
    fx_ok(rkv_step_graph_key(w->cache, &key), "key");
    if (failed(rkv_step_start(w->cache, w->stream)))
        return false;
    if ((!exec || graph.key != key) && !capture(w))
        return false;
    return !failed(rkv_step_replay(w->cache, &graph, w->stream)) &&
           !failed(rkvi_dev(graph_launch, w->dev, exec, w->stream)) && !failed(fx_end(w, NULL, 0));
}

static void graphs(fx *w)
{
    fs_append(w, 0, 48, RKV_REGIME_PREFILL, 100);
    fs_append(w, 1, 20, RKV_REGIME_PREFILL, 300);
    w->is_fixed = true;
    for (uint32_t i = 0; i < 14; i++) {
        const fx_entry e[2] = {{.rows = 1, .tag = 1000 + i}, {.seq = 1, .rows = 1, .tag = 2000 + i}};
        for (bool done = false; !done;) {
            RETRY(fx_begin(w, e, 2));
            fx_fill(w);
            done = replay(w);
            if (!done)
                RETRY(fx_abort(w));
        }
        RETRY(fx_sync(w));
    }
    w->is_fixed = false;
}

/* --------------------------------------------------------------------- a run */

cudaError_t __real_cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out);
cudaError_t __real_cudaGetLastError(void);

enum { N_SCRIPTS = FS_SCRIPTS + 1 };

static fs_script script_at(uint32_t i)
{
    return i < FS_SCRIPTS ? fs_scripts[i] : graphs;
}

static void open_cache(fx *w, fs_script script)
{
    fx_model m = fs_model();
    if (script == graphs)
        m.params.flags |= RKV_FLAG_GRAPHS;
    fx_open(w, &m);
    if (script == graphs)
        fx_ok(rkvi_dev(stream_create, w->dev, "engine", &w->stream), "stream");
}

static void close_cache(fx *w, fs_script script)
{
    drop_exec(w);
    if (script == graphs) {
        cudaGraph_t rest = NULL; /* of a capture that could not be ended */
        if (__real_cudaStreamEndCapture(w->stream, &rest) == cudaSuccess && rest)
            cudaGraphDestroy(rest);
        __real_cudaGetLastError();
        rkvi_dev(stream_sync, w->dev, w->stream);
        rkvi_dev(stream_destroy, w->dev, w->stream);
    }
    fx_close(w);
}

static void check_held(const wrap_held *before)
{
    const wrap_held now = wrap_holds();
    if (!is_warm)
        return;
    const int64_t left[] = {now.device - before->device,   now.pinned - before->pinned,
                            now.registered - before->registered, now.streams - before->streams,
                            now.events - before->events,   now.execs - before->execs};
    static const char *const names[] = {"device blocks", "pinned blocks", "registrations",
                                        "streams",       "events",        "graphs"};
    for (uint32_t i = 0; i < sizeof left / sizeof *left; i++)
        if (left[i] != 0)
            fail_msg("%s %llu: %lld %s are left", wrap_names[what], (unsigned long long)which, (long long)left[i],
                     names[i]);
    assert_int_equal(wrap_left_errors(), 0);
}

/* All that the cache can be asked says why it is lost. */
static void check_lost(fx *w)
{
    const fx_entry e = {.seq = 3, .rows = 1}; /* which no script uses */
    rkv_cache_stats s = {.struct_size = sizeof s};
    fx_abort(w); /* an engine's own call may be what saw it */
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(fx_begin(w, &e, 1), RKV_E_POISONED);
        message_names_it();
    }
    assert_int_equal(fx_abort(w), RKV_E_POISONED);
    assert_int_equal(rkv_sequence_clear(w->cache, 0), RKV_E_POISONED);
    assert_int_equal(rkv_sequence_park(w->cache, 0), RKV_E_POISONED);
    assert_int_equal(rkv_cache_clear(w->cache), RKV_E_POISONED);
    assert_int_equal(rkv_cache_stats_get(w->cache, &s), RKV_E_POISONED);
    message_names_it();
}

/* After the script, whose failures were made good. */
static void check_whole(fx *w, uint64_t nth)
{
    fx_compare_fresh(w, nth % 2, 4);
    fx_check_empty(w);
}

/* False: the call was not reached. */
static bool run(fs_script script, wrap_kind kind, uint64_t nth, cudaError_t error, bool sticky)
{
    static fx w;
    const wrap_held before = wrap_holds();
    is_sticky = sticky;
    open_cache(&w, script);
    arm(kind, nth, error, sticky);
    if (setjmp(ended)) {
        n_ended++;
        check_lost(&w);
        close_cache(&w, script);
        wrap_disarm();
        check_held(&before);
        return true;
    }
    script(&w);
    const bool hit = wrap_disarm();
    assert_false(hit && sticky);
    check_whole(&w, nth);
    close_cache(&w, script);
    check_held(&before);
    return hit;
}

static uint64_t after(uint64_t nth)
{
    return fx_is_full() ? nth + 1 : 2 * nth + nth / 4 + (nth < 4);
}

/* What CUDA gives in such a call. */
static cudaError_t error_of(wrap_kind kind, uint64_t nth)
{
    static const cudaError_t refused[] = {cudaErrorHostMemoryAlreadyRegistered, cudaErrorMemoryAllocation,
                                          cudaErrorNotSupported};
    if (kind == WRAP_MALLOC || kind == WRAP_HOST_ALLOC)
        return cudaErrorMemoryAllocation;
    if (kind == WRAP_REGISTER)
        return refused[nth % 3];
    return nth % 2 ? cudaErrorNotSupported : cudaErrorLaunchOutOfResources;
}

/* --------------------------------------------------------------------- tests */

static void test_calls(void **state)
{
    (void)state;
    static const wrap_kind kinds[] = {WRAP_MALLOC,      WRAP_HOST_ALLOC,   WRAP_REGISTER, WRAP_STREAM_CREATE,
                                      WRAP_EVENT_CREATE, WRAP_RECORD,      WRAP_WAIT,     WRAP_EVENT_SYNC,
                                      WRAP_EVENT_QUERY, WRAP_STREAM_SYNC,  WRAP_COPY,     WRAP_FILL,
                                      WRAP_HOST_FUNC,   WRAP_LAUNCH,       WRAP_INFO,     WRAP_CAPTURE,
                                      WRAP_GRAPH,       WRAP_CONTEXT};
    for (uint32_t i = 0; i < N_SCRIPTS; i++) {
        uint32_t n_runs = 0;
        n_failed = n_ended = 0;
        for (uint32_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            for (uint64_t nth = 1; run(script_at(i), kinds[k], nth, error_of(kinds[k], nth), false); n_runs++)
                nth = after(nth);
        print_message("script %u: %u calls of CUDA failed in turn, %u calls failed, %u caches ended\n", i, n_runs,
                      n_failed, n_ended);
        assert_true(n_failed > 0);
    }
}

/* CUDA calls an argument of attend or end wrong (a stream that is none): the
 * step can only be aborted, which the status says. */
static void test_broken_steps(void **state)
{
    (void)state;
    static const wrap_kind kinds[] = {WRAP_LAUNCH, WRAP_WAIT, WRAP_RECORD, WRAP_COPY};
    static fx w;
    uint32_t n_broken = 0;
    is_sticky = false;
    open_cache(&w, fs_scripts[0]);
    fs_append(&w, 0, 48, RKV_REGIME_PREFILL, 100);
    fs_append(&w, 0, 20, RKV_REGIME_PREFILL, 200);
    for (uint32_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        bool hit = true;
        for (uint64_t nth = 1; hit; nth++) {
            const fx_entry e = {.rows = 1, .tag = 300 + 100 * k};
            fx_ok(fx_begin(&w, &e, 1), "begin");
            arm(kinds[k], nth, cudaErrorInvalidResourceHandle, false);
            rkv_status s = fx_attend(&w, 0);
            s = s == RKV_OK ? fx_attend(&w, 1) : s;
            s = s == RKV_OK ? fx_end(&w, NULL, 0) : s;
            hit = wrap_disarm();
            n_broken += s != RKV_OK;
            if (s != RKV_OK) {
                assert_int_equal(s, RKV_E_DEVICE_CALL);
                fx_ok(fx_abort(&w), "abort");
            }
        }
    }
    assert_true(n_broken > 10);
    check_whole(&w, 0);
    close_cache(&w, fs_scripts[0]);
}

/* From some call on CUDA answers nothing more. */
static void test_lost_in_calls(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_SCRIPTS; i++) {
        n_ended = 0;
        for (uint64_t nth = 1; run(script_at(i), WRAP_ANY, nth, cudaErrorLaunchFailure, true);)
            nth = after(nth);
        print_message("script %u: %u caches ended\n", i, n_ended);
        assert_true(n_ended > 3);
    }
}

static bool run_create(const rkv_cache_params *p, wrap_kind kind, uint64_t nth, cudaError_t error, bool sticky)
{
    const wrap_held before = wrap_holds();
    rkv_cache *cache = NULL;
    arm(kind, nth, error, sticky);
    const rkv_status s = rkv_cache_create(p, &cache);
    if (s != RKV_OK) {
        assert_null(cache);
        assert_true(s == RKV_E_POISONED ? sticky : true);
        message_names_it();
        n_failed++;
    }
    bool hit = wrap_was_hit();
    if (!sticky) /* in destruction: below */
        wrap_disarm();
    rkv_cache_destroy(cache);
    hit = wrap_disarm() || hit;
    check_held(&before);
    return hit;
}

static void test_create(void **state)
{
    (void)state;
    fx_model m = fs_model();
    m.params.kv_layers = m.layers;
    m.params.sites = m.sites;
    m.params.n_kv_layers = m.n_layers;
    m.params.n_sites = m.n_sites;
    m.params.device = 0;
    for (uint32_t sticky = 0; sticky < 2; sticky++) {
        uint32_t n_runs = 0;
        n_failed = 0;
        for (int kind = 0; kind < WRAP_KINDS; kind++) {
            if (sticky && kind != WRAP_ANY)
                continue;
            uint64_t nth = 1;
            const bool all = kind == WRAP_MALLOC || kind == WRAP_HOST_ALLOC || kind == WRAP_REGISTER;
            while (run_create(&m.params, (wrap_kind)kind, nth,
                              sticky ? cudaErrorLaunchFailure : error_of((wrap_kind)kind, nth), sticky)) {
                nth = all ? nth + 1 : after(nth);
                n_runs++;
            }
        }
        print_message("create%s: %u calls of CUDA failed in turn, %u creations failed\n", sticky ? ", lost" : "",
                      n_runs, n_failed);
        assert_true(n_failed > 5);
    }
}

/* The link is measured before the cache takes anything: memory that is refused for it
 * costs the rate alone. */
static void link_under(wrap_kind kind, uint64_t nth, cudaError_t error, bool is_measured)
{
    static fx w;
    const wrap_held before = wrap_holds();
    const fx_model m = fs_model();
    rkv_cache_info info = {.struct_size = sizeof info};
    arm(kind, nth, error, false);
    fx_open(&w, &m);
    assert_int_equal(wrap_disarm(), nth > 0);
    fx_ok(rkv_cache_info_get(w.cache, &info), "info");
    assert_int_equal(info.link_is_measured, is_measured);
    assert_int_equal(info.link_bytes_per_s > 0, is_measured);
    fs_append(&w, 0, 48, RKV_REGIME_PREFILL, 100);
    fs_append(&w, 1, 48, RKV_REGIME_PREFILL, 200);
    check_whole(&w, 0);
    fx_close(&w);
    check_held(&before);
}

static void test_link(void **state)
{
    (void)state;
    static fx w;
    const fx_model m = fs_model();
    is_sticky = false;
    link_under(WRAP_ANY, 0, cudaSuccess, true);
    link_under(WRAP_MALLOC, 1, cudaErrorMemoryAllocation, false);
    link_under(WRAP_REGISTER, 1, cudaErrorNotSupported, true); /* pinned otherwise */
    const wrap_held before = wrap_holds();
    for (uint64_t nth = 1; nth <= 3; nth++) { /* the copy that wakes the link, and those that are timed */
        arm(WRAP_COPY, nth, cudaErrorNotSupported, false);
        assert_int_equal(fx_try_open(&w, &m), RKV_E_DEVICE_CALL);
        message_names_it();
        assert_true(wrap_disarm());
        check_held(&before);
    }
}

/* Of a cache with work in flight. */
static bool run_destroy(wrap_kind kind, uint64_t nth, cudaError_t error, bool sticky)
{
    static fx w;
    const wrap_held before = wrap_holds();
    is_sticky = false;
    open_cache(&w, fs_scripts[0]);
    fs_append(&w, 0, 48, RKV_REGIME_PREFILL, 100);
    const fx_entry e = {.rows = 2, .tag = 200};
    fx_ok(fx_begin(&w, &e, 1), "begin");
    for (uint32_t s = 0; s < w.model.n_sites; s++)
        fx_ok(fx_attend(&w, s), "attend");
    fx_ok(fx_end(&w, NULL, 0), "end");
    arm(kind, nth, error, sticky);
    fx_close(&w);
    const bool hit = wrap_disarm();
    check_held(&before);
    return hit;
}

static void test_destroy(void **state)
{
    (void)state;
    static const wrap_kind kinds[] = {WRAP_EVENT_SYNC, WRAP_STREAM_SYNC, WRAP_EVENT_QUERY, WRAP_RELEASE, WRAP_ANY};
    uint32_t n_runs = 0;
    for (uint32_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (uint64_t nth = 1; run_destroy(kinds[k], nth, error_of(kinds[k], nth), false); n_runs++)
            nth = after(nth);
    for (uint64_t nth = 1; run_destroy(WRAP_ANY, nth, cudaErrorLaunchFailure, true); n_runs++)
        nth = after(nth);
    print_message("%u calls of CUDA failed in destruction\n", n_runs);
    assert_true(n_runs > 10);
}

#if FAKE_CUDA
/* Work that was enqueued faults, the nth operation that runs. */
static bool run_fault(fs_script script, uint64_t nth)
{
    static fx w;
    const wrap_held before = wrap_holds();
    injected = cudaErrorLaunchFailure;
    is_sticky = true;
    fake_cuda_seed(nth);
    open_cache(&w, script);
    fake_cuda_fault_op(nth, cudaErrorLaunchFailure);
    if (setjmp(ended)) {
        n_ended++;
        check_lost(&w);
        close_cache(&w, script);
        fake_cuda_heal();
        check_held(&before);
        return true;
    }
    script(&w);
    fake_cuda_fault_op(0, cudaSuccess);
    check_whole(&w, nth);
    close_cache(&w, script);
    check_held(&before);
    return false;
}

static void test_faults(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_SCRIPTS; i++) {
        n_ended = 0;
        for (uint64_t nth = 1; run_fault(script_at(i), nth);)
            nth += 1 + (fx_is_full() ? 0 : nth / 2);
        print_message("script %u: %u faults\n", i, n_ended);
        assert_true(n_ended > 3);
    }
}
#endif

/* ---------------------------------------------------------- a fault in mid-step */

/* A kernel writes where there is no memory, between two attends.  CUDA then
 * answers nothing more in the process: this is a program of its own. */
static int fault_in_step(void)
{
    static fx w;
    rkv_status s = RKV_OK;
    fx_use_gpu();
    const fx_model m = fs_model();
    fx_open(&w, &m);
    const uint64_t bases[] = {4096}, index[] = {0}; /* the first pages are never mapped */
    const rkvi_open_args a = {.bases = gpu_put(w.dev, bases, sizeof bases),
                              .base_index = gpu_put(w.dev, index, sizeof index),
                              .bytes = 4096};
    const rkvi_launch l = {.op = RKVI_OP_OPEN, .args = &a, .args_bytes = sizeof a, .grid = 1};
    const fx_entry e = {.rows = 2, .tag = 100};
    fx_append(&w, 0, 48, RKV_REGIME_PREFILL, 1);
    fx_ok(fx_begin(&w, &e, 1), "begin");
    fx_ok(fx_attend(&w, 0), "attend");
    fx_ok(rkvi_dev(launch, w.dev, &l, w.stream), "launch");
    s = fx_attend(&w, 1);
    s = s == RKV_OK ? fx_end(&w, NULL, 0) : s;
    s = s == RKV_OK ? fx_sync(&w) : s;
    injected = cudaErrorIllegalAddress;
    if (s != RKV_E_POISONED || !strstr(rkv_error_message(), cudaGetErrorName(injected)))
        return 1;
    printf("%s\n", rkv_error_message());
    if (fx_begin(&w, &e, 1) != RKV_E_POISONED || rkv_cache_clear(w.cache) != RKV_E_POISONED)
        return 2;
    fx_close(&w);
    return 0;
}

static void test_fault_in_step(void **state)
{
    (void)state;
    int status = -1;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "test_cuda_faults", "--fault", (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* What the fixture keeps comes first: it is no leak, and does not fail. */
static void test_none(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) /* both streams of the engine's */
        for (uint32_t s = 0; s < N_SCRIPTS; s++)
            assert_false(run(script_at(s), WRAP_ANY, 0, cudaSuccess, false));
    is_warm = true;
}

int main(int argc, char **argv)
{
    fs_failed = failed;
    if (argc > 1 && strcmp(argv[1], "--fault") == 0)
        return fault_in_step();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fault_in_step), cmocka_unit_test(test_none),
        cmocka_unit_test(test_create),       cmocka_unit_test(test_link),        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_broken_steps),  cmocka_unit_test(test_lost_in_calls),
        cmocka_unit_test(test_destroy),
#if FAKE_CUDA
        cmocka_unit_test(test_faults),
#endif
    };
    fx_use_gpu();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
