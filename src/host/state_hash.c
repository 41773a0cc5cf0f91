/* state_hash.c: the only file that knows xxHash.  It is used inline, as its
 * header offers: who links the library needs nothing for it. */
#include "state_hash.h"

#include "rkvi_config.h"

#if RKVI_HAVE_XXHASH

#define XXH_INLINE_ALL
#include <xxhash.h>

rkv_status rkvi_state_hash_built(void)
{
    return RKV_OK;
}

uint64_t rkvi_state_hash(const void *data, uint64_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

#else

rkv_status rkvi_state_hash_built(void)
{
    return rkvi_fail(RKV_E_UNSUPPORTED,
                     "this library was built without libxxhash, which checks states; build it with "
                     "libxxhash-dev installed to save and load");
}

uint64_t rkvi_state_hash(const void *data, uint64_t bytes, uint64_t seed)
{
    (void)data;
    (void)bytes;
    return seed;
}

#endif
