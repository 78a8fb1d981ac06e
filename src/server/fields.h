/* Fields of a JSON object that came from outside: read with their ranges, refused by their names.
 *
 * A field that is null counts as one that is not there; then *out stays as it was. What is wrong is
 * DI_ERR_INVALID, and the message begins with the field's name and a colon. The key of the typed ones may
 * lead through objects, as "reasoning.effort" does: so what is refused is named as the client finds it.
 */
#ifndef DI_SERVER_FIELDS_H
#define DI_SERVER_FIELDS_H

#include "base/json.h"

/* NULL: not there, or null. */
const di_json *di_field(const di_json *object, const char *key);

/* "KEY: WANT is needed" */
di_status di_field_wrong(const char *key, const char *want, di_error *error);

di_status di_field_int(const di_json *object, const char *key, int64_t min, int64_t max,
                       int64_t *out, di_error *error);
/* Any number that a float can hold. */
di_status di_field_float(const di_json *object, const char *key, float *out, di_error *error);
di_status di_field_bool(const di_json *object, const char *key, bool *out, di_error *error);
/* A string without NUL; it stays where the tree is. */
di_status di_field_text(const di_json *object, const char *key, const char **out, di_error *error);

#endif
