/* SPDX-License-Identifier: MIT
 *
 * A fault on a GPU: a kernel writes where there is no memory.  CUDA then answers
 * nothing more in this process, so this is the only thing that the program does.
 */
#include "cuda_fixture.h"

static void test_fault_poisons(void **state)
{
    (void)state;
    rkvi_device *d = gpu_open();
    rkvi_event *e;
    void *s, *p, *host;
    bool is_done;
    const uint64_t bases[] = {4096}, index[] = {0}; /* the first pages are never mapped */
    ok(rkvi_dev(stream_create, d, "s", &s));
    ok(rkvi_dev(event_create, d, &e));
    ok(rkvi_dev(host_alloc, d, 4096, &host));
    p = gpu_put(d, NULL, 4096);
    const rkvi_open_args a = {.bases = gpu_put(d, bases, sizeof bases),
                              .base_index = gpu_put(d, index, sizeof index),
                              .bytes = 4096};
    const rkvi_launch l = {.op = RKVI_OP_OPEN, .args = &a, .args_bytes = sizeof a, .grid = 1};
    ok(rkvi_dev(launch, d, &l, s));
    assert_int_equal(rkvi_dev(stream_sync, d, s), RKV_E_POISONED);
    printf("%s\n", rkvi_error_text());
    assert_non_null(strstr(rkvi_error_text(), "test_cuda_poison.c"));
    assert_int_equal(gpu_copy(d, RKVI_D2H, host, p, 4096, s), RKV_E_POISONED);
    assert_int_equal(rkvi_dev(event_record, d, e, s), RKV_E_POISONED);
    assert_int_equal(rkvi_dev(event_sync, d, e), RKV_E_POISONED);
    assert_int_equal(rkvi_dev(event_query, d, e, &is_done), RKV_E_POISONED);
    assert_int_equal(rkvi_dev(launch, d, &l, s), RKV_E_POISONED);
    rkvi_device_info info;
    assert_int_equal(rkvi_dev(info, d, &info), RKV_E_POISONED);
    assert_int_equal(rkvi_dev(mem_free, d, p), RKV_E_POISONED);
    assert_int_equal(rkvi_dev(host_free, d, host), RKV_E_POISONED);
    assert_int_equal(rkvi_dev(event_destroy, d, e), RKV_E_POISONED);
    assert_int_equal(rkvi_dev(stream_destroy, d, s), RKV_E_POISONED);
    assert_non_null(strstr(rkvi_error_text(), "cudaStreamSynchronize")); /* the first cause still */
    rkvi_dev_destroy(d);
}

int main(void)
{
    gpu_or_skip();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fault_poisons)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
