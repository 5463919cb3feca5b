# The libraries: from the system's packages where they are found there, else fetched as a release archive that is pinned
# by version and SHA-256. For each library X this sets OCTAVO_X_VERSION and OCTAVO_X_FROM, for the summary.
#
# Fetching can be forbidden with -DFETCHCONTENT_FULLY_DISCONNECTED=ON, and a system's package be passed over with
# -DOCTAVO_FETCH="CLI11;spdlog;...".
include(FetchContent)
set(OCTAVO_FETCH "" CACHE STRING "Libraries to fetch although the system may have them: CLI11, nlohmann_json, spdlog, oneDNN, PCRE2, Catch2")

# octavo_fetch(NAME VERSION URL SHA256 PACKAGE TARGETS...): makes the targets of a fetched library available. PACKAGE is
# what to install instead; it is named where the archive cannot be had.
macro(octavo_fetch name version url hash package)
  message(STATUS "${name}: not taken from the system (Debian and Ubuntu: ${package}); fetching ${version} from ${url}")
  # Old projects too are to heed what is set here: static, without their own tests.
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
  set(CMAKE_POLICY_DEFAULT_CMP0126 NEW)
  set(BUILD_SHARED_LIBS OFF)
  set(BUILD_TESTING OFF)
  FetchContent_Declare(${name} URL ${url} URL_HASH SHA256=${hash} DOWNLOAD_EXTRACT_TIMESTAMP ON)
  FetchContent_MakeAvailable(${name})
  set_target_properties(${ARGN} PROPERTIES SYSTEM ON)  # our warnings stop at its headers
  string(TOUPPER ${name} octavo_upper)
  set(OCTAVO_${octavo_upper}_VERSION ${version})
  set(OCTAVO_${octavo_upper}_FROM "fetched")
endmacro()

# octavo_find(NAME ARGS...): find_package() unless NAME is to be fetched; sets NAME_FOUND.
macro(octavo_find name)
  set(${name}_FOUND FALSE)
  if(NOT "${name}" IN_LIST OCTAVO_FETCH)
    find_package(${name} ${ARGN} QUIET)
  endif()
  if(${name}_FOUND)
    string(TOUPPER ${name} octavo_upper)
    set(OCTAVO_${octavo_upper}_VERSION ${${name}_VERSION})
    set(OCTAVO_${octavo_upper}_FROM "system")
  endif()
endmacro()

# --- Command line, JSON, logging ---------------------------------------------------------------------------------------

octavo_find(CLI11 2.1)
if(NOT CLI11_FOUND)
  octavo_fetch(CLI11 2.5.0 https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.5.0.tar.gz
    17e02b4cddc2fa348e5dbdbb582c59a3486fa2b2433e70a0c3bacb871334fd55 libcli11-dev CLI11)
endif()

octavo_find(nlohmann_json 3.11)
if(NOT nlohmann_json_FOUND)
  octavo_fetch(nlohmann_json 3.11.3 https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
    d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d nlohmann-json3-dev nlohmann_json)
endif()

# A system's spdlog brings the system's fmt with it, a fetched one its own copy; the sources include
# <spdlog/fmt/fmt.h>, which knows which.
octavo_find(spdlog 1.10)
if(NOT spdlog_FOUND)
  octavo_fetch(spdlog 1.12.0 https://github.com/gabime/spdlog/archive/refs/tags/v1.12.0.tar.gz
    4dccf2d10f410c1e2feaff89966bfc49a1abb29ef6f08246335b110e001e09a9 libspdlog-dev spdlog)
endif()

# --- Threads -----------------------------------------------------------------------------------------------------------

find_package(Threads REQUIRED)
find_package(OpenMP COMPONENTS CXX QUIET)
if(NOT OpenMP_CXX_FOUND)
  message(FATAL_ERROR "OpenMP: the compiler ${CMAKE_CXX_COMPILER} has none; allowed: GCC 12 or later (package g++), or "
    "Clang with its OpenMP runtime (package libomp-dev)")
endif()
set(OCTAVO_OPENMP_VERSION ${OpenMP_CXX_VERSION})
set(OCTAVO_OPENMP_FROM "compiler")

# --- oneDNN: by header and library, since the CMake package of Debian's asks for OpenCL ----------------------------------

# octavo_version_of(VARIABLE FILE MACRO...): the numbers that macros of a header are defined to, joined by dots.
function(octavo_version_of variable file)
  set(numbers "")
  foreach(macro IN LISTS ARGN)
    file(STRINGS ${file} line REGEX "^#define[ \t]+${macro}[ \t]+[0-9]+")
    string(REGEX MATCH "[0-9]+[ \t]*$" number "${line}")
    string(STRIP "${number}" number)
    list(APPEND numbers "${number}")
  endforeach()
  list(JOIN numbers "." numbers)
  set(${variable} "${numbers}" PARENT_SCOPE)
endfunction()

if(NOT "oneDNN" IN_LIST OCTAVO_FETCH)
  find_path(ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl_version.h HINTS ENV DNNLROOT PATH_SUFFIXES include)
  find_library(ONEDNN_LIBRARY dnnl HINTS ENV DNNLROOT PATH_SUFFIXES lib lib64)
  mark_as_advanced(ONEDNN_INCLUDE_DIR ONEDNN_LIBRARY)
