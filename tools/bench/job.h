// A job of this process with made-up tensors: its ranks are handles of libckpt, each with a state of its own.
#ifndef CKPTD_TOOLS_BENCH_JOB_H_
#define CKPTD_TOOLS_BENCH_JOB_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/include/ckpt/ckpt.h"
#include "tools/bench/measure.h"
#include "tools/bench/session.h"

namespace ckptd::bench {

struct Saved {
  uint64_t step = 0;
  TimePoint begin;
  double blocked_seconds = 0;  // inside ckpt_save, of the slowest rank
  double copied_seconds = 0;   // until the last rank's gate was open
};

// Methods are called by one thread; inside, each rank has a thread of its own where they must meet.
class Job {
 public:
  // One rank at each of these agents, with `bytes` of state in `tensors` equal tensors with these flags; memory is
  // filled here.
  Job(std::vector<std::string> sockets, uint64_t bytes, uint64_t tensors, uint8_t flags = 0);
  // All ranks at one agent.
  Job(const std::string& socket, uint32_t ranks, uint64_t bytes, uint64_t tensors, uint8_t flags = 0);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job();

  // A new attempt: the seconds from ckpt_restore_begin to the end of ckpt_restore_end. `source` (may be null): where
  // the bytes of the last rank came from (ckpt.h), 0 = nothing existed. What was restored is checked against what was
  // saved.
  [[nodiscard]] absl::StatusOr<double> Restore(uint32_t* source);
  // A new attempt that maps its snapshot, which is in memory, and reads none of it. What was mapped is compared with
  // what was saved when no clock runs any more.
  [[nodiscard]] absl::StatusOr<double> Map();
  // After Restore. Returns when the memory is prepared. Of the slowest rank.
  [[nodiscard]] absl::StatusOr<Registered> Register();
  // A save of all ranks; tries again while a slot is not free yet.
  [[nodiscard]] absl::StatusOr<Saved> Save();
  [[nodiscard]] absl::Status Await(uint64_t step, uint32_t level);
  void Close();

  // Restore, Register, and a first save that has `level`: everything that happens once has happened.
  [[nodiscard]] absl::Status Warm(uint32_t level = CKPT_DURABLE);

  [[nodiscard]] uint32_t ranks() const { return static_cast<uint32_t>(members_.size()); }
  [[nodiscard]] uint64_t total_bytes() const;
  [[nodiscard]] std::span<std::byte> state(uint32_t rank) const;
  [[nodiscard]] uint64_t tensors() const { return tensors_; }  // of one rank
  [[nodiscard]] uint64_t tensor_bytes() const { return tensor_bytes_; }

  // Runs `body` once for each rank, all at the same time. The first error.
  [[nodiscard]] absl::Status ForEachRank(const std::function<absl::Status(uint32_t)>& body) const;

 private:
  struct Member;

  [[nodiscard]] absl::Status OpenAll();
  [[nodiscard]] absl::Status Begin(uint32_t rank, ckpt_restored* from);
  [[nodiscard]] absl::Status RestoreRank(uint32_t rank, uint32_t* source);
  [[nodiscard]] absl::Status MapRank(uint32_t rank, double* seconds);
  [[nodiscard]] absl::Status ReadRank(Member& member, const ckpt_restored& from) const;
  [[nodiscard]] absl::Status TrySave(Saved* saved);

  std::vector<std::string> sockets_;  // of the ranks
  uint64_t tensors_;
  uint64_t tensor_bytes_;
  std::vector<std::unique_ptr<Member>> members_;
  uint64_t step_ = 0;
};

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_JOB_H_
