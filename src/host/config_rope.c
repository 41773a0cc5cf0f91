/* SPDX-License-Identifier: MIT
 *
 * config_rope.c: rotary frequencies, the cache's and a KV layer's own.  KV
 * layers of the same ones share an entry of ropes[], and so tables of angles.
 */
#include "config_layers.h"

#include "diag.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TURNS_DEFAULT 8u
#define TURNS_MAX 255u

/* `where` is "" or "kv_layers[3]: ". */
static rkv_status check_rope(const char *where, const rkv_rope_params *r)
{
    char name[64];
    if (!r->frequencies)
        return rkvi_fail(RKV_E_ARGUMENT, "%srope.frequencies is NULL, but %u are announced (pairing %u)", where,
                         r->n_frequencies, r->pairing);
    snprintf(name, sizeof name, "%srope.n_frequencies", where);
    rkv_status s = rkvi_check_count(name, r->n_frequencies, 1, RKVI_HEAD_DIM_MAX / 2);
    snprintf(name, sizeof name, "%srope.pairing", where);
    if (s == RKV_OK)
        s = rkvi_check_count(name, r->pairing, 0, 1);
    for (uint32_t i = 0; i < r->n_frequencies && s == RKV_OK; i++)
        if (!isfinite(r->frequencies[i]))
            s = rkvi_fail(RKV_E_ARGUMENT, "%srope.frequencies[%u] is not finite", where, i);
    return s;
}

static bool is_given(const rkv_rope_params *r)
{
    return r->frequencies || r->n_frequencies || r->pairing;
}

/* The entry with these frequencies, which is made where there is none. */
static rkv_status find_rope(rkvi_config *cfg, const rkv_rope_params *r, uint32_t *out)
{
    const size_t bytes = r->n_frequencies * sizeof(float);
    for (uint32_t i = 0; i < cfg->n_ropes; i++) {
        const rkvi_rope *x = &cfg->ropes[i];
        if (x->n == r->n_frequencies && x->pairing == r->pairing &&
            memcmp(x->frequencies, r->frequencies, bytes) == 0) {
            *out = i;
            return RKV_OK;
        }
    }
    rkvi_rope *more = realloc(cfg->ropes, (cfg->n_ropes + 1) * sizeof *more);
    if (more)
        cfg->ropes = more;
    float *f = malloc(bytes);
    if (!more || !f) {
        free(f);
        return rkvi_fail(RKV_E_HOST_MEMORY, "%zu bytes for the rotary frequencies were refused", bytes);
    }
    memcpy(f, r->frequencies, bytes);
    cfg->ropes[cfg->n_ropes] = (rkvi_rope){.frequencies = f, .n = r->n_frequencies, .pairing = r->pairing};
    *out = cfg->n_ropes++;
    return RKV_OK;
}

rkv_status rkvi_config_take_rope(rkvi_config *cfg, const rkv_cache_params *p)
{
    uint32_t index;
    if (p->max_turns > TURNS_MAX && p->max_turns != RKV_TURNS_NONE)
        return rkvi_fail(RKV_E_ARGUMENT, "max_turns is %u; it must be from 0 (for %u) to %u, or RKV_TURNS_NONE",
                         p->max_turns, TURNS_DEFAULT, TURNS_MAX);
    cfg->max_turns = p->max_turns == RKV_TURNS_NONE ? 0 : p->max_turns ? p->max_turns : TURNS_DEFAULT;
    if (!is_given(&p->rope))
        return RKV_OK;
    rkv_status s = check_rope("", &p->rope);
    if (s == RKV_OK)
        s = find_rope(cfg, &p->rope, &index); /* the first: ropes[0] */
    if (s != RKV_OK)
        return s;
    cfg->has_rope = true;
    return RKV_OK;
}

rkv_status rkvi_config_layer_rope(rkvi_config *cfg, uint32_t i, const rkv_kv_layer_params *p)
{
    rkvi_layer_config *layer = &cfg->layers[i];
    char where[32];
    snprintf(where, sizeof where, "kv_layers[%u]: ", i);
    rkv_status s = RKV_OK;
    layer->k_form = p->k_form;
    layer->rope = cfg->has_rope ? 0 : RKVI_NO_ROPE;
    if (p->k_form > RKV_K_OTHER)
        return rkvi_fail(RKV_E_ARGUMENT, "%sk_form is %u; use RKV_K_ROTATED (0), _PLAIN (1) or _OTHER (2)", where,
                         p->k_form);
    if (is_given(&p->rope)) {
        s = check_rope(where, &p->rope);
        if (s == RKV_OK)
            s = find_rope(cfg, &p->rope, &layer->rope);
    }
    if (p->k_form != RKV_K_ROTATED)
        layer->rope = RKVI_NO_ROPE;
    if (s == RKV_OK && layer->rope != RKVI_NO_ROPE && 2 * cfg->ropes[layer->rope].n > layer->geom.dk)
        return rkvi_fail(RKV_E_ARGUMENT, "%s%u rotary frequencies turn %u elements, but head_dim_k is %u", where,
                         cfg->ropes[layer->rope].n, 2 * cfg->ropes[layer->rope].n, layer->geom.dk);
    return s;
}

void rkvi_config_free_ropes(rkvi_config *cfg)
{
    for (uint32_t i = 0; i < cfg->n_ropes; i++)
        free(cfg->ropes[i].frequencies);
    free(cfg->ropes);
    cfg->ropes = NULL;
    cfg->n_ropes = 0;
    cfg->has_rope = false;
}

rkv_status rkvi_config_can_shift(const rkvi_config *cfg)
{
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        const rkvi_layer_config *l = &cfg->layers[i];
        if (l->k_form == RKV_K_OTHER)
            return rkvi_fail(RKV_E_UNSUPPORTED,
                             "kv_layers[%u]: its K were transformed after the rotary embedding (RKV_K_OTHER), so "
                             "positions can't be shifted; feed the cells again instead",
                             i);
        if (l->k_form == RKV_K_ROTATED && l->rope == RKVI_NO_ROPE)
            return rkvi_fail(RKV_E_UNSUPPORTED,
                             "kv_layers[%u]: positions can't be shifted without the rotary frequencies; give them "
                             "in rkv_cache_params.rope, or the KV layer's",
                             i);
    }
    if (cfg->max_turns == 0)
        return rkvi_fail(
            RKV_E_UNSUPPORTED,
            "the cache was made with RKV_TURNS_NONE, so positions can't be shifted; create it with max_turns");
    return RKV_OK;
}
