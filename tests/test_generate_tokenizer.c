/* SPDX-License-Identifier: MIT
 *
 * The example engine's tokenizer on a tiny vocabulary: pieces, merges by rank, special tokens, and
 * back to text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "bpe.h"
#include "generate_file.h"
#include "pretoken.h"
#include "tokenizer.h"
#include "unicode.h"

/* Tokens 0 to 255 are the bytes. The blank is spelled U+0120, which is C4 A0 in UTF-8. */
#define BLANK "\xc4\xa0"
enum { AB = 256, BC, ABC, BLANK_A, XX, XXXX, END, START, USER, TOKENS };
static const char *const long_tokens[] = {"ab",   "bc",      "abc",          BLANK "a", "xx",
                                          "xxxx", "<|end|>", "<|end|>start", "<user>"};
static const char *const merges[] = {"b c", "a b", "a bc", BLANK " a", "x x", "xx xx"};

struct fixture {
    struct made_bytes bytes;
    struct gguf file;
    struct tokenizer *tok;
};

static struct made_bytes tiny_file(const char *pre, uint64_t merge_count)
{
    static char spelled[256][8];
    static const char *texts[TOKENS];
    static int32_t types[TOKENS];
    for (unsigned i = 0; i < TOKENS; i++) {
        types[i] = i == USER ? 4 : i >= END ? 3 : 1;
        texts[i] = i < 256 ? spelled[i] : long_tokens[i - 256];
        if (i < 256)
            spelled[i][unicode_encode(bpe_byte_to_code_point(i), spelled[i])] = '\0';
    }
    struct made_file f = {0};
    made_value_string(&f, "tokenizer.ggml.model", "gpt2");
    made_value_string(&f, "tokenizer.ggml.pre", pre);
    made_value_strings(&f, "tokenizer.ggml.tokens", texts, TOKENS);
    made_value_i32s(&f, "tokenizer.ggml.token_type", types, TOKENS);
    made_value_strings(&f, "tokenizer.ggml.merges", merges, merge_count);
    made_value_u32(&f, "tokenizer.ggml.eos_token_id", END);
    return made_finish(&f);
}

static int setup(void **state)
{
    static struct fixture x;
    struct gen_error err;
    x.bytes = tiny_file("smollm", sizeof merges / sizeof merges[0]);
    assert_int_equal(gguf_parse(&x.file, x.bytes.bytes, x.bytes.count, &err), 0);
    x.tok = tokenizer_create(&x.file, &err);
    *state = &x;
    return x.tok != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *x = *state;
    tokenizer_destroy(x->tok);
    gguf_close(&x->file);
    free(x->bytes.bytes);
    return 0;
}

