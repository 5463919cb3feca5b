# Writes version.h from src/version.h.in; run at build time. PROJECT_VERSION, OCTAVO_CUDA_VERSION, SOURCE_DIR and OUTPUT
# come from the command line. The file is left alone where it would not change.
set(OCTAVO_COMMIT unknown)  # a source archive without a repository
find_program(git git)
if(git AND EXISTS ${SOURCE_DIR}/.git)
  execute_process(COMMAND ${git} describe --always --dirty --abbrev=10
    WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE commit RESULT_VARIABLE status
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(status EQUAL 0)
    set(OCTAVO_COMMIT ${commit})
  endif()
endif()
configure_file(${SOURCE_DIR}/src/version.h.in ${OUTPUT} @ONLY)
