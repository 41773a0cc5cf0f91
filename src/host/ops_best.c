/* Which kernel sets are compiled in comes from the build (option `isa`, the
 * processor family); which of them run here, from the CPU. */
#include "ops.h"

#include "rkvi_config.h"

#include <string.h>

void rkvi_ops_best(rkvi_ops *ops, const char *limit)
{
    rkvi_ops_ref(ops);
    if (limit && strcmp(limit, "ref") == 0)
        return;
#if RKVI_HAVE_AVX2
    (void)rkvi_ops_avx2(ops);
#endif
    if (limit && strcmp(limit, "avx2") == 0)
        return;
#if RKVI_HAVE_AVX512
    (void)rkvi_ops_avx512(ops);
#endif
    if (limit && strcmp(limit, "avx512") == 0)
        return;
#if RKVI_HAVE_AVX512VNNI
    (void)rkvi_ops_avx512vnni(ops);
#endif
}
