// A child process of a test: started, read line by line, stopped, killed, awaited. Every wait ends at a deadline and is
// woken by the kernel (pipe, pidfd), never by polling.
#ifndef CKPTD_TESTS_INTEGRATION_PROCESS_H_
#define CKPTD_TESTS_INTEGRATION_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ckptd::harness {

using Millis = std::chrono::milliseconds;
using TimePoint = std::chrono::steady_clock::time_point;

inline constexpr Millis kLong{30'000};  // a test that waits longer than this hangs

// The folder of the test binary: what is tested lies beside it.
std::string BinaryDirectory();

// What to put before a command so that it runs as another user, without groups but those given. The checkout may lie in
// root's home, where others may not look for libckpt: they get a copy of it.
std::vector<std::string> AsUser(const std::string& uid, const std::string& gid, const std::string& groups = "");

class Child {
 public:
  struct Spec {
    std::vector<std::string> argv;
    std::vector<std::string> environment;  // added to the test's own; "NAME=value"
    std::string error_file;                // stderr is appended here
  };

  explicit Child(Spec spec);
  // Kills and reaps.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // The next line of stdout; nullopt at its end or at the deadline.
  std::optional<std::string> NextLine(Millis timeout = kLong);
  // Reads on until a line begins with `prefix`; nullopt when none came.
  std::optional<std::string> WaitFor(const std::string& prefix, Millis timeout = kLong);

  void Signal(int signal) const;
  // Reads stdout to its end. The exit status, or minus the signal that ended it; kHangs when it still runs.
  int Wait(Millis timeout = kLong);
  int Kill();  // SIGKILL, then Wait
  static constexpr int kHangs = -1000;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool running() const { return !status_.has_value(); }
  [[nodiscard]] int pidfd() const { return pidfd_; }
  // All of stdout read so far.
  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }
  // The number after `word` in the last line that begins with it, 0 if there is none: Last("CAPTURED").
  [[nodiscard]] uint64_t Last(const std::string& word) const;
  [[nodiscard]] std::string Errors() const;

 private:
  bool Fill(TimePoint deadline);  // false: end of stdout, or the deadline
  bool Reap(TimePoint deadline);

  Spec spec_;
  pid_t pid_ = -1;
  int pidfd_ = -1;
  int out_ = -1;
  std::string partial_;
  std::vector<std::string> lines_;
  size_t taken_ = 0;  // of lines_, by NextLine
  std::optional<int> status_;
};

// The ranks of one job.
using Ranks = std::vector<std::unique_ptr<Child>>;

// The newest step that any of them said `word` of. What they go on from may be newer than the last "CAPTURED", which is
// told after the fact, but never than the last "STEP".
uint64_t LastOf(const Ranks& ranks, const std::string& word);

void KillAll(Ranks& ranks);

// What /proc says of a process.
struct Usage {
  uint64_t fds = 0;
  uint64_t threads = 0;
  uint64_t anonymous_kib = 0;  // resident, beside shared memory and files
  uint64_t resident_kib = 0;   // anonymous and file pages: everything but shared memory
  uint64_t minor_faults = 0;   // of all threads
  uint64_t cpu_ticks = 0;      // user and system
};
Usage UsageOf(pid_t pid);

// What its descriptors lead to, sorted; those that begin with `but` are left out, and the rings of io_uring: each
// worker that writes for the first time while the others do makes one, which is kept (storage/io_pool.h).
std::vector<std::string> DescriptorsOf(pid_t pid, const std::string& but);

// All bytes of a file; empty when it cannot be read.
std::string FileContent(const std::string& file);

// `value` of "name=value" in a line, or "" .
std::string Field(const std::string& line, const std::string& name);
uint64_t NumberField(const std::string& line, const std::string& name);

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_PROCESS_H_