static void expect_tokens(const struct fixture *x, const char *text, bool special, const int32_t *ids,
                          size_t count)
{
    struct token_list list = {0};
    struct gen_error err;
    assert_int_equal(tokenizer_encode(x->tok, text, strlen(text), special, &list, &err), 0);
    if (list.count != count)
        fail_msg("'%s': %zu tokens instead of %zu", text, list.count, count);
    for (size_t i = 0; i < count; i++)
        if (list.ids[i] != ids[i])
            fail_msg("'%s': token %zu is %d instead of %d", text, i, list.ids[i], ids[i]);
    token_list_free(&list);
}
#define EXPECT(text, special, ...) \
    expect_tokens(*state, text, special, (const int32_t[]){__VA_ARGS__}, \
                  sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void test_merges_by_rank(void **state)
{
    EXPECT("ab", false, AB);
    EXPECT("abc", false, ABC); /* b c ranks before a b, then a bc */
    EXPECT("aab", false, 'a', AB);
    EXPECT("xxxxx", false, XXXX, 'x'); /* leftmost first among equal ranks */
    EXPECT("xxx", false, XX, 'x');
    EXPECT("q", false, 'q');
}

static void test_pieces(void **state)
{
    EXPECT(" a", false, BLANK_A);
    EXPECT("  a", false, ' ', BLANK_A);  /* the last blank goes with the word */
    EXPECT("a b", false, 'a', ' ', 'b'); /* merged only inside pieces */
    EXPECT("a.b", false, 'a', '.', 'b');
    EXPECT("\xc3\xa9", false, 0xc3, 0xa9);
    EXPECT("\xff", false, 0xff); /* no UTF-8: bytes stand for themselves */
}

static void test_special_tokens(void **state)
{
    EXPECT("a<|end|>b", true, 'a', END, 'b');
    EXPECT("<|end|>start", true, START); /* the longest one */
    EXPECT("<user><|end|>", true, USER, END);
    EXPECT("<|end|", true, '<', '|', 'e', 'n', 'd', '|');
    EXPECT("<|end|>", false, '<', '|', 'e', 'n', 'd', '|', '>');
}

static void test_decode(void **state)
{
    struct fixture *x = *state;
    char out[16];
    assert_int_equal(tokenizer_decode(x->tok, BLANK_A, out, sizeof out), 2);
    assert_memory_equal(out, " a", 2);
    for (int byte = 0; byte < 256; byte++) {
        assert_int_equal(tokenizer_decode(x->tok, byte, out, sizeof out), 1);
        assert_int_equal((unsigned char)out[0], byte);
    }
    assert_int_equal(tokenizer_decode(x->tok, END, out, sizeof out), 0);
    assert_int_equal(tokenizer_decode(x->tok, USER, out, sizeof out), 6);
    assert_memory_equal(out, "<user>", 6);
    /* More than there is room for: the whole length is told, only the room is written. */
    out[2] = '!';
    assert_int_equal(tokenizer_decode(x->tok, ABC, out, 2), 3);
    assert_memory_equal(out, "ab!", 3);
    assert_int_equal(tokenizer_decode(x->tok, -1, out, sizeof out), 0);
    assert_int_equal(tokenizer_decode(x->tok, TOKENS, out, sizeof out), 0);
    assert_int_equal(tokenizer_eos(x->tok), END);
    assert_int_equal(tokenizer_bos(x->tok), -1);
    assert_false(tokenizer_adds_bos(x->tok));
}

/* A piece of a million letters must not take a million squared steps. */
static void test_long_piece(void **state)
{
    struct fixture *x = *state;
    enum { LENGTH = 1 << 20 };
    char *text = malloc(LENGTH);
    struct token_list list = {0};
    struct gen_error err;
    assert_non_null(text);
    memset(text, 'x', LENGTH);
    assert_int_equal(tokenizer_encode(x->tok, text, LENGTH, true, &list, &err), 0);
    assert_int_equal(list.count, LENGTH / 4);
    assert_int_equal(list.ids[LENGTH / 4 - 1], XXXX);
    token_list_free(&list);
    free(text);
}

static void test_cutting(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool single_digits;
        const char *pieces; /* with | between */
    } cases[] = {
        {"Hello world", true, "Hello| world"},
        {"it's we'll", true, "it|'s| we|'ll"},
        {"it'S", true, "it|'|S"},
        {"a 12", false, "a| 12"},
        {"a 12", true, "a| |1|2"},
        {"a  12", true, "a|  |1|2"},
        {"a  12", false, "a| | 12"},
        {"x\n\ny", true, "x|\n|\n|y"},
        {"x \n y", true, "x| \n| y"},
        {"end  ", true, "end|  "},
        {"!?...x", true, "!?...|x"},
        {" \xd0\xb4\xd0\xbe\xd0\xbc", true, " \xd0\xb4\xd0\xbe\xd0\xbc"}, /* Cyrillic letters */
        {"\xc2\xb2x", true, "\xc2\xb2|x"}, /* superscript two: a number */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char joined[64];
        size_t used = 0;
        const char *text = cases[i].text;
        for (size_t left = strlen(text); left > 0;) {
            const size_t bytes = pretoken_next(text, left, cases[i].single_digits);
            assert_in_range(bytes, 1, left);
            used += (size_t)snprintf(joined + used, sizeof joined - used, "%s%.*s", used ? "|" : "",
                                     (int)bytes, text);
            text += bytes;
            left -= bytes;
        }
        assert_string_equal(joined, cases[i].pieces);
    }
}

static void test_byte_spelling(void **state)
{
    (void)state;
    for (unsigned byte = 0; byte < 256; byte++)
        assert_int_equal(bpe_code_point_to_byte(bpe_byte_to_code_point(byte)), byte);
    assert_int_equal(bpe_byte_to_code_point(' '), 0x120);
    assert_int_equal(bpe_byte_to_code_point('\n'), 0x10a);
    assert_int_equal(bpe_byte_to_code_point('!'), '!');
    assert_int_equal(bpe_byte_to_code_point(0xad), 0x143);
    assert_int_equal(bpe_code_point_to_byte(0x144), -1);
    assert_int_equal(bpe_code_point_to_byte(' '), -1);
}

static void expect_refusal(struct made_bytes m, const char *part)
{
    struct gguf g;
    struct gen_error err = {""};
    assert_int_equal(gguf_parse(&g, m.bytes, m.count, &err), 0);
    assert_null(tokenizer_create(&g, &err));
    if (strstr(err.text, part) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, part);
    gguf_close(&g);
    free(m.bytes);
}

static void test_refusals(void **state)
{
    (void)state;
    struct made_file f = {0};
    expect_refusal(tiny_file("another", 0), "smollm, gpt-2 and default are");
    expect_refusal(made_finish(&f), "gpt2");
    made_value_string(&f, "tokenizer.ggml.model", "llama");
    expect_refusal(made_finish(&f), "'llama' is not supported");
    made_value_string(&f, "tokenizer.ggml.model", "gpt2");
    made_value_u32(&f, "tokenizer.ggml.tokens", 3);
    expect_refusal(made_finish(&f), "tokenizer.ggml.tokens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_merges_by_rank, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pieces, setup, teardown),
        cmocka_unit_test_setup_teardown(test_special_tokens, setup, teardown),
        cmocka_unit_test_setup_teardown(test_decode, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_piece, setup, teardown),
        cmocka_unit_test(test_cutting),
        cmocka_unit_test(test_byte_spelling),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
