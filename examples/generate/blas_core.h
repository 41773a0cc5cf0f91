/* SPDX-License-Identifier: MIT */
#ifndef BLAS_CORE_H
#define BLAS_CORE_H

/*
 * OpenBLAS picks its kernels by the CPU's model number when it is loaded, and takes plain SSE3 ones
 * for a model that is newer than itself: products then run at an eighth of the speed. Where that
 * happened although the CPU has AVX2 or AVX-512, the program starts itself again with
 * OPENBLAS_CORETYPE set (which is left alone if the user has set it). Returns if nothing is to do.
 */
void blas_core_check(char **argv);

#endif
