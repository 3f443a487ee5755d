# cmake -D BUILD=… -D SOURCE=… -D VERSION=… -P bundle.cmake
#
# Makes BUILD/ckptd-VERSION-linux-MACHINE.tar.gz, which runs from any folder of any Linux with the build machine's glibc
# or a newer one:
#
#   bin/        ckptd, ckptd-copier, ckptctl, ckptd-bench, stripped
#   lib/        libckpt, and the shared libraries that they need, down to the C++ library; not glibc, which comes with
#               the kernel's loader and cannot be mixed
#   include/  etc/
#   python/     the package; libckpt.so beside it is a link
#   tests/gpu/  what a machine with a GPU is asked: needs Python, and torch for the parts that train
cmake_minimum_required(VERSION 3.22)

set(max_mib 64)
cmake_host_system_information(RESULT machine QUERY OS_PLATFORM)
set(name ckptd-${VERSION}-linux-${machine})
set(root ${BUILD}/bundle/${name})
set(tar ${BUILD}/${name}.tar.gz)

foreach(program ckptd ckptd-copier ckptctl ckptd-bench)
  if(EXISTS ${BUILD}/bin/${program})
    list(APPEND programs ${BUILD}/bin/${program})
  endif()
endforeach()

set(glibc "^(ld-linux.*|linux-vdso|lib(c|m|dl|pthread|rt|resolv|util|anl|nsl|mvec|nss_[a-z]+))\\.so")
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${programs} LIBRARIES ${BUILD}/lib/libckpt.so.1
     RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing PRE_EXCLUDE_REGEXES ${glibc})
if(missing)
  message(FATAL_ERROR "bundle: not found on this machine: ${missing}")
endif()

file(REMOVE_RECURSE ${BUILD}/bundle ${tar})
file(COPY ${programs} DESTINATION ${root}/bin)
# A soname is often a link to the file: the file goes in, under the soname.
foreach(library IN LISTS libraries)
  get_filename_component(soname ${library} NAME)
  file(REAL_PATH ${library} file)
  file(MAKE_DIRECTORY ${root}/lib)
  file(COPY_FILE ${file} ${root}/lib/${soname})
endforeach()
file(COPY ${BUILD}/lib/libckpt.so.1 ${BUILD}/lib/libckpt.so DESTINATION ${root}/lib)
file(COPY ${SOURCE}/client/include/ckpt DESTINATION ${root}/include FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
file(COPY ${SOURCE}/client/python/ckptd DESTINATION ${root}/python
     FILES_MATCHING PATTERN "*.py" PATTERN py.typed PATTERN __pycache__ EXCLUDE)
file(COPY ${SOURCE}/tests/gpu DESTINATION ${root}/tests PATTERN __pycache__ EXCLUDE)
file(CREATE_LINK ../../lib/libckpt.so.1 ${root}/python/ckptd/libckpt.so SYMBOLIC)
file(COPY ${SOURCE}/deploy/config/ckptd.toml DESTINATION ${root}/etc/ckptd)
file(COPY ${SOURCE}/LICENSE ${SOURCE}/README.md DESTINATION ${root})

find_program(strip strip REQUIRED)
file(GLOB binaries ${root}/bin/* ${root}/lib/libckpt.so.1)
execute_process(COMMAND ${strip} --strip-unneeded ${binaries} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} -E tar czf ${tar} ${name} WORKING_DIRECTORY ${BUILD}/bundle
                COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE_RECURSE ${BUILD}/bundle)

file(SIZE ${tar} bytes)
math(EXPR mib "${bytes} / 1048576")
if(mib GREATER_EQUAL max_mib)
  message(FATAL_ERROR "bundle: ${tar} has ${mib} MiB, the limit is ${max_mib}")
endif()
message(STATUS "bundle: ${tar}, ${mib} MiB")
