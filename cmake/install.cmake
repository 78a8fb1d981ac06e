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
endif()
file(GLOB DI_MAN CONFIGURE_DEPENDS docs/man/*.1)
install(FILES ${DI_MAN} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
if(EXISTS ${PROJECT_SOURCE_DIR}/tools/completion/deepinfer.bash)
  install(FILES tools/completion/deepinfer.bash RENAME deepinfer
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endif()
install(FILES LICENSE README.md TYPE DOC)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "deepinfer")
set(CPACK_PACKAGE_CONTACT "the deepinfer developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "inference engine for DeepSeek-V4.1-Flash")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_STRIP_FILES ON)
include(CPack)
