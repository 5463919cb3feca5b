# The CUDA backend: every cuda/*.cu goes into octavo_lib. Sets OCTAVO_CUDA_TEXT, "13.0 (sm_80, sm_90, compute_80)".
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(octavo_nvcc nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin NO_CACHE)
  if(NOT octavo_nvcc)
    message(FATAL_ERROR "OCTAVO_CUDA=ON: found no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda; allowed: install the "
      "CUDA toolkit 12.4 or later, set CUDACXX to its nvcc, or build without it (cmake --preset cpu)")
  endif()
  set(CMAKE_CUDA_COMPILER ${octavo_nvcc})
endif()
enable_language(CUDA)
find_package(CUDAToolkit 12.4 REQUIRED)

file(GLOB octavo_cuda_sources CONFIGURE_DEPENDS cuda/*.cu)
target_sources(octavo_lib PRIVATE ${octavo_cuda_sources})
target_include_directories(octavo_lib PUBLIC cuda)
target_compile_definitions(octavo_lib PUBLIC OCTAVO_WITH_CUDA)
target_link_libraries(octavo_lib PRIVATE CUDA::cudart_static CUDA::cublasLt)
# CMake 3.25 silently ignores CMAKE_CUDA_STANDARD 20, so the standard is passed by hand. Host code of .cu files gets the
# warnings but -Wpedantic, which objects to what nvcc itself generates.
target_compile_options(octavo_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-std=c++20 -lineinfo -Xcompiler=-Wall,-Wextra,-Wshadow,-Wno-psabi>")

string(REGEX MATCH "^[0-9]+\\.[0-9]+" OCTAVO_CUDA_TEXT ${CMAKE_CUDA_COMPILER_VERSION})
set(octavo_architectures ${CMAKE_CUDA_ARCHITECTURES})
list(TRANSFORM octavo_architectures REPLACE "^(.*)-real$" "sm_\\1")
list(TRANSFORM octavo_architectures REPLACE "^(.*)-virtual$" "compute_\\1")
list(TRANSFORM octavo_architectures REPLACE "^([0-9].*)$" "sm_\\1")
list(JOIN octavo_architectures ", " octavo_architectures)
string(APPEND OCTAVO_CUDA_TEXT " (${octavo_architectures})")
