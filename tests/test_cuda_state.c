/* SPDX-License-Identifier: MIT
 *
 * States and cells between the host executor and a GPU: the same stored bytes
 * on both, and a loaded sequence goes on with the GPU's own bits.
 */
#include "rollkv/cells.h"
#include "state_fixture.h"
#include "state_hash.h"
#include "step_types.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CELLS 200u
#define ROW (2u * 128u) /* elements of K or V of a cell */

/* f16, head dim 128; a layer without a window, one with half of one, one resident. */
static fx_model model(uint32_t residency)
{
    static const uint64_t budgets[2][3] = {{RKV_RESIDENT_NONE, 64, RKV_RESIDENT_ALL},
                                           {RKV_RESIDENT_ALL, RKV_RESIDENT_NONE, 32}};
    fx_model m = fx_model_make(32, 0, 800);
    m.params.n_sequences = 2;
    m.params.max_rows = 128;
    for (uint32_t l = 0; l < 3; l++)
        fx_add_layer(&m, 2, 128, 128, budgets[residency][l]);
    return m;
}

static void text(fx *w)
{
    fx_append(w, 0, 150, RKV_REGIME_PREFILL, 1000);
    for (uint32_t i = 0; i < 10; i++)
        fx_append(w, 0, 5, RKV_REGIME_DECODE, 2000 + 5 * i);
}

static fx_bytes from_host;

/* Before there is a GPU in this program. */
static void make_on_host(void)
{
    fx w;
    const fx_model m = model(0);
    fx_open(&w, &m);
    text(&w);
    fx_save(&w, 0, &from_host);
    fx_close(&w);
}

static void test_states(void **state)
{
    (void)state;
    fx a, b;
    fx_bytes bytes;
    const fx_model m = model(0), n = model(1);
    fx_open(&a, &m);
    fx_open(&b, &n);
    text(&a);
    fx_save(&a, 0, &bytes);
    assert_int_equal(bytes.n, from_host.n);
    assert_memory_equal(bytes.at, from_host.at, bytes.n);
    fx_ok(fx_load(&b, 1, &from_host, true), "load");
    fx_copy_record(&b, 1, &a, 0);
    fx_bytes_free(&bytes);
    fx_save(&b, 1, &bytes);
    assert_memory_equal(bytes.at, from_host.at, bytes.n);
    for (uint32_t i = 0; i < 8; i++) {
        fx_append(&a, 0, 1 + 2 * i, RKV_REGIME_DECODE, 5000 + 20 * i);
        fx_append(&b, 1, 1 + 2 * i, RKV_REGIME_DECODE, 5000 + 20 * i);
        assert_true(fx_same(&a, &b));
    }
    fx_compare_fresh(&b, 1, 3);
    fx_check_empty(&b);
    fx_bytes_free(&bytes);
    fx_close(&a);
    fx_close(&b);
}

static void cells_of(fx *w, rkv_cells *c, uint32_t layer, void *k, void *v, uint64_t pitch)
{
    *c = (rkv_cells){.struct_size = sizeof *c, .kv_layer = layer, .memory = RKV_MEMORY_DEVICE, .n_cells = CELLS};
    c->k = (rkv_tensor){.data = k, .type = RKV_TYPE_F16, .row_stride = (int64_t)pitch, .head_stride = 128};
    c->v = (rkv_tensor){.data = v, .type = RKV_TYPE_F16, .row_stride = (int64_t)pitch, .head_stride = 128};
    (void)w;
}

/* Through device memory, from one cache into another. */
static void test_cells(void **state)
{
    (void)state;
    const rkv_pos_range all = {0, RKV_POS_END};
    const uint64_t pitch = ROW + 64;
    fx a, b;
    fx_bytes x;
    void *k, *v;
    rkv_cells c;
    const fx_model m = model(1), n = model(0);
    fx_open(&a, &m);
    fx_open(&b, &n);
    text(&a);
    fx_ok(rkvi_dev(mem_alloc, a.dev, CELLS * pitch * 2, &k), "mem_alloc");
    fx_ok(rkvi_dev(mem_alloc, a.dev, CELLS * pitch * 2, &v), "mem_alloc");
    fx_ok(rkv_import_begin(b.cache, 0, CELLS, NULL), "import_begin");
    for (uint32_t l = 0; l < 3; l++) {
        cells_of(&a, &c, l, k, v, pitch);
        fx_ok(rkv_export_cells(a.cache, 0, &all, &c, a.stream), "export");
        fx_ok(rkv_import_cells(b.cache, &c, b.stream), "import");
    }
    fx_ok(rkv_import_end(b.cache), "import_end");
    fx_ok(rkvi_dev(mem_free, a.dev, k), "mem_free");
    fx_ok(rkvi_dev(mem_free, a.dev, v), "mem_free");
    fx_save(&b, 0, &x);
    assert_int_equal(x.n, from_host.n);
    assert_memory_equal(x.at, from_host.at, x.n);
    fx_copy_record(&b, 0, &a, 0);
    fx_compare_fresh(&b, 0, 2);
    fx_bytes_free(&x);
    fx_close(&a);
    fx_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_states), cmocka_unit_test(test_cells)};
    if (rkvi_state_hash_built() != RKV_OK)
        return 77;
    make_on_host();
    fx_use_gpu();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fx_bytes_free(&from_host);
    return failed;
}
