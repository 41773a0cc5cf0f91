/* Kernels for AVX2, FMA and F16C.  Compiled with those flags: nothing
 * outside rkvi_ops_avx2 may run before the check in it. */
#define RKVI_LANES 8
#define RKVI_VNNI 0
#include "ops_vec_attend.h"

bool rkvi_ops_avx2(rkvi_ops *ops)
{
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !cpu_has_f16c())
        return false;
    ops->fn[RKVI_OP_DECODE] = vec_op_decode;
    ops->fn[RKVI_OP_PREFILL] = vec_op_prefill;
    ops->fn[RKVI_OP_MERGE] = vec_op_merge;
    ops->name = "avx2";
    return true;
}
