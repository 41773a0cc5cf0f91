/* SPDX-License-Identifier: MIT
 *
 * --compare: the same text in all modes, and a table.
 */
#ifndef COMPARE_H
#define COMPARE_H

#include "engine.h"

/* Returns 0: all logits had the same bits; 1: they differed; -1: a run failed, with err set. */
int compare_modes(struct engine *e, struct gen_error *err);

#endif
