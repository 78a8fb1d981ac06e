#include "server/fields.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

const di_json *di_field(const di_json *object, const char *key) {
    const di_json *value = di_json_get(object, key);
    return value && value->type != DI_JSON_NULL ? value : NULL;
}

di_status di_field_wrong(const char *key, const char *want, di_error *error) {
    return di_fail(error, DI_ERR_INVALID, "%s: %s is needed", key, want);
}

/* *out: what a path of keys with dots between them leads to, or NULL; a key on the way is an object's. */
static di_status reach(const di_json *object, const char *path, const di_json **out,
                       di_error *error) {
    char key[64];
    const char *at = path, *dot;
    while ((dot = strchr(at, '.')) != NULL) {
        assert((size_t)(dot - at) < sizeof key);
        snprintf(key, sizeof key, "%.*s", (int)(dot - at), at);
        object = di_field(object, key);
        if (object && object->type != DI_JSON_OBJECT) {
            return di_fail(error, DI_ERR_INVALID, "%.*s: an object is needed", (int)(dot - path),
                           path);
        }
        at = dot + 1;
    }
    *out = di_field(object, at);
    return DI_OK;
}

di_status di_field_int(const di_json *object, const char *key, int64_t min, int64_t max,
                       int64_t *out, di_error *error) {
    const di_json *value;
    int64_t n;
    DI_TRY(reach(object, key, &value, error));
    if (!value) return DI_OK;
    if (!di_json_int64(value, &n) || n < min || n > max) {
        return di_fail(error, DI_ERR_INVALID, "%s: a whole number from %lld to %lld is needed", key,
                       (long long)min, (long long)max);
    }
    *out = n;
    return DI_OK;
}

di_status di_field_float(const di_json *object, const char *key, float *out, di_error *error) {
    const di_json *value;
    double x;
    DI_TRY(reach(object, key, &value, error));
    if (!value) return DI_OK;
    if (!di_json_double(value, &x) || fabs(x) > (double)FLT_MAX) {
        return di_field_wrong(key, "a number in range", error);
    }
    *out = (float)x;
    return DI_OK;
}

di_status di_field_bool(const di_json *object, const char *key, bool *out, di_error *error) {
    const di_json *value;
    DI_TRY(reach(object, key, &value, error));
    if (!value || di_json_bool(value, out)) return DI_OK;
    return di_field_wrong(key, "true or false", error);
}

di_status di_field_text(const di_json *object, const char *key, const char **out, di_error *error) {
    const di_json *value;
    DI_TRY(reach(object, key, &value, error));
    if (!value) return DI_OK;
    if (value->type != DI_JSON_STRING || strlen(value->text) != value->length) {
        return di_field_wrong(key, "a string", error);
    }
    *out = value->text;
    return DI_OK;
}
