# make install, and the Debian package of cpack -G DEB.
include(GNUInstallDirs)

install(TARGETS deepinfer_core ARCHIVE)
install(FILES include/deepinfer.h TYPE INCLUDE)
# The prefix is found from the file's own place: an installed tree can be moved.
file(RELATIVE_PATH DI_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/deepinfer.pc.in deepinfer.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/deepinfer.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET deepinfer)
  install(TARGETS deepinfer RUNTIME)
  # Manual pages and completion come out of the program's own tables.
  file(GLOB DI_VERBS CONFIGURE_DEPENDS src/cli/cmd_*.c)
  list(TRANSFORM DI_VERBS REPLACE ".*/cmd_(.*)\\.c$" "\\1")
  install(CODE "
    set(program \"$<TARGET_FILE:deepinfer>\")
    set(pages \"${PROJECT_BINARY_DIR}/pages\")
    file(REMOVE_RECURSE \"\${pages}\")
    file(MAKE_DIRECTORY \"\${pages}\")
    function(write file)
      execute_process(COMMAND \"\${program}\" help \${ARGN} OUTPUT_FILE \"\${pages}/\${file}\"
                      COMMAND_ERROR_IS_FATAL ANY)
    endfunction()
    write(deepinfer.1 --man)
    foreach(verb ${DI_VERBS})
      write(deepinfer-\${verb}.1 \${verb} --man)
    endforeach()
    write(deepinfer.bash --completion bash)
    write(deepinfer.zsh --completion zsh)
    write(deepinfer.fish --completion fish)")
  install(DIRECTORY ${PROJECT_BINARY_DIR}/pages/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
          FILES_MATCHING PATTERN "*.1")
  install(FILES ${PROJECT_BINARY_DIR}/pages/deepinfer.bash RENAME deepinfer
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${PROJECT_BINARY_DIR}/pages/deepinfer.zsh RENAME _deepinfer
          DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${PROJECT_BINARY_DIR}/pages/deepinfer.fish
          DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
install(FILES LICENSE NOTICE README.md TYPE DOC)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "deepinfer")
set(CPACK_PACKAGE_CONTACT "the deepinfer developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "inference engine for DeepSeek-V4.1-Flash")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_STRIP_FILES ON)
include(CPack)
