/* SPDX-License-Identifier: MIT
 *
 * emu_fibre.cpp: on x86-64 a switch saves what a call must keep, and the stack's
 * address; elsewhere it is that of ucontext, which asks the kernel about signals.
 */
#include "emu_fibre.hpp"

#include "emu_core.hpp"

#include <stdlib.h>
#include <sys/mman.h>

#ifndef __x86_64__
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef __SANITIZE_ADDRESS__
#define STACK_BYTES (256u << 10)
#else
#define STACK_BYTES (64u << 10)
#endif
/* Stacks an odd number of cache lines apart, so that their tops lie in different sets. */
#define STACK_STRIDE (STACK_BYTES + 9u * 64u)
#define FIBRES 1024u
#define CANARY 0x5ca1ab1e0ddba11ull

struct emu_fibre {
    uint8_t *stack;
    void (*run)(void);
#ifdef __x86_64__
    void *sp;
#else
    ucontext_t context;
#endif
    void *fake; /* of ASan */
};

static emu_fibre fibres[FIBRES], launcher;
static uint8_t *stacks;

#ifdef __SANITIZE_ADDRESS__
static const void *launcher_stack; /* of the thread that launches */
static size_t launcher_bytes;
static bool left_launcher;
#endif

/* After a switch: where we are now. */
static void arrived(emu_fibre *now)
{
#ifdef __SANITIZE_ADDRESS__
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(now->fake, &stack, &bytes);
    if (left_launcher) {
        launcher_stack = stack;
        launcher_bytes = bytes;
        left_launcher = false;
    }
#else
    (void)now;
#endif
}

static emu_fibre *starting; /* switched to for the first time */

static void begin(void)
{
    emu_fibre *f = starting;
    arrived(f);
    f->run();
    abort();
}

#ifdef __x86_64__
extern "C" void emu_switch_stacks(void **from, void *to);
asm(".text\n"
    ".p2align 4\n"
    ".hidden emu_switch_stacks\n"
    ".globl emu_switch_stacks\n"
    ".type emu_switch_stacks, @function\n"
    "emu_switch_stacks:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size emu_switch_stacks, . - emu_switch_stacks\n");
#endif

emu_fibre *emu_fibre_at(uint32_t i)
{
    return &fibres[i];
}

emu_fibre *emu_fibres(uint32_t n)
{
    if (n > FIBRES)
        emu_fail("a block of %u threads", n);
    if (!stacks) {
        const size_t bytes = (size_t)FIBRES * STACK_STRIDE;
        void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            emu_fail("no room for stacks");
        stacks = (uint8_t *)p;
        for (uint32_t i = 0; i < FIBRES; i++)
            fibres[i].stack = stacks + (size_t)i * STACK_STRIDE;
    }
    return fibres;
}

void emu_fibre_reset(emu_fibre *f, void (*run)(void))
{
    f->run = run;
    f->fake = nullptr;
    *(uint64_t *)f->stack = CANARY;
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(f->stack, STACK_BYTES);
#endif
#ifdef __x86_64__
    void **top = (void **)(f->stack + STACK_BYTES - 56); /* aligned as after a call */
    top[0] = nullptr;                                    /* where `begin` would return to */
    top[-1] = (void *)begin;
    f->sp = top - 7;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = nullptr;
    makecontext(&f->context, begin, 0);
#endif
}

void emu_fibre_switch(emu_fibre *from, emu_fibre *to, bool is_over)
{
    from = from ? from : &launcher;
    to = to ? to : &launcher;
    starting = to;
#ifdef __SANITIZE_ADDRESS__
    const bool back = to == &launcher;
    left_launcher = from == &launcher;
    __sanitizer_start_switch_fiber(is_over ? nullptr : &from->fake, back ? launcher_stack : to->stack,
                                   back ? launcher_bytes : STACK_BYTES);
#else
    (void)is_over;
#endif
#ifdef __x86_64__
    emu_switch_stacks(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
    arrived(from);
}

void emu_fibre_check(const emu_fibre *f)
{
    if (*(const uint64_t *)f->stack != CANARY)
        emu_fail("a thread's stack of %u bytes was too small", STACK_BYTES);
}
