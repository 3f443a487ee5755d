// CRC32C of many blocks by several threads, taken in the order in which they came. One core reads memory at 8 GB/s, a
// GPU writes it at 55 (H200, measured): by one thread alone a step would be captured seven times as late as it is
// copied.
//
// Threads: one uses it at a time. Its helpers start with the first block.
#ifndef CKPTD_CLIENT_CORE_THREADS_SUM_TEAM_H_
#define CKPTD_CLIENT_CORE_THREADS_SUM_TEAM_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "client/core/threads/sync.h"

namespace ckptd {

class SumTeam {
 public:
  static constexpr uint32_t kMostHelpers = 7;

  struct Sum {
    uint32_t crc = 0;  // Crc32c(0, the block)
    size_t bytes = 0;
  };

  // Half of these cores, as they have other work too.
  [[nodiscard]] static uint32_t HelpersFor(uint32_t cores);

  explicit SumTeam(uint32_t helpers) : wanted_(helpers < kMostHelpers ? helpers : kMostHelpers) {}
  SumTeam(const SumTeam&) = delete;
  SumTeam& operator=(const SumTeam&) = delete;
  ~SumTeam();

  [[nodiscard]] bool IsFull();
  [[nodiscard]] bool IsEmpty();

  // Not while it is full. The block stays until its sum was taken, or Drop.
  void Push(const void* block, size_t bytes);

  // The oldest block's sum is there: Pop does not wait.
  [[nodiscard]] bool IsReady();

  // The oldest one's. Sums what nobody has begun, then waits. Not while it is empty.
  [[nodiscard]] Sum Pop();

  // Sums one block that nobody has begun; false: there is none.
  bool Help();

  // Crc32c(0, bytes) of one range, by all of them. While it is empty.
  [[nodiscard]] uint32_t SumOf(const void* data, size_t bytes);

  // Forgets all blocks; nobody reads them any more when it returns.
  void Drop();

 private:
  static constexpr uint64_t kRing = 2 * (kMostHelpers + 1);  // so that nobody waits for the one that takes the sums

  struct Task {
    const void* block = nullptr;
    Sum sum;
    bool done = false;
  };

  static void Run(void* self);
  void StartHelpers();
  void SumNext();  // with the mutex held, which it lets go of meanwhile
  [[nodiscard]] Task& At(uint64_t index) { return tasks_[index % kRing]; }

  const uint32_t wanted_;
  uint32_t helpers_ = 0;  // that run
  bool started_ = false;

  Mutex mutex_;
  CondVar pushed_;
  CondVar summed_;
  bool stopping_ = false;
  uint32_t idle_ = 0;  // helpers that wait
  std::array<Task, kRing> tasks_;
  uint64_t head_ = 0;  // the oldest one
  uint64_t next_ = 0;  // the first that nobody has begun
  uint64_t tail_ = 0;
  std::array<Thread, kMostHelpers> threads_;  // behind what they use
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_THREADS_SUM_TEAM_H_
