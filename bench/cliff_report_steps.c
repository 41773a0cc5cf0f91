/* SPDX-License-Identifier: MIT
 *
 * cliff_report_steps.c: where a step's time went on a GPU, point by point, and
 * the curve in a few lines.
 */
#include "cliff.h"
#include "config.h"

#define MB 1e-6
#define MS 1e-6
#define US 1e-3

static const char *const mode_names[CLIFF_MODES] = {"resident", "op-level", "ring"};

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void print_spread(const cliff_curve *c, FILE *f)
{
    fprintf(f, "\nSpread of the step time (ms), and the host's clock over all steps\n");
    fprintf(f, "%9s %-9s %9s %9s %9s %9s %9s %9s\n", "tail MB", "mode", "least", "p10", "median", "p90", "most",
            "host");
    for (uint32_t i = 0; i < c->n_rows; i++)
        for (uint32_t m = 0; m < CLIFF_MODES; m++) {
            const cliff_result *r = &c->rows[i].modes[m];
            fprintf(f, "%9.1f %-9s %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f\n",
                    (double)c->rows[i].modes[CLIFF_RING].list_bytes * MB, mode_names[m], r->least_ns * MS,
                    r->p10_ns * MS, r->step_ns * MS, r->p90_ns * MS, r->most_ns * MS, r->wall_ns * MS);
        }
}

/* Kernels and copies come from steps with an event before and after each
 * operation, which makes them some microseconds a launch longer. */
static void print_mode(const cliff_row *row, cliff_mode mode, FILE *f)
{
    const cliff_result *r = &row->modes[mode];
    fprintf(f, "%9.1f %-9s %9.3f %8.0f %8.0f %8.0f %6.1f %7.2f %7.0f %9.0f %9.0f %8.0f %8.0f %6.2f %7.1f  %s\n",
            (double)row->modes[CLIFF_RING].list_bytes * MB, mode_names[mode], r->step_ns * MS, r->store_ns * US,
            r->attend_ns * US, r->merge_ns * US, percent(r->copy_in_ns, r->step_ns), r->copy_in_bytes_per_s * 1e-9,
            r->tables_ns * US, r->issue_ns * US, (r->issue_ns - r->products_issue_ns) * US, r->launches, r->copies,
            r->host_waits, percent((double)r->run_ahead_bytes, (double)r->ring_bytes),
            mode == CLIFF_RING ? row->cause : "");
}

static void print_reports(const cliff_curve *c, FILE *f)
{
    fprintf(f, "\nStep report: kernels (us a step), the link at work (%% of the step, GB/s within copies, tables),\n"
               "the host's time for a step with the GPU idle (us; without the products'), counts, ring filled\n");
    fprintf(f, "%9s %-9s %9s %8s %8s %8s %6s %7s %7s %9s %9s %8s %8s %6s %7s  %s\n", "tail MB", "mode", "step ms",
            "store", "attend", "merge", "link%", "GB/s", "tables", "issue", "library", "launches", "copies", "waits",
            "ahead%", "cause");
    for (uint32_t i = 0; i < c->n_rows; i++)
        for (uint32_t m = 0; m < CLIFF_MODES; m++)
            print_mode(&c->rows[i], (cliff_mode)m, f);
}

static void print_summary(const cliff_curve *c, FILE *f)
{
    const cliff_row *knee = &c->rows[c->knee_row], *first = &c->rows[0];
    const double ring_ns = knee->modes[CLIFF_RING].step_ns;
    fprintf(f, "\n%s at %.2f GB/s: ring at most %.3f x bound; at the knee (%.2f) %.3f x bound and %.2f x faster than "
               "op-level;\nresident step %.3f x a plain read of weights, K and V\n",
            c->options.shape.name, c->link_bytes_per_s * 1e-9, c->worst_over_bound,
            knee->tail_ns / knee->modes[CLIFF_RESIDENT].step_ns, ring_ns / knee->bound_ns,
            knee->modes[CLIFF_OP_LEVEL].step_ns / ring_ns, first->over_plain);
    fprintf(f, "%9s %9s %9s %9s %9s %9s %9s %9s  %s\n", "tail MB", "tail/comp", "resident", "op-level", "ring", "bound",
            "ring/bnd", "/beside", "cause");
    for (uint32_t i = 0; i < c->n_rows; i++) {
        const cliff_row *r = &c->rows[i];
        fprintf(f, "%9.1f %9.2f %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f  %s\n",
                (double)r->modes[CLIFF_RING].list_bytes * MB, r->tail_ns / r->modes[CLIFF_RESIDENT].step_ns,
                r->modes[CLIFF_RESIDENT].step_ns * MS, r->modes[CLIFF_OP_LEVEL].step_ns * MS,
                r->modes[CLIFF_RING].step_ns * MS, r->bound_ns * MS, r->modes[CLIFF_RING].step_ns / r->bound_ns,
                r->modes[CLIFF_RING].step_ns / r->bound_launches_ns, r->cause);
    }
}

