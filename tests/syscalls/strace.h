// A program under strace: the list of its system calls, or one of them that kills it, or that fails.
//
// Three traps. With --seccomp-bpf strace 6.1 drops signals silently: only errors use it (a life takes a third of the
// time), and whoever kills asks for the death. `when=` counts each thread for itself: only the main thread is traced
// (FailAt: a program that has no other), and what is swept runs in it. io_uring is invisible: what is swept does its
// I/O by plain calls.
#ifndef CKPTD_TESTS_SYSCALLS_STRACE_H_
#define CKPTD_TESTS_SYSCALLS_STRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/integration/process.h"

namespace ckptd::syscalls {

// access() of these says where the part to be swept begins and ends.
inline constexpr char kBegins[] = "/ckptd-sweep-begins";
inline constexpr char kEnds[] = "/ckptd-sweep-ends";

// Empty, or why there can be no sweep here.
[[nodiscard]] std::string WhyNoStrace();

struct Call {
  std::string name;
  uint64_t number = 0;  // among those of its name, from the start of the process: what `when=` counts
  std::string line{};   // as strace prints it
};

struct Traced {
  int status = 0;           // as Child::Wait has it
  std::vector<Call> calls;  // those that were traced
  bool killed = false;      // strace saw it die of SIGKILL
  std::string injected;     // FailAt: the line of the call that did not run; empty: it never came
};

struct Program {
  std::vector<std::string> argv;
  std::vector<std::string> environment{};
  std::string folder{};                             // for strace's output and stderr
  std::vector<std::string> always{};                // more options of strace, for every run
  std::string traced{};                             // ",fsync,link": calls that are always listed
  harness::Millis limit = harness::Millis(10'000);  // who runs longer hangs
};

// What strace wrote to FOLDER/trace.
[[nodiscard]] Traced ReadTrace(const std::string& folder);
[[nodiscard]] std::vector<std::string> StraceArgv(const Program& program, const std::vector<std::string>& options);
// All calls.
[[nodiscard]] Traced List(const Program& program);
// SIGKILL at the entry of `call`, which does not run.
[[nodiscard]] Traced KillAt(const Program& program, const Call& call);
// The line of `call` where it was made to fail, or nothing.
[[nodiscard]] std::string InjectedAt(const Traced& traced, const Call& call);
// `call` does not run and says `error` ("EIO").
[[nodiscard]] Traced FailAt(const Program& program, const Call& call, const std::string& error);

// Memory of malloc and of thread stacks comes and goes as libc likes; a mapping of a file is ours.
[[nodiscard]] bool OfTheAllocator(const Call& call);
// Those between the two access() calls, without those of the allocator.
[[nodiscard]] std::vector<Call> Swept(const std::vector<Call>& calls);

}  // namespace ckptd::syscalls

#endif  // CKPTD_TESTS_SYSCALLS_STRACE_H_
