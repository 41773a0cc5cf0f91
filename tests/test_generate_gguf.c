/* SPDX-License-Identifier: MIT
 *
 * The example engine's GGUF reader: what it reads from a made-up file, and that damaged and
 * truncated ones end in a sentence.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "generate_file.h"
#include "gguf.h"

static struct made_bytes small_file(void)
{
    static const char *const words[] = {"one", "", "three"};
    static const int32_t numbers[] = {-1, 7};
    static const float row[] = {1, 2, 3, 4, 5, 6};
    static const uint8_t block[34] = {0x00, 0x3c, 5};
    struct made_file f = {0};
    made_value_u32(&f, "a.number", 4000000000u);
    made_value_f32(&f, "a.float", 0.5f);
    made_value_bool(&f, "a.bool", 1);
    made_value_string(&f, "a.text", "hello");
    made_value_strings(&f, "a.words", words, 3);
    made_value_i32s(&f, "a.numbers", numbers, 2);
    made_tensor(&f, &(struct made_tensor){"plain", 3, 2, 0, row, sizeof row});
    made_tensor(&f, &(struct made_tensor){"quantised", 32, 0, 8, block, sizeof block});
    return made_finish(&f);
}

static void test_reads_values(void **state)
{
    (void)state;
    struct made_bytes m = small_file();
    struct gguf g;
    struct gen_error err;
    uint64_t u;
    float x;
    bool b;
    struct gguf_string s;
    assert_int_equal(gguf_parse(&g, m.bytes, m.count, &err), 0);
    assert_true(gguf_get_u64(&g, "a.number", &u));
    assert_int_equal(u, 4000000000u);
    assert_true(gguf_get_f32(&g, "a.float", &x));
    assert_true(x == 0.5f);
    assert_true(gguf_get_bool(&g, "a.bool", &b));
    assert_true(b);
    assert_true(gguf_get_string(&g, "a.text", &s));
    assert_true(gguf_string_is(s, "hello"));
    /* Another kind, and no such key: refused. */
    assert_false(gguf_get_u64(&g, "a.text", &u));
    assert_false(gguf_get_string(&g, "a.number", &s));
    assert_false(gguf_get_u64(&g, "a.numbe", &u));

    const struct gguf_value *words = gguf_find(&g, "a.words");
    const uint8_t *cursor = words->data;
    assert_int_equal(words->count, 3);
    assert_true(gguf_string_is(gguf_next_string(&cursor), "one"));
    assert_true(gguf_string_is(gguf_next_string(&cursor), ""));
    assert_true(gguf_string_is(gguf_next_string(&cursor), "three"));
    const struct gguf_value *numbers = gguf_find(&g, "a.numbers");
    assert_int_equal(gguf_item_i64(numbers, 0), -1);
    assert_int_equal(gguf_item_i64(numbers, 1), 7);
    gguf_close(&g);
    free(m.bytes);
}

static void test_reads_tensors(void **state)
{
    (void)state;
    struct made_bytes m = small_file();
    struct gguf g;
    struct gen_error err;
    float last;
    assert_int_equal(gguf_parse(&g, m.bytes, m.count, &err), 0);
    const struct gguf_tensor *t = gguf_find_tensor(&g, "plain");
    assert_non_null(t);
    assert_int_equal(t->dims[0], 3);
    assert_int_equal(t->rows, 2);
    assert_int_equal(t->bytes, 24);
    memcpy(&last, t->data + 20, sizeof last);
    assert_true(last == 6.0f);
    t = gguf_find_tensor(&g, "quantised");
    assert_int_equal(t->bytes, 34);
    assert_int_equal(t->data[2], 5);
    assert_null(gguf_find_tensor(&g, "missing"));
    gguf_close(&g);
    free(m.bytes);
}

/* Each length gets memory of just that size, so that ASan sees a read beyond it. */
static void test_truncated(void **state)
{
    (void)state;
    struct made_bytes m = small_file();
    for (size_t length = 0; length < m.count; length++) {
        uint8_t *part = malloc(length + (length == 0));
        struct gguf g;
        struct gen_error err = {""};
        assert_non_null(part);
        memcpy(part, m.bytes, length);
        assert_int_equal(gguf_parse(&g, part, length, &err), -1);
        assert_true(strlen(err.text) > 20);
        assert_null(g.values);
        free(part);
    }
    free(m.bytes);
}

