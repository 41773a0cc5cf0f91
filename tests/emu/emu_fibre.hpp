/* SPDX-License-Identifier: MIT
 *
 * emu_fibre.hpp: stacks that are switched between by hand.
 */
#ifndef EMU_FIBRE_HPP
#define EMU_FIBRE_HPP

#include <stddef.h>
#include <stdint.h>

struct emu_fibre;

/* Fibres [0, n) of a pool that lives as long as the program; n up to 1,024. */
emu_fibre *emu_fibres(uint32_t n);
/* The i-th of them. */
emu_fibre *emu_fibre_at(uint32_t i);

/* It will call `run` when it is switched to first; that never returns. */
void emu_fibre_reset(emu_fibre *f, void (*run)(void));

/* From the caller, a fibre or (null) the launcher, to another one.  is_over: the
 * caller is never switched to again. */
void emu_fibre_switch(emu_fibre *from, emu_fibre *to, bool is_over);

/* Fails if a stack was too small. */
void emu_fibre_check(const emu_fibre *f);

#endif
