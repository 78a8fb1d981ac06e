# Flags for every target. No -march=native and no -ffast-math anywhere: where a sum may be
# reassociated, the code is written that way; where it is not, its order is part of the contract.
# A product and a sum are fused only where the code says fma, so that compilers agree on the bits.
if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "gcc ${CMAKE_C_COMPILER_VERSION} is too old: deepinfer needs 12 or newer")
elseif(CMAKE_C_COMPILER_ID MATCHES "Clang" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 14)
  message(FATAL_ERROR "clang ${CMAKE_C_COMPILER_VERSION} is too old: deepinfer needs 14 or newer")
endif()

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes
                    -Wpointer-arith -Wcast-qual -Wwrite-strings -Wvla -ffp-contract=off
                    -fno-math-errno)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  # It warns of snprintf that may cut; cutting is why it is used for names and messages.
  add_compile_options(-Wno-format-truncation)
endif()
add_compile_definitions(_GNU_SOURCE)
if(DI_WERROR)
  add_compile_options(-Werror)
endif()

# The sanitizer builds: asserts stay, and reports have the lines of their calls (-g1).
set(CMAKE_C_FLAGS_CHECKED "-O1 -g1")
set(CMAKE_EXE_LINKER_FLAGS_CHECKED "")

# Kernels are most of what sanitized tests do, and are optimised, so that a forward pass is
# affordable. Beside AddressSanitizer, the check of pointer arithmetic makes them slow by half or more:
# clang makes it beside ThreadSanitizer instead, where it is lost in the cost, and where kernelcheck
# runs them all on the same inputs.
set(DI_KERNEL_FLAGS "")
if(DI_SANITIZE)
  add_compile_options(-fsanitize=${DI_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DI_SANITIZE})
  set(DI_KERNEL_FLAGS -O2)
  if(CMAKE_C_COMPILER_ID MATCHES "Clang" AND DI_SANITIZE MATCHES "thread")
    list(APPEND DI_KERNEL_FLAGS -fsanitize=pointer-overflow)
    add_link_options(-fsanitize=pointer-overflow)
  elseif(DI_SANITIZE MATCHES "address")
    list(APPEND DI_KERNEL_FLAGS -fno-sanitize=pointer-overflow)
  endif()
endif()
if(DI_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "DI_FUZZ needs clang, which brings libFuzzer: use the preset 'fuzz'")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

find_program(DI_CCACHE ccache)
if(DI_CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${DI_CCACHE})
endif()
