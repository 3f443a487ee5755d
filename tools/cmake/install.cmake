# `cmake --install`: the FHS, for packages. Target `bundle`: the same things as a relocatable tar (bundle.cmake).
# Packages of a distribution say --prefix /usr.
include(GNUInstallDirs)

set(programs ckptd ckptd-copier ckptd-bench)
if(CKPTD_GRPC)
  list(APPEND programs ckptctl)
endif()

# DT_RPATH, not DT_RUNPATH: only the former counts for the libraries of libraries, and the distribution's libgrpc finds
# its own so. Under /usr the folder is one that is searched anyway. The build tree's programs have it as it is
# installed: CMake pads a build tree's own with an empty entry, which the loader takes for the working directory.
foreach(program IN LISTS programs)
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib" BUILD_WITH_INSTALL_RPATH ON)
  target_link_options(${program} PRIVATE LINKER:--disable-new-dtags)
endforeach()

install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS ckpt LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES client/include/ckpt/ckpt.h client/include/ckpt/ckpt.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ckpt)
install(DIRECTORY client/python/ckptd DESTINATION lib/python3/dist-packages
        FILES_MATCHING PATTERN "*.py" PATTERN py.typed PATTERN __pycache__ EXCLUDE)
install(CODE "
  set(SERVICE_SOURCE \"${CMAKE_SOURCE_DIR}\")
  set(SERVICE_BUILD \"${CMAKE_BINARY_DIR}\")
  set(SERVICE_BINDIR \"${CMAKE_INSTALL_BINDIR}\")
  set(SERVICE_DOCDIR \"${CMAKE_INSTALL_DOCDIR}\")
  set(SERVICE_SYSCONFDIR \"${CMAKE_INSTALL_SYSCONFDIR}\")")
install(SCRIPT ${CMAKE_SOURCE_DIR}/tools/cmake/install_service.cmake)
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(bundle_script ${CMAKE_COMMAND} -D BUILD=${CMAKE_BINARY_DIR} -D SOURCE=${CMAKE_SOURCE_DIR}
    -D VERSION=${PROJECT_VERSION} -P ${CMAKE_SOURCE_DIR}/tools/cmake/bundle.cmake)
add_custom_target(bundle COMMAND ${bundle_script} VERBATIM)
add_dependencies(bundle ${programs} ckpt)
