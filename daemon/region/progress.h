// How far background work has come, and the wish to stop it.
#ifndef CKPTD_DAEMON_REGION_PROGRESS_H_
#define CKPTD_DAEMON_REGION_PROGRESS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace ckptd::region {

// Any thread.
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

// What is prepared or checked at present, whoever waits for it: an agent that ends waits for none of it. One thread.
class UnderWay {
 public:
  void Add(const std::shared_ptr<Progress>& progress) {
    std::erase_if(all_, [](const auto& each) { return each.expired(); });
    all_.push_back(progress);
  }
  void CancelAll() {
    for (const auto& each : all_) {
      if (const auto progress = each.lock()) progress->Cancel();
    }
  }

 private:
  std::vector<std::weak_ptr<Progress>> all_;
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_PROGRESS_H_
