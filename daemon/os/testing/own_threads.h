// For tests that end where threads of a library, which nobody can join, must be gone.
#ifndef CKPTD_DAEMON_OS_TESTING_OWN_THREADS_H_
#define CKPTD_DAEMON_OS_TESTING_OWN_THREADS_H_

#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

namespace ckptd {

// As the kernel counts them: one that is ending still counts.
inline long OwnThreads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

// True when no more than `most` are left, looked at for 10 s.
[[nodiscard]] inline bool OwnThreadsEnd(long most) {
  for (int i = 0; i < 10'000 && OwnThreads() > most; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return OwnThreads() <= most;
}

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_TESTING_OWN_THREADS_H_
