/* inspect: a NaN among the scales of experts, which only --deep reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "model/synth.h"
#include "support/program.h"
#include "support/temp.h"

static void test_deep(void **state) {
    (void)state;
    di_error error;
    const uint8_t nan = 255;
    const char *name = "layers.3.ffn.experts.7.w2.scale";
    char *root = temp_dir_create();
    char *synth = temp_printf("synth --config tiny %s/m", root);
    char *flat = temp_printf("inspect %s/m", root),
         *deep = temp_printf("inspect %s/m --deep", root);
    char *directory = temp_printf("%s/m", root);
    assert_int_equal(program_run(synth, NULL)->code, 0);
    assert_int_equal(program_run(deep, NULL)->code, 0);
    /* [128, 2] */
    assert_int_equal(di_synth_plant(directory, name, 2 * 100 + 1, &nan, 1, &error), DI_OK);
    assert_int_equal(program_run(flat, NULL)->code, 0);
    char *message =
        temp_printf("inspect: %s/m/model.safetensors: tensor %s: scale [100, 1] is byte "
                    "255 (NaN)",
                    root, name);
    program_refuses(deep, NULL, 1, message);
    free(message);
    free(directory);
    free(deep);
    free(flat);
    free(synth);
    temp_dir_destroy(root);
}

/* As verbs that compute do: no plan for what they would not open. */
static void test_layers_need_gpu(void **state) {
    (void)state;
    static const char *const backends[] = {"cpu", "ref"};
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        char *command = temp_printf("inspect models/demo --gpu-layers 1 --backend %s", backends[i]);
        char *message = temp_printf("inspect: gpu_layers (--gpu-layers) says how a GPU shares a "
                                    "model with the CPU; the backend %s has no GPU",
                                    backends[i]);
        program_refuses(command, NULL, 2, message);
        free(message);
        free(command);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_deep),
                                       cmocka_unit_test(test_layers_need_gpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
