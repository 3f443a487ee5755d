// Who may use how much of the region: pure accounting of bytes, per job and for the node, of slots, ctl files and
// bells. Whether the tmpfs really has them is another question, answered when files are reserved.
#ifndef CKPTD_DAEMON_REGION_QUOTA_H_
#define CKPTD_DAEMON_REGION_QUOTA_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/base/mutex.h"

namespace ckptd::region {

class Quota;

// Bytes taken from a Quota, given back on destruction. May be destroyed on any thread.
class QuotaHold {
 public:
  QuotaHold() = default;
  QuotaHold(QuotaHold&& other) noexcept;
  QuotaHold& operator=(QuotaHold&& other) noexcept;
  ~QuotaHold();

  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  // They are given back as soon as the last reader is done and they are free.
  void Leave();
  // At most `bytes` of it, as a hold of its own.
  [[nodiscard]] QuotaHold Split(uint64_t bytes);

 private:
  friend class Quota;
  QuotaHold(std::shared_ptr<Quota> quota, std::string job, uint64_t bytes);

  std::shared_ptr<Quota> quota_;
  std::string job_;
  uint64_t bytes_ = 0;
  bool leaving_ = false;
};

enum class QuotaAt { kNow, kOnceFreed };  // kOnceFreed: as if all that leaves were gone

struct QuotaUse {
  uint64_t used = 0;
  uint64_t leaving = 0;  // of these
  [[nodiscard]] uint64_t At(QuotaAt at) const { return at == QuotaAt::kNow ? used : used - leaving; }
};

// Any thread.
class Quota : public std::enable_shared_from_this<Quota> {
 public:
  // Bytes; 0 = no limit.
  [[nodiscard]] static std::shared_ptr<Quota> Create(uint64_t node_limit, uint64_t job_limit);

  // A share of `parent`: what is taken from it counts there too, under `account` and against the node's limit only.
  // `limit` bytes for all jobs together; 0 = the parent's.
  [[nodiscard]] static std::shared_ptr<Quota> CreateShare(std::shared_ptr<Quota> parent, std::string account,
                                                          uint64_t limit);

  // QUOTA_EXCEEDED with the numbers, or all of `bytes`.
  [[nodiscard]] absl::StatusOr<QuotaHold> Take(absl::string_view job, uint64_t bytes) CKPTD_EXCLUDES(mutex_);
  // For what a predecessor had allocated: counted even above the limits, which may have been lowered since.
  [[nodiscard]] QuotaHold TakeAdopted(absl::string_view job, uint64_t bytes) CKPTD_EXCLUDES(mutex_);

  // How much Take would still give this job; UINT64_MAX without limits.
  [[nodiscard]] uint64_t Left(absl::string_view job, QuotaAt at = QuotaAt::kNow) CKPTD_EXCLUDES(mutex_);
  // What of that is the job's own limit, and what is the node's.
  [[nodiscard]] uint64_t LeftOfJob(absl::string_view job, QuotaAt at = QuotaAt::kNow) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] uint64_t LeftOfNode(QuotaAt at = QuotaAt::kNow) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] uint64_t used() { return Total().At(QuotaAt::kNow); }
  // Of a share: all that its parent gave, to whomever.
  [[nodiscard]] QuotaUse NodeUse() { return parent_ == nullptr ? Total() : parent_->NodeUse(); }
  [[nodiscard]] uint64_t UsedBy(absl::string_view job) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] uint64_t node_limit() const { return node_limit_; }
  [[nodiscard]] uint64_t job_limit() const { return job_limit_; }

 private:
  friend class QuotaHold;
  Quota(uint64_t node_limit, uint64_t job_limit, std::shared_ptr<Quota> parent, std::string account)
      : node_limit_(node_limit), job_limit_(job_limit), parent_(std::move(parent)), account_(std::move(account)) {}
  // Locks go from a share to its parent, never back.
  bool CountShare(const std::string& account, uint64_t bytes, bool even_above) CKPTD_EXCLUDES(mutex_);
  QuotaHold TakeLocked(absl::string_view job, uint64_t bytes) CKPTD_REQUIRES(mutex_);
  uint64_t LeftLocked(absl::string_view job, QuotaAt at) const CKPTD_REQUIRES(mutex_);
  QuotaUse Total() CKPTD_EXCLUDES(mutex_);
  void Leaves(const std::string& job, uint64_t bytes) CKPTD_EXCLUDES(mutex_);
  // `leaving`: of these.
  void GiveBack(const std::string& job, uint64_t bytes, uint64_t leaving) CKPTD_EXCLUDES(mutex_);

  const uint64_t node_limit_;
  const uint64_t job_limit_;
  const std::shared_ptr<Quota> parent_;  // null but for a share
  const std::string account_;            // of a share, in its parent
  Mutex mutex_;
  QuotaUse all_ CKPTD_GUARDED_BY(mutex_);
  std::map<std::string, QuotaUse, std::less<>> by_job_ CKPTD_GUARDED_BY(mutex_);
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_QUOTA_H_
