# What a test costs, so that ctest keeps the cores busy and no more. Most tests wait, for clocks and other processes: a
# slot is a sixth of a core (a fourth under a sanitizer, where all wait less), tools/test gives ctest as many for each
# core, a test takes two, and those below take what they were seen to use (their and their children's CPU time over
# their own, in build/dev and build/asan alone on two cores). The long ones begin first, for one that begins last runs
# alone.
set(CKPTD_TESTS_OF_A_CORE
  bundle client_device_test client_test corruption_test crash_states_test job_names_test leak_test memory
  protocol_apart protocol_copies protocol_mutants protocol_parity protocol_run protocol_strikes protocol_test
  region_peer_model_test region_peer_test syscall_errno_test syscall_kill_test transport_copies_grpc_test
  transport_tls_test uring_errno_test)
set(CKPTD_TESTS_OF_TWO_THIRDS
  agent_start_test bench hostile_limits_test hot_path_test labelled_kill_test power_cuts random_kill_test
  scribbled_storage_test scribbled_test soak_test sources_e2e_test systemd)
set(CKPTD_TESTS_THAT_WAIT
  backpressure_test certs_e2e_test certs_test copies_e2e_test copies_ways_e2e_test ended_copies_test errors_test faults_e2e_test
  health_e2e_test
  membership_etcd_test membership_test nodes_e2e_test peers_e2e_test ranks_test rebuild_test storage_hang_test
  transport_copies_test transport_grpc_test)
if(CKPTD_SANITIZE)
  set(CKPTD_A_CORE 4)
  list(APPEND CKPTD_TESTS_OF_A_CORE core_image_test fencing_test hostile_limits_test placement_test pull_matrix_test
    scribbled_storage_test scribbled_test)
else()
  set(CKPTD_A_CORE 6)
  set(CKPTD_TESTS_OF_TWO_CORES pull_matrix_test) # holds a bound in milliseconds
endif()
math(EXPR CKPTD_TWO_THIRDS "(2 * ${CKPTD_A_CORE} + 1) / 3")
math(EXPR CKPTD_TWO_CORES "2 * ${CKPTD_A_CORE}")
# Of one thread, no process and no socket: the thread sanitizer leaves them out by this label.
set(CKPTD_TESTS_OF_ONE_THREAD core_image_test format_test job_test json_test placement_test
  protocol_test region_peer_model_test)
# What others wrote is no race that the thread sanitizer sees: under it at night only.
set(CKPTD_TESTS_OF_BYTES hostile_limits_test scribbled_storage_test scribbled_test)
# Without a sanitizer by day: it would hide what they count, agents that move images all the time would fall behind, or
# it is the number of jobs or of steps that tests.
set(CKPTD_PLAIN_TESTS copies_e2e_test copies_ways_e2e_test ended_copies_test faults_e2e_test hot_path_test job_names_test parity_e2e_test protocol_apart
  protocol_copies protocol_mutants protocol_parity protocol_run protocol_strikes protocol_test rebuild_test
  sources_e2e_test)
# Both ways: under a sanitizer they leave out the bounds of memory that they hold.
set(CKPTD_BOUNDS_TESTS hostile_limits_test)
# Behind a guest's boot; tests/RELIABILITY.md has them.
set(CKPTD_TESTS_OF_THE_NIGHT memory)
# What computes is slower without the compiler's help than the compiler is: rooms and tests, whatever the preset.
set(CKPTD_OPTIMIZED
  ckpt-trainer core_copy core_image erasure format harness harness_fill job json os persist placement protect region
  snapshot storage transport_bulk transport_copies
  corruption_test crash_simulation crash_states_test format_test json_test os_sim os_test placement_test protocol_run protocol_simulation protocol_test
  region_peer_model_test region_peer_test storage_test transport_bulk_test)
set(CKPTD_LONG_TESTS # the longest first
  syscall_errno_test leak_test labelled_kill_test power_cuts crash_states_test faults_e2e_test rebuild_test
  pull_matrix_test soak_test syscall_kill_test copies_e2e_test copies_ways_e2e_test memory protocol_mutants random_kill_test
  hostile_limits_test protocol_test transport_grpc_test scribbled_test errors_test nodes_e2e_test fencing_test
  membership_etcd_test storage_hang_test hot_path_test systemd sources_e2e_test transport_copies_grpc_test bench)

# What tools/test builds of a preset by day.
add_custom_target(plain_tests)
add_custom_target(sanitized_tests)

function(_ckptd_by_day name)
  get_test_property(${name} LABELS labels)
  if(name IN_LIST CKPTD_PLAIN_TESTS)
    set_property(TEST ${name} APPEND PROPERTY LABELS plain)
    list(APPEND labels plain)
  endif()
  if(name IN_LIST CKPTD_BOUNDS_TESTS)
    set_property(TEST ${name} APPEND PROPERTY LABELS bounds)
  endif()
  if(NOT TARGET ${name})
    return()
  endif()
  if("${labels}" MATCHES "crash|plain")
    add_dependencies(plain_tests ${name})
  else()
    add_dependencies(sanitized_tests ${name})
  endif()
  if(name IN_LIST CKPTD_BOUNDS_TESTS)
    add_dependencies(plain_tests ${name})
  endif()
endfunction()

function(ckptd_weigh_tests)
  list(LENGTH CKPTD_LONG_TESTS longest)
  foreach(name IN LISTS ARGN)
    if(name IN_LIST CKPTD_TESTS_OF_A_CORE OR name MATCHES "^fuzz_")
      set_tests_properties(${name} PROPERTIES PROCESSORS ${CKPTD_A_CORE})
    elseif(name IN_LIST CKPTD_TESTS_OF_TWO_CORES)
      set_tests_properties(${name} PROPERTIES PROCESSORS ${CKPTD_TWO_CORES})
    elseif(name IN_LIST CKPTD_TESTS_OF_TWO_THIRDS)
      set_tests_properties(${name} PROPERTIES PROCESSORS ${CKPTD_TWO_THIRDS})
    elseif(NOT name IN_LIST CKPTD_TESTS_THAT_WAIT)
      set_tests_properties(${name} PROPERTIES PROCESSORS 2)
    endif()
    if(name IN_LIST CKPTD_TESTS_OF_ONE_THREAD)
      set_property(TEST ${name} APPEND PROPERTY LABELS one_thread)
    endif()
    if(name IN_LIST CKPTD_TESTS_OF_BYTES)
      set_property(TEST ${name} APPEND PROPERTY LABELS bytes)
    endif()
    if(name IN_LIST CKPTD_TESTS_OF_THE_NIGHT)
      set_property(TEST ${name} APPEND PROPERTY LABELS night)
    endif()
    _ckptd_by_day(${name})
    list(FIND CKPTD_LONG_TESTS ${name} place)
    if(NOT place EQUAL -1)
      math(EXPR cost "1000 * (${longest} - ${place})")
      set_tests_properties(${name} PROPERTIES COST ${cost})
    endif()
  endforeach()
endfunction()
