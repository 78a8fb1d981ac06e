/* The version, from the build. */
#include "deepinfer.h"

#include "di_version.h"

const char *di_version(void) { return DI_VERSION; }
