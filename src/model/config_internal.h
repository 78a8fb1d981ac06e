/* Shared by the files of config: parsing (config.c), consistency (config_check.c), layer roles
 * (config_roles.c). All report in the form "WHAT: text_config.FIELD is FOUND, expected ...".
 */
#ifndef DI_MODEL_CONFIG_INTERNAL_H
#define DI_MODEL_CONFIG_INTERNAL_H

#include "model/config.h"

/* Demands that hold between fields that were parsed and are each in range. */
di_status config__check(const di_config *config, const char *what, di_error *error);

/* Fills config->roles; fails when a layer lacks a source. */
di_status config__derive_roles(di_config *config, const char *what, di_error *error);

#endif
