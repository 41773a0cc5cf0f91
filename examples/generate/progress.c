/* SPDX-License-Identifier: MIT */
#include "progress.h"

#include <stdio.h>
#include <unistd.h>

#include "stopwatch.h"

static const uint64_t terminal_pause_ns = 100000000, plain_pause_ns = 5000000000;

void progress_init(struct progress *p, bool quiet)
{
    *p = (struct progress){.quiet = quiet, .is_terminal = isatty(STDERR_FILENO) == 1};
    progress_start(p, "");
}

void progress_start(struct progress *p, const char *what)
{
    progress_break(p);
    p->what = what;
    p->started_ns = p->shown_ns = stopwatch_now_ns();
}

void progress_update(struct progress *p, size_t done, size_t total, const char *unit)
{
    const uint64_t now = stopwatch_now_ns();
    const bool is_last = done == total;
    if (p->quiet ||
        (!is_last && now - p->shown_ns < (p->is_terminal ? terminal_pause_ns : plain_pause_ns)))
        return;
    const double seconds = (double)(now - p->started_ns) * 1e-9;
    p->shown_ns = now;
    fprintf(stderr, "%s%s: %zu of %zu %s, %.1f per second%s", p->is_terminal ? "\r\033[K" : "", p->what,
            done, total, unit, seconds > 0 ? (double)done / seconds : 0.0,
            p->is_terminal && !is_last ? "" : "\n");
    p->line_open = p->is_terminal && !is_last;
    fflush(stderr);
}

void progress_break(struct progress *p)
{
    if (p->line_open)
        fputc('\n', stderr);
    p->line_open = false;
}