endif()
add_library(octavo_onednn INTERFACE)
add_library(octavo::onednn ALIAS octavo_onednn)
if(ONEDNN_INCLUDE_DIR AND ONEDNN_LIBRARY AND NOT "oneDNN" IN_LIST OCTAVO_FETCH)
  octavo_version_of(OCTAVO_ONEDNN_VERSION ${ONEDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h
    DNNL_VERSION_MAJOR DNNL_VERSION_MINOR DNNL_VERSION_PATCH)
  set(OCTAVO_ONEDNN_FROM "system")
  if(OCTAVO_ONEDNN_VERSION VERSION_LESS 2.6 OR OCTAVO_ONEDNN_VERSION VERSION_GREATER_EQUAL 4)
    message(FATAL_ERROR "oneDNN: found ${OCTAVO_ONEDNN_VERSION} in ${ONEDNN_INCLUDE_DIR}; allowed: 2.6 to 3.x, or "
      "-DOCTAVO_FETCH=oneDNN to build 3.5.3 from source")
  endif()
  target_include_directories(octavo_onednn SYSTEM INTERFACE ${ONEDNN_INCLUDE_DIR})
  target_link_libraries(octavo_onednn INTERFACE ${ONEDNN_LIBRARY})
else()
  enable_language(C)
  set(ONEDNN_LIBRARY_TYPE STATIC)
  set(ONEDNN_BUILD_TESTS OFF)
  set(ONEDNN_BUILD_EXAMPLES OFF)
  set(ONEDNN_BUILD_GRAPH OFF)
  set(ONEDNN_CPU_RUNTIME OMP)
  set(ONEDNN_GPU_RUNTIME NONE)
  octavo_fetch(oneDNN 3.5.3 https://github.com/oneapi-src/oneDNN/archive/refs/tags/v3.5.3.tar.gz
    ddbc26c75978c5e864050f699dbefbf5bff9c0b8d2af827845708e1376471f17 libdnnl-dev dnnl)
  target_link_libraries(octavo_onednn INTERFACE dnnl)
endif()

# --- PCRE2: the pre-tokeniser's regular expressions ---------------------------------------------------------------------

if(NOT "PCRE2" IN_LIST OCTAVO_FETCH)
  find_path(PCRE2_INCLUDE_DIR pcre2.h)
  find_library(PCRE2_LIBRARY pcre2-8)
  mark_as_advanced(PCRE2_INCLUDE_DIR PCRE2_LIBRARY)
endif()
add_library(octavo_pcre2 INTERFACE)
add_library(octavo::pcre2 ALIAS octavo_pcre2)
if(PCRE2_INCLUDE_DIR AND PCRE2_LIBRARY AND NOT "PCRE2" IN_LIST OCTAVO_FETCH)
  octavo_version_of(OCTAVO_PCRE2_VERSION ${PCRE2_INCLUDE_DIR}/pcre2.h PCRE2_MAJOR PCRE2_MINOR)
  set(OCTAVO_PCRE2_FROM "system")
  target_include_directories(octavo_pcre2 SYSTEM INTERFACE ${PCRE2_INCLUDE_DIR})
  target_link_libraries(octavo_pcre2 INTERFACE ${PCRE2_LIBRARY})
else()
  enable_language(C)
  set(PCRE2_BUILD_PCRE2GREP OFF)
  set(PCRE2_BUILD_TESTS OFF)
  set(PCRE2_SUPPORT_JIT ON)
  octavo_fetch(PCRE2 10.42 https://github.com/PCRE2Project/pcre2/releases/download/pcre2-10.42/pcre2-10.42.tar.bz2
    8d36cd8cb6ea2a4c2bb358ff6411b0c788633a2a45dabbf1aeb4b701d1b5e840 libpcre2-dev pcre2-8-static)
  target_link_libraries(octavo_pcre2 INTERFACE pcre2-8-static)
  target_include_directories(octavo_pcre2 SYSTEM INTERFACE ${pcre2_BINARY_DIR})
endif()

# --- Catch2, in version 2 or 3 ------------------------------------------------------------------------------------------

if(OCTAVO_TESTS)
  octavo_find(Catch2 3)
  if(NOT Catch2_FOUND)
    octavo_find(Catch2 2.13)
  endif()
  if(Catch2_FOUND)
    list(APPEND CMAKE_MODULE_PATH ${Catch2_DIR})
  else()
    octavo_fetch(Catch2 3.4.0 https://github.com/catchorg/Catch2/archive/refs/tags/v3.4.0.tar.gz
      122928b814b75717316c71af69bd2b43387643ba076a6ec16e7882bfb2dfacbb catch2 Catch2)
    list(APPEND CMAKE_MODULE_PATH ${catch2_SOURCE_DIR}/extras)
  endif()
endif()

# --- MPI: optional ------------------------------------------------------------------------------------------------------

set(OCTAVO_MPI_FOUND FALSE)
set(OCTAVO_MPI_TEXT "no: OCTAVO_MPI is OFF")
if(NOT EXISTS ${PROJECT_SOURCE_DIR}/src/comm_mpi.cpp)
  set(OCTAVO_MPI_TEXT "no: this version trains in one process")
elseif(OCTAVO_MPI)
  find_package(MPI COMPONENTS CXX QUIET)
  if(MPI_CXX_FOUND)
    set(OCTAVO_MPI_FOUND TRUE)
    set(OCTAVO_MPI_TEXT "yes: MPI ${MPI_CXX_VERSION}, ${MPI_CXX_COMPILER}")
  elseif(OCTAVO_MPI STREQUAL "AUTO")
    set(OCTAVO_MPI_TEXT "no: not found (Debian and Ubuntu: libopenmpi-dev)")
  else()
    message(FATAL_ERROR "OCTAVO_MPI=ON: found no MPI; allowed: install it (Debian and Ubuntu: libopenmpi-dev), or "
      "OCTAVO_MPI=AUTO")
  endif()
endif()