/* Every byte set to several values: the reader may refuse or not, but never reads outside. */
static void test_damaged(void **state)
{
    (void)state;
    static const uint8_t values[] = {0x00, 0x01, 0x09, 0x7f, 0x80, 0xff};
    struct made_bytes m = small_file();
    size_t refused = 0;
    for (size_t at = 0; at < m.count; at++)
        for (size_t v = 0; v < sizeof values; v++) {
            uint8_t *copy = malloc(m.count);
            struct gguf g;
            struct gen_error err = {""};
            assert_non_null(copy);
            memcpy(copy, m.bytes, m.count);
            copy[at] = values[v];
            if (gguf_parse(&g, copy, m.count, &err) == 0)
                gguf_close(&g);
            else {
                refused++;
                assert_true(strlen(err.text) > 20);
            }
            free(copy);
        }
    assert_true(refused > 200);
    free(m.bytes);
}

static void expect_error(struct made_bytes m, const char *part)
{
    struct gguf g;
    struct gen_error err = {""};
    assert_int_equal(gguf_parse(&g, m.bytes, m.count, &err), -1);
    if (strstr(err.text, part) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, part);
    free(m.bytes);
}

static struct made_bytes one_tensor(uint32_t type, uint64_t row_values, uint64_t rows)
{
    struct made_file f = {0};
    static const uint8_t bytes[64];
    made_tensor(&f, &(struct made_tensor){"t", row_values, rows, type, bytes, sizeof bytes});
    return made_finish(&f);
}

static void test_refusals(void **state)
{
    (void)state;
    struct made_bytes m = small_file();
    m.bytes[0] = 'X';
    expect_error(m, "no GGUF file");
    m = small_file();
    m.bytes[4] = 4;
    expect_error(m, "version 4");
    m = small_file();
    memset(m.bytes + 8, 0xff, 8);
    expect_error(m, "claims");
    m = small_file();
    memset(m.bytes + 16, 0x7f, 8);
    expect_error(m, "claims");
    expect_error(one_tensor(0, 17, 1), "before the end of tensor 't'");
    expect_error(one_tensor(0, 2147483647, 2147483647), "before the end of tensor 't'");
    expect_error(one_tensor(0, UINT64_MAX, 1), "dimension");
    expect_error(one_tensor(8, 33, 1), "no multiple of 32");

    struct made_file f = {0};
    made_value_u32(&f, "general.alignment", 24);
    expect_error(made_finish(&f), "alignment");
}

/* Arrays of arrays, deeper than the reader follows. */
static void test_nesting(void **state)
{
    (void)state;
    for (int depth = 1; depth <= 100; depth += 99) {
        struct made_file f = {0};
        made_string(&f.values, "deep");
        made_u32(&f.values, GGUF_ARRAY);
        for (int i = 0; i < depth; i++) {
            made_u32(&f.values, GGUF_ARRAY);
            made_u64(&f.values, 1);
        }
        made_u32(&f.values, GGUF_U8);
        made_u64(&f.values, 0);
        f.value_count = 1;
        struct made_bytes m = made_finish(&f);
        struct gguf g;
        struct gen_error err;
        if (depth == 1) {
            assert_int_equal(gguf_parse(&g, m.bytes, m.count, &err), 0);
            gguf_close(&g);
            free(m.bytes);
        } else {
            expect_error(m, "nested");
        }
    }
}

static void test_unknown_type_is_kept_without_data(void **state)
{
    (void)state;
    struct made_bytes m = one_tensor(99, 16, 1);
    struct gguf g;
    struct gen_error err;
    assert_int_equal(gguf_parse(&g, m.bytes, m.count, &err), 0);
    assert_null(gguf_find_tensor(&g, "t")->data);
    gguf_close(&g);
    free(m.bytes);
}

static void test_open(void **state)
{
    (void)state;
    char path[] = "generate_gguf_XXXXXX";
    struct made_bytes m = small_file();
    struct gguf g;
    struct gen_error err;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(gguf_open(&g, path, &err), -1);
    assert_non_null(strstr(err.text, "empty"));
    assert_int_equal(write(fd, m.bytes, m.count), (ssize_t)m.count);
    close(fd);
    assert_int_equal(gguf_open(&g, path, &err), 0);
    assert_int_equal(g.tensor_count, 2);
    gguf_close(&g);
    unlink(path);
    assert_int_equal(gguf_open(&g, path, &err), -1);
    assert_non_null(strstr(err.text, "No such file"));
    free(m.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_values),
        cmocka_unit_test(test_reads_tensors),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_unknown_type_is_kept_without_data),
        cmocka_unit_test(test_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
