# Run by `cmake --install`, which alone knows the prefix: the units with the paths of this installation, and where
# systemd looks for them: PREFIX/lib/{systemd/system,sysusers.d,tmpfiles.d}, for /usr and for /usr/local.
#
# ckptd.toml goes where the agent reads it, /etc/ckptd, unless there is one already; below any other prefix to
# PREFIX/etc/ckptd. Set before: SERVICE_SOURCE, SERVICE_BUILD, SERVICE_BINDIR, SERVICE_DOCDIR,
# SERVICE_SYSCONFDIR.
set(units ${SERVICE_SOURCE}/deploy/systemd)
get_filename_component(bindir ${SERVICE_BINDIR} ABSOLUTE BASE_DIR ${CMAKE_INSTALL_PREFIX})
get_filename_component(docdir ${SERVICE_DOCDIR} ABSOLUTE BASE_DIR ${CMAKE_INSTALL_PREFIX})
get_filename_component(sysconfdir ${SERVICE_SYSCONFDIR} ABSOLUTE BASE_DIR ${CMAKE_INSTALL_PREFIX})
if(CMAKE_INSTALL_PREFIX MATCHES "^/usr(/local)?/?$")
  set(sysconfdir /etc)
endif()

configure_file(${units}/ckptd.service.in ${SERVICE_BUILD}/ckptd.service @ONLY)
file(INSTALL ${SERVICE_BUILD}/ckptd.service DESTINATION ${CMAKE_INSTALL_PREFIX}/lib/systemd/system)
file(INSTALL ${units}/run-ckptd-region.mount DESTINATION ${CMAKE_INSTALL_PREFIX}/lib/systemd/system)
file(INSTALL ${units}/ckptd.sysusers.conf DESTINATION ${CMAKE_INSTALL_PREFIX}/lib/sysusers.d RENAME ckptd.conf)
file(INSTALL ${units}/ckptd.tmpfiles.conf DESTINATION ${CMAKE_INSTALL_PREFIX}/lib/tmpfiles.d RENAME ckptd.conf)

if(EXISTS $ENV{DESTDIR}${sysconfdir}/ckptd/ckptd.toml)
  message(STATUS "Left as it is: $ENV{DESTDIR}${sysconfdir}/ckptd/ckptd.toml")
else()
  file(INSTALL ${SERVICE_SOURCE}/deploy/config/ckptd.toml DESTINATION ${sysconfdir}/ckptd)
endif()
