/* SPDX-License-Identifier: MIT
 *
 * svg.c: see svg.h.
 */
#include "svg.h"

#include <math.h>

/* The sheet and, within it, the plot. */
enum { WIDTH = 860, HEIGHT = 560, LEFT = 76, RIGHT = 24, TOP = 74, BOTTOM = 62 };

typedef struct axis {
    double low, high;    /* data */
    double from_px, to_px;
} axis;

static double place(const axis *a, double v)
{
    return a->from_px + (log(v) - log(a->low)) / (log(a->high) - log(a->low)) * (a->to_px - a->from_px);
}

static void text(FILE *f, double x, double y, const char *style, const char *words)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, style);
    for (; *words; words++)
        if (*words == '&' || *words == '<')
            fputs(*words == '&' ? "&amp;" : "&lt;", f);
        else
            putc(*words, f);
    fputs("</text>\n", f);
}

/* Smallest and largest value, and some room beyond them. */
static void span(const svg_chart *c, bool of_x, axis *a)
{
    a->low = HUGE_VAL;
    a->high = 0;
    for (uint32_t s = 0; s < c->n_series; s++)
        for (uint32_t i = 0; i < c->n_points; i++) {
            const double v = of_x ? c->series[s].x[i] : c->series[s].y[i];
            a->low = v < a->low ? v : a->low;
            a->high = v > a->high ? v : a->high;
        }
    a->low /= of_x ? 1.08 : 1.25;
    a->high *= of_x ? 1.08 : 1.15;
}

static void tick(FILE *f, const axis *a, double v, bool is_x)
{
    char words[32];
    const double at = place(a, v);
    snprintf(words, sizeof words, "%g", v);
    if (is_x) {
        fprintf(f, "<path d=\"M%.1f %d V%d\" class=\"grid\"/>\n", at, TOP, HEIGHT - BOTTOM);
        text(f, at, HEIGHT - BOTTOM + 18, "text-anchor=\"middle\"", words);
    } else {
        fprintf(f, "<path d=\"M%d %.1f H%d\" class=\"grid\"/>\n", LEFT, at, WIDTH - RIGHT);
        text(f, LEFT - 8, at + 4, "text-anchor=\"end\"", words);
    }
}

/* 1, 2, 5, 10 ...; where that gives few ticks, each whole multiple. */
static void ticks(FILE *f, const axis *a, bool is_x)
{
    const bool is_short = a->high / a->low < 12;
    for (double decade = pow(10, floor(log10(a->low))); decade <= a->high; decade *= 10)
        for (int m = 1; m < 10; m++)
            if ((is_short || m == 1 || m == 2 || m == 5) && m * decade >= a->low && m * decade <= a->high)
                tick(f, a, m * decade, is_x);
}

static void line(FILE *f, const svg_series *s, uint32_t n, const axis *x, const axis *y)
{
    fprintf(f, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s d=\"", s->colour,
            s->is_dashed ? " stroke-dasharray=\"7 5\"" : "");
    for (uint32_t i = 0; i < n; i++)
        fprintf(f, "%c%.1f %.1f", i ? 'L' : 'M', place(x, s->x[i]), place(y, s->y[i]));
    fputs("\"/>\n", f);
    for (uint32_t i = 0; i < n && !s->is_dashed; i++)
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", place(x, s->x[i]),
                place(y, s->y[i]), s->colour);
}

static void legend(FILE *f, const svg_chart *c)
{
    const double left = LEFT + 14, top = TOP + 10;
    fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"168\" height=\"%u\" fill=\"#fff\" stroke=\"#bbb\"/>\n",
            left, top, 12 + 20 * c->n_series);
    for (uint32_t i = 0; i < c->n_series; i++) {
        const double y = top + 16 + 20 * i;
        fprintf(f, "<path d=\"M%.1f %.1f h30\" stroke=\"%s\" stroke-width=\"2\"%s/>\n", left + 10, y,
                c->series[i].colour, c->series[i].is_dashed ? " stroke-dasharray=\"7 5\"" : "");
        text(f, left + 50, y + 4, "", c->series[i].label);
    }
}

void svg_write(FILE *file, const svg_chart *c)
{
    axis x = {.from_px = LEFT, .to_px = WIDTH - RIGHT}, y = {.from_px = HEIGHT - BOTTOM, .to_px = TOP};
    char turned[64];
    span(c, true, &x);
    span(c, false, &y);
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n"
            "<style>.grid{stroke:#ddd;stroke-width:1}</style>\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT);
    text(file, LEFT, 28, "font-size=\"18\" font-weight=\"bold\"", c->title);
    text(file, LEFT, 50, "fill=\"#555\"", c->subtitle);
    ticks(file, &x, true);
    ticks(file, &y, false);
    fprintf(file, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#444\"/>\n", LEFT,
            TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    for (uint32_t i = 0; i < c->n_series; i++)
        line(file, &c->series[i], c->n_points, &x, &y);
    legend(file, c);
    text(file, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 18, "text-anchor=\"middle\"", c->x_label);
    snprintf(turned, sizeof turned, "text-anchor=\"middle\" transform=\"rotate(-90 22 %d)\"",
             (TOP + HEIGHT - BOTTOM) / 2);
    text(file, 22, (TOP + HEIGHT - BOTTOM) / 2.0, turned, c->y_label);
    fputs("</svg>\n", file);
}
