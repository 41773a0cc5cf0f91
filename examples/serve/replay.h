/* SPDX-License-Identifier: MIT
 *
 * --check: each chat again by itself, in a cache of its own that shares nothing and has everything on
 * the device: one token a step, and nothing parked, saved or batched.
 */
#ifndef REPLAY_H
#define REPLAY_H

#include "story.h"

/* Prints a line for each chat. 0; 1: logits differed; -1 with a sentence in err. */
int replay_all(const struct story *story, struct engine *engine, struct gen_error *err);

#endif
