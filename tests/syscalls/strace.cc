#include "tests/syscalls/strace.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <fstream>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/sanitized.h"

namespace ckptd::syscalls {
namespace {

using harness::Child;

std::string TraceFile(const std::string& folder) { return folder + "/trace"; }

Traced Run(const Program& program, const std::vector<std::string>& options) {
  Child child({StraceArgv(program, options), program.environment, program.folder + "/stderr"});
  const int status = child.Wait(program.limit);
  Traced traced = ReadTrace(program.folder);
  traced.status = status;
  return traced;
}

// "123 fsync(5) = 0" of -f without its process.
std::string WithoutProcess(const std::string& line) {
  const size_t digits = line.find_first_not_of("0123456789");
  return digits == 0 || digits == line.npos ? line : line.substr(line.find_first_not_of(' ', digits));
}

std::string NameIn(const std::string& line) {
  const auto end = std::find_if(line.begin(), line.end(), [](unsigned char c) { return !isalnum(c) && c != '_'; });
  return end != line.end() && *end == '(' ? std::string(line.begin(), end) : "";
}

}  // namespace

bool OfTheAllocator(const Call& call) {
  static const std::set<std::string> never = {"brk", "munmap", "mprotect", "madvise", "mremap", "exit_group"};
  return never.contains(call.name) || (call.name == "mmap" && absl::StrContains(call.line, "MAP_ANONYMOUS"));
}

std::string WhyNoStrace() {
  if (harness::kSanitized) return "a sanitizer makes system calls of its own, and LeakSanitizer cannot be traced";
  Child works({{"strace", "-o", "/dev/null", "true"}, {}, "/dev/null"});
  return works.Wait() == 0 ? "" : "strace is missing, or may not trace here";
}

std::vector<std::string> StraceArgv(const Program& program, const std::vector<std::string>& options) {
  std::vector<std::string> argv = {"strace", "-qq", "-y", "-s", "120", "-o", TraceFile(program.folder)};
  for (const auto* more : {&program.always, &options, &program.argv})
    argv.insert(argv.end(), more->begin(), more->end());
  return argv;
}

Traced ReadTrace(const std::string& folder) {
  Traced traced;
  std::map<std::string, uint64_t> numbers;
  std::ifstream file(TraceFile(folder));
  for (std::string all; std::getline(file, all);) {
    const std::string line = WithoutProcess(all);
    traced.killed = traced.killed || absl::StartsWith(line, "+++ killed by SIGKILL");
    const std::string name = NameIn(line);
    if (!name.empty()) traced.calls.push_back({name, ++numbers[name], line});
  }
  return traced;
}

Traced List(const Program& program) { return Run(program, {}); }

Traced KillAt(const Program& program, const Call& call) {
  return Run(program, {absl::StrCat("--trace=", call.name, program.traced),
                       absl::StrCat("--inject=", call.name, ":signal=KILL:when=", call.number)});
}

std::string InjectedAt(const Traced& traced, const Call& call) {
  for (const Call& each : traced.calls) {
    const bool same = each.name == call.name && each.number == call.number;
    if (same && absl::EndsWith(each.line, "(INJECTED)")) return each.line;
  }
  return "";
}

Traced FailAt(const Program& program, const Call& call, const std::string& error) {
  Traced traced = Run(program, {"-f", "--seccomp-bpf", absl::StrCat("--trace=", call.name, program.traced),
                                absl::StrCat("--inject=", call.name, ":error=", error, ":when=", call.number)});
  traced.injected = InjectedAt(traced, call);
  return traced;
}

std::vector<Call> Swept(const std::vector<Call>& calls) {
  const auto with = [&](const char* path) {
    return std::find_if(calls.begin(), calls.end(),
                        [&](const Call& call) { return absl::StrContains(call.line, path); });
  };
  const auto begin = with(kBegins), end = with(kEnds);
  std::vector<Call> swept;
  if (begin == calls.end() || end == calls.end()) return swept;
  std::copy_if(begin + 1, end, std::back_inserter(swept), [](const Call& call) { return !OfTheAllocator(call); });
  return swept;
}

}  // namespace ckptd::syscalls
