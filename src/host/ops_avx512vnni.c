/* Kernels for AVX-512 F, BW, VL, DQ and VNNI: as ops_avx512.c, with products of
 * quantised K in integers.  Compiled with those flags: nothing outside
 * rkvi_ops_avx512vnni may run before the check in it. */
#define RKVI_LANES 16
#define RKVI_VNNI 1
#include "ops_vec_attend.h"

bool rkvi_ops_avx512vnni(rkvi_ops *ops)
{
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("fma") || !cpu_has_f16c())
        return false;
    ops->fn[RKVI_OP_DECODE] = vec_op_decode;
    ops->fn[RKVI_OP_PREFILL] = vec_op_prefill;
    ops->fn[RKVI_OP_MERGE] = vec_op_merge;
    ops->name = "avx512vnni";
    return true;
}