/* Each over its own bound: tails differ by the tiles that wait to enter. */
static void print_graphs(const cliff_curve *c, FILE *f)
{
    static const char *const names[CLIFF_GRAPHS] = {"eager", "pieces", "graph"};
    fprintf(f, "\nThe ring in a cache for graphs: eager; products captured in pieces; the whole step as one graph\n");
    fprintf(f, "%9s %9s", "tail MB", "ring ms");
    for (uint32_t g = 0; g < CLIFF_GRAPHS; g++)
        fprintf(f, " %9s %7s %8s %8s", names[g], "/bound", "issue us", "library");
    fputc('\n', f);
    for (uint32_t i = 0; i < c->n_rows; i++) {
        const cliff_row *r = &c->rows[i];
        fprintf(f, "%9.1f %9.3f", (double)r->modes[CLIFF_RING].list_bytes * MB, r->modes[CLIFF_RING].step_ns * MS);
        for (uint32_t g = 0; g < CLIFF_GRAPHS; g++) {
            const cliff_result *x = &r->graphs[g];
            const double link_ns = (double)x->list_bytes * 1e9 / c->link_bytes_per_s;
            const double resident_ns = r->modes[CLIFF_RESIDENT].step_ns;
            fprintf(f, " %9.3f %7.3f %8.0f %8.0f", x->step_ns * MS,
                    x->step_ns / (link_ns > resident_ns ? link_ns : resident_ns), x->issue_ns * US,
                    (x->issue_ns - x->products_issue_ns) * US);
        }
        fputc('\n', f);
    }
}

/* T = max(C + x L / R, (1 - x) L / B) by C, B and R of this run, x as it came out; and T', where the
 * link brings B only while the threads do not work, and what it was measured to bring beside them while they do. */
cliff_cpu_model cliff_cpu_model_of(const cliff_curve *c, const cliff_row *r)
{
    cliff_cpu_model m = {.bytes = r->cpu.cpu_bytes + (double)r->cpu.list_bytes};
    const double link = c->link_bytes_per_s, beside = (double)r->cpu_rates.beside_bytes_per_s;
    const double rate = r->cpu_rates.cpu_bytes_per_s ? (double)r->cpu_rates.cpu_bytes_per_s : 1e9;
    const double compute_s = r->modes[CLIFF_RESIDENT].step_ns * 1e-9, working_s = r->cpu.cpu_bytes / rate;
    m.share = m.bytes > 0 ? r->cpu.cpu_bytes / m.bytes : 0;
    m.step_ns = 1e9 * rkvi_config_cpu_step_s(m.share, compute_s, m.bytes, link, rate);
    const double rest = (double)r->cpu.list_bytes - working_s * beside,
                 by_link_s = working_s + (rest > 0 ? rest : 0) / link;
    m.step_beside_ns = 1e9 * (compute_s + working_s > by_link_s ? compute_s + working_s : by_link_s);
    return m;
}

static void print_cpu(const cliff_curve *c, FILE *f)
{
    fprintf(f,
            "\nWith the CPU's share, on %u threads: by R beside copies and the link beside R (GB/s, as measured);\n"
            "the threads' rate while they work; the model's T with C, B and R of this run; T' with the link beside R\n"
            "in place of B while the threads work\n",
            c->options.cpu_threads);
    fprintf(f, "%9s %9s %9s %7s %7s %8s %6s %7s %7s %9s %7s %9s %7s %7s %7s\n", "tail MB", "ring ms", "share ms", "R",
            "link", "free MB", "16ths", "x", "working", "T ms", "/T", "T' ms", "/T'", "/link", "/ring");
    for (uint32_t i = 0; i < c->n_rows; i++) {
        const cliff_row *r = &c->rows[i];
        const cliff_cpu_model m = cliff_cpu_model_of(c, r);
        fprintf(f, "%9.1f %9.3f %9.3f %7.2f %7.2f %8.1f %6u %7.3f %7.2f %9.3f %7.3f %9.3f %7.3f %7.3f %7.3f\n",
                m.bytes * MB, r->modes[CLIFF_RING].step_ns * MS, r->cpu.step_ns * MS,
                (double)r->cpu_rates.cpu_bytes_per_s * 1e-9, (double)r->cpu_rates.beside_bytes_per_s * 1e-9,
                (double)r->cpu_free_bytes * MB, r->cpu_share, m.share,
                r->cpu.cpu_ns > 0 ? r->cpu.cpu_bytes / r->cpu.cpu_ns : 0, m.step_ns * MS, r->cpu.step_ns / m.step_ns,
                m.step_beside_ns * MS, r->cpu.step_ns / m.step_beside_ns,
                r->cpu.step_ns / (m.bytes * 1e9 / c->link_bytes_per_s), r->cpu.step_ns / r->modes[CLIFF_RING].step_ns);
    }
}

void cliff_print_steps(const cliff_curve *c, FILE *f)
{
    if (c->options.cpu_threads)
        print_cpu(c, f);
    if (c->options.graphs)
        print_graphs(c, f);
    print_spread(c, f);
    print_reports(c, f);
    print_summary(c, f);
}
