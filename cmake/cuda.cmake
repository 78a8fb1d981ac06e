# The CUDA backend. nvcc is called by rules of our own and not as a language of CMake, so that a
# build without it, and one with sanitizers, is what it would be if there were no CUDA.
#
# DI_CUDA_OBJECTS, DI_CUDA_LIBRARIES: what the library takes in; DI_CUDA_SOURCES: its C files.
# DI_BENCH_GPU_OBJECTS: what bench_gpu does.
set(DI_CUDA auto CACHE STRING "the CUDA backend: auto (when nvcc is found), on, off")
set_property(CACHE DI_CUDA PROPERTY STRINGS auto on off)
set(DI_CUDA_ARCHS 90a CACHE STRING "GPU architectures to make code for: a list of 90a, 100a, ...")

option(DI_CUDA_CHECKED "kernels as compute-sanitizer's racecheck understands them, slower" OFF)

set(DI_CUDA_OBJECTS "")
set(DI_CUDA_LIBRARIES "")
set(DI_BENCH_GPU_OBJECTS "")
set(DI_CUDA_SOURCES ${PROJECT_SOURCE_DIR}/src/kernels/cuda/cuda_absent.c)
set(DI_CUDA_ABSENT "")

string(TOLOWER "${DI_CUDA}" DI_CUDA) # CMake's own ON and OFF are what many type
if(NOT DI_CUDA MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "DI_CUDA is '${DI_CUDA}'; it may be auto, on or off")
elseif(DI_CUDA STREQUAL "off")
  set(DI_CUDA_ABSENT "built without CUDA: DI_CUDA was off")
elseif(DI_CUDA STREQUAL "auto" AND (DI_SANITIZE OR DI_FUZZ))
  set(DI_CUDA_ABSENT "built without CUDA: sanitizer builds leave it out")
else()
  find_program(DI_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT DI_NVCC)
    set(DI_CUDA_ABSENT "built without CUDA: nvcc was not found")
    if(DI_CUDA STREQUAL "on")
      message(FATAL_ERROR "DI_CUDA is on, but nvcc was not found in PATH or /usr/local/cuda/bin")
    endif()
  endif()
endif()

if(DI_CUDA_ABSENT)
  message(STATUS "CUDA backend: ${DI_CUDA_ABSENT}")
  set_source_files_properties(${DI_CUDA_SOURCES} PROPERTIES
                              COMPILE_DEFINITIONS "DI_CUDA_ABSENT=\"${DI_CUDA_ABSENT}\"")
  return()
endif()
set(DI_CUDA_SOURCES "")

# No fast math, and no fusing but where the code says fma (flags.cmake).
# The program is linked by a C compiler: nothing may need the C++ library.
set(flags -std=c++20 -O3 -fmad=false -lineinfo --Werror=default-stream-launch
    -Xcompiler=-Wall,-Wextra,-Wno-unused-function,-Wno-missing-field-initializers,-fPIC
    -Xcompiler=-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-ffp-contract=off -D_GNU_SOURCE
    -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include)
if(DI_WERROR)
  list(APPEND flags -Xcompiler=-Werror --Werror=all-warnings)
endif()
if(DI_CUDA_CHECKED)
  list(APPEND flags -DDI_CUDA_CHECKED)
endif()
foreach(arch ${DI_CUDA_ARCHS})
  list(APPEND flags -gencode=arch=compute_${arch},code=sm_${arch})
endforeach()

file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/cuda/*.cu)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/cuda)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM
    COMMAND ${DI_NVCC} ${flags} -MD -MF ${object}.d -c ${source} -o ${object}
    COMMENT "nvcc src/kernels/cuda/${name}.cu")
  list(APPEND DI_CUDA_OBJECTS ${object})
endforeach()
set_source_files_properties(${DI_CUDA_OBJECTS} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
add_custom_target(cuda_objects DEPENDS ${DI_CUDA_OBJECTS}) # make cuda-archs

# The runtime is linked in; the driver is looked for when the program asks for a GPU.
get_filename_component(cuda_home ${DI_NVCC} REALPATH)
get_filename_component(cuda_home ${cuda_home} DIRECTORY)
find_library(DI_CUDART cudart_static REQUIRED
             HINTS ${cuda_home}/../lib64 ${cuda_home}/../targets/x86_64-linux/lib ${cuda_home}/../lib)
set(DI_CUDA_LIBRARIES ${DI_CUDART} dl rt)
message(STATUS "CUDA backend: ${DI_NVCC}, for ${DI_CUDA_ARCHS}")

# Every bench/NAME.cu is a program of that name; bench_gpu_*.cu are parts of bench_gpu.
file(GLOB benches CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*.cu)
foreach(source ${benches})
  get_filename_component(name ${source} NAME_WE)
  set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM
    COMMAND ${DI_NVCC} ${flags} -MD -MF ${object}.d -c ${source} -o ${object}
    COMMENT "nvcc bench/${name}.cu")
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  if(name MATCHES "^bench_gpu_")
    list(APPEND DI_BENCH_GPU_OBJECTS ${object})
    continue()
  endif()
  add_executable(${name} ${object})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE C)
  target_link_libraries(${name} PRIVATE deepinfer_core)
endforeach()
