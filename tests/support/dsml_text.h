/* Tool calls as the model writes them, for literals of tests. */
#ifndef DI_TESTS_SUPPORT_DSML_TEXT_H
#define DI_TESTS_SUPPORT_DSML_TEXT_H

#define DSML "｜DSML｜"
#define INVOKE(name, parameters)                                                                   \
    "<" DSML " invoke name=\"" name "\">\n" parameters "\n</" DSML " invoke>"
#define STRING(key, value)                                                                         \
    "<" DSML " parameter name=\"" key "\" string=\"true\">" value "</" DSML " parameter>"
#define OTHER(key, value)                                                                          \
    "<" DSML " parameter name=\"" key "\" string=\"false\">" value "</" DSML " parameter>"

#endif
