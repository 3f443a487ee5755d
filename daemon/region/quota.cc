#include "daemon/region/quota.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/units.h"

namespace ckptd::region {
namespace {

uint64_t LeftOf(uint64_t limit, uint64_t used) {
  if (limit == 0) return std::numeric_limits<uint64_t>::max();
  return limit > used ? limit - used : 0;
}

}  // namespace

QuotaHold::QuotaHold(std::shared_ptr<Quota> quota, std::string job, uint64_t bytes)
    : quota_(std::move(quota)), job_(std::move(job)), bytes_(bytes) {}

QuotaHold::QuotaHold(QuotaHold&& other) noexcept
    : quota_(std::move(other.quota_)),
      job_(std::move(other.job_)),
      bytes_(std::exchange(other.bytes_, 0)),
      leaving_(std::exchange(other.leaving_, false)) {}

QuotaHold& QuotaHold::operator=(QuotaHold&& other) noexcept {
  std::swap(quota_, other.quota_);
  std::swap(job_, other.job_);
  std::swap(bytes_, other.bytes_);
  std::swap(leaving_, other.leaving_);
  return *this;
}

QuotaHold::~QuotaHold() {
  if (quota_ != nullptr) quota_->GiveBack(job_, bytes_, leaving_ ? bytes_ : 0);
}

void QuotaHold::Leave() {
  if (quota_ == nullptr || std::exchange(leaving_, true)) return;
  quota_->Leaves(job_, bytes_);
}

QuotaHold QuotaHold::Split(uint64_t bytes) {
  uint64_t part = std::min(bytes, bytes_);
  bytes_ -= part;
  QuotaHold hold(quota_, job_, part);
  hold.leaving_ = leaving_;
  return hold;
}

std::shared_ptr<Quota> Quota::Create(uint64_t node_limit, uint64_t job_limit) {
  return std::shared_ptr<Quota>(new Quota(node_limit, job_limit, nullptr, ""));
}

std::shared_ptr<Quota> Quota::CreateShare(std::shared_ptr<Quota> parent, std::string account, uint64_t limit) {
  return std::shared_ptr<Quota>(new Quota(limit, 0, std::move(parent), std::move(account)));
}

bool Quota::CountShare(const std::string& account, uint64_t bytes, bool even_above) {
  MutexLock lock(mutex_);
  if (!even_above && bytes > LeftOf(node_limit_, all_.used)) return false;
  all_.used += bytes;
  by_job_[account].used += bytes;
  return true;
}

uint64_t Quota::LeftOfNode(QuotaAt at) {
  MutexLock lock(mutex_);
  return LeftOf(node_limit_, all_.At(at));
}

absl::StatusOr<QuotaHold> Quota::Take(absl::string_view job, uint64_t bytes) {
  MutexLock lock(mutex_);
  uint64_t left = LeftLocked(job, QuotaAt::kNow);
  if (bytes <= left && (parent_ == nullptr || parent_->CountShare(account_, bytes, false)))
    return TakeLocked(job, bytes);
  return Error(ErrorCode::QUOTA_EXCEEDED,
               absl::StrCat("job ", job, ": needs ", FormatBytes(bytes), ", its quota leaves ", FormatBytes(left)));
}

QuotaHold Quota::TakeAdopted(absl::string_view job, uint64_t bytes) {
  MutexLock lock(mutex_);
  if (parent_ != nullptr) (void)parent_->CountShare(account_, bytes, true);
  return TakeLocked(job, bytes);
}

QuotaHold Quota::TakeLocked(absl::string_view job, uint64_t bytes) {
  all_.used += bytes;
  by_job_[std::string(job)].used += bytes;
  return QuotaHold(shared_from_this(), std::string(job), bytes);
}

uint64_t Quota::LeftLocked(absl::string_view job, QuotaAt at) const {
  auto found = by_job_.find(std::string(job));
  uint64_t used = found == by_job_.end() ? 0 : found->second.At(at);
  const uint64_t left = std::min(LeftOf(node_limit_, all_.At(at)), LeftOf(job_limit_, used));
  return parent_ == nullptr ? left : std::min(left, parent_->LeftOfNode(at));
}

uint64_t Quota::Left(absl::string_view job, QuotaAt at) {
  MutexLock lock(mutex_);
  return LeftLocked(job, at);
}

uint64_t Quota::LeftOfJob(absl::string_view job, QuotaAt at) {
  MutexLock lock(mutex_);
  const auto found = by_job_.find(std::string(job));
  return LeftOf(job_limit_, found == by_job_.end() ? 0 : found->second.At(at));
}

QuotaUse Quota::Total() {
  MutexLock lock(mutex_);
  return all_;
}

uint64_t Quota::UsedBy(absl::string_view job) {
  MutexLock lock(mutex_);
  auto found = by_job_.find(std::string(job));
  return found == by_job_.end() ? 0 : found->second.used;
}

void Quota::Leaves(const std::string& job, uint64_t bytes) {
  if (parent_ != nullptr) parent_->Leaves(account_, bytes);
  MutexLock lock(mutex_);
  all_.leaving += bytes;
  by_job_[job].leaving += bytes;
}

void Quota::GiveBack(const std::string& job, uint64_t bytes, uint64_t leaving) {
  if (parent_ != nullptr) parent_->GiveBack(account_, bytes, leaving);
  MutexLock lock(mutex_);
  all_.used -= bytes;
  all_.leaving -= leaving;
  auto found = by_job_.find(job);
  if (found == by_job_.end()) return;
  found->second.used -= bytes;
  found->second.leaving -= leaving;
  if (found->second.used == 0) by_job_.erase(found);
}

}  // namespace ckptd::region
