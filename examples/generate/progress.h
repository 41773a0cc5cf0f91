/* SPDX-License-Identifier: MIT
 *
 * Progress on stderr: one line written over and over on a terminal, a plain line every few seconds
 * elsewhere. Quiet turns it off.
 */
#ifndef PROGRESS_H
#define PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct progress {
    bool quiet;
    bool is_terminal;
    bool line_open; /* on a terminal: the line has to be ended before other output */
    uint64_t started_ns, shown_ns;
    const char *what;
};

void progress_init(struct progress *p, bool quiet);
/* Begins a phase; `what` must live until the next one. */
void progress_start(struct progress *p, const char *what);
/* Call as often as you like; it shows itself a few times a second at most, and at the end. */
void progress_update(struct progress *p, size_t done, size_t total, const char *unit);
/* Ends an open line, so that other output begins on its own. */
void progress_break(struct progress *p);

#endif
