// How far background work has come, and the wish to stop it. Any thread.
#ifndef CKPTD_DAEMON_REGION_PROGRESS_H_
#define CKPTD_DAEMON_REGION_PROGRESS_H_

#include <atomic>
#include <cstdint>

namespace ckptd::region {

class Progress {
 public:
  explicit Progress(uint64_t total_bytes) : total_(total_bytes) {}

  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  void Add(uint64_t bytes) { done_.fetch_add(bytes, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t done_bytes() const { return done_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint64_t total_bytes() const { return total_; }

 private:
  const uint64_t total_;
  std::atomic<uint64_t> done_{0};
  std::atomic<bool> cancelled_{false};
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_PROGRESS_H_
