/* SPDX-License-Identifier: MIT
 *
 * api_library.c: exported functions that know no cache.
 */
#include "api_internal.h"
#include "settings.h"

#include "rkvi_config.h"
#include "rollkv/version.h"

#if RKVI_HAVE_CUDA
#define BUILT_CUDA ", cuda"
#else
#define BUILT_CUDA ""
#endif
#if RKVI_HAVE_AVX2
#define BUILT_AVX2 ", avx2"
#else
#define BUILT_AVX2 ""
#endif
#if RKVI_HAVE_AVX512
#define BUILT_AVX512 ", avx512"
#else
#define BUILT_AVX512 ""
#endif
#if RKVI_HAVE_AVX512VNNI
#define BUILT_AVX512VNNI ", avx512vnni"
#else
#define BUILT_AVX512VNNI ""
#endif

static const rkvi_copy_spec setting_spec = {"rkv_setting", sizeof(rkv_setting),
                                            offsetof(rkv_setting, type)};

rkv_status rkvi_api_told(const char *call, rkv_status s)
{
    if (s != RKV_OK)
        rkvi_log(RKVI_LOG_ERROR, "%s: %s: %s", call, rkvi_status_name(s), rkvi_error_text());
    return s;
}

uint32_t rkv_version(void)
{
    return RKV_VERSION;
}

const char *rkv_version_string(void)
{
    return RKVI_STR(RKV_VERSION_MAJOR) "." RKVI_STR(RKV_VERSION_MINOR) "." RKVI_STR(RKV_VERSION_PATCH);
}

const char *rkv_build_info(void)
{
    return RKVI_BUILD_INFO "; executors: host" BUILT_CUDA "; kernels: ref" BUILT_AVX2 BUILT_AVX512
        BUILT_AVX512VNNI;
}

const char *rkv_status_name(rkv_status status)
{
    return rkvi_status_name(status);
}

const char *rkv_error_message(void)
{
    return rkvi_error_text();
}

void rkv_log_set(rkv_log_fn fn, void *user)
{
    rkvi_log_set(fn, user);
}

rkv_status rkv_setting_at(uint32_t index, rkv_setting *out_setting)
{
    const rkv_status s = rkvi_copy_out_check(&setting_spec, out_setting);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    if (index >= RKVI_SETTING_COUNT) /* the ordinary end of a loop: nothing to log */
        return rkvi_fail(RKV_E_ARGUMENT, "there is no setting %u; there are %u", index,
                         (unsigned)RKVI_SETTING_COUNT);
    const rkvi_setting *known = rkvi_setting_get((rkvi_setting_id)index);
    const rkv_setting setting = {
        .name = known->name,
        .type = known->type,
        .default_value = known->default_value,
        .value = rkvi_setting_text((rkvi_setting_id)index),
        .help = known->help,
    };
    rkvi_copy_out(&setting_spec, &setting, out_setting);
    return RKV_OK;
}
