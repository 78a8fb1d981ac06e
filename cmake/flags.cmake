# Flags for every target. No -march=native and no -ffast-math anywhere: where a sum may be
# reassociated, the code is written that way; where it is not, its order is part of the contract.
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes
                    -Wpointer-arith -Wcast-qual -Wwrite-strings -Wvla -ffp-contract=off
                    -fno-math-errno)
add_compile_definitions(_GNU_SOURCE)
if(DI_WERROR)
  add_compile_options(-Werror)
endif()
if(DI_SANITIZE)
  add_compile_options(-fsanitize=${DI_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DI_SANITIZE})
endif()
find_program(DI_CCACHE ccache)
if(DI_CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${DI_CCACHE})
endif()
