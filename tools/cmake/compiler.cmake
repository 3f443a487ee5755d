# Warnings, sanitizers and hardening for every target of this project.
# One code model for libraries and programs, so that they can share the precompiled header.
add_compile_options(-fPIC -Wall -Wextra -Werror -fvisibility=hidden -fno-omit-frame-pointer)
if(CKPTD_PCH)
  add_compile_options(-pthread) # gRPC's users get it anyway, and the precompiled header must be made with it
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wthread-safety)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 18)
    # It names some templates otherwise than gcc, with which the distribution's Abseil was built.
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fclang-abi-compat=17>)
  endif()
endif()

set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1 -D_GLIBCXX_ASSERTIONS")
set(CMAKE_C_FLAGS_DEBUG "-O1 -g1")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -D_GLIBCXX_ASSERTIONS -fstack-protector-strong -fstack-clash-protection")
set(CMAKE_C_FLAGS_RELEASE "-O2 -g1")

if(CKPTD_FAILPOINTS)
  add_compile_definitions(CKPTD_FAILPOINTS=1)
endif()
if(CKPTD_SANITIZE)
  # Half of the compiler's time was optimizing what waits when it runs; what computes asks for it (optimized rooms, tests).
  set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1 -D_GLIBCXX_ASSERTIONS")
  add_compile_options(-fsanitize=${CKPTD_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${CKPTD_SANITIZE})
endif()
if(CKPTD_COVERAGE)
  # Counters that lie in the mapped file itself: what a killed process ran counts too.
  add_compile_options(-fprofile-instr-generate -fcoverage-mapping "SHELL:-mllvm -runtime-counter-relocation")
  add_link_options(-fprofile-instr-generate)
endif()
find_program(CKPTD_LLD ld.lld)
if(CKPTD_LLD)
  add_link_options(-fuse-ld=lld)
endif()
add_link_options(-Wl,-z,relro,-z,now)
