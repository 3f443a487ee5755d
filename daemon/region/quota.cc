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
      leaving_(other.leaving_) {}

QuotaHold& QuotaHold::operator=(QuotaHold&& other) noexcept {
  std::swap(quota_, other.quota_);
  std::swap(job_, other.job_);
  std::swap(bytes_, other.bytes_);
  std::swap(leaving_, other.leaving_);
  return *this;
}

QuotaHold::~QuotaHold() {
  if (quota_ == nullptr) return;
  quota_->GiveBack(job_, bytes_);
  if (leaving_) quota_->HasLeft(bytes_);
}

void QuotaHold::SetLeaving() {
  if (quota_ == nullptr || std::exchange(leaving_, true)) return;
  quota_->Leave(bytes_);
}

QuotaHold QuotaHold::Split(uint64_t bytes) {
  uint64_t part = std::min(bytes, bytes_);
  bytes_ -= part;
  return QuotaHold(quota_, job_, part);
}

std::shared_ptr<Quota> Quota::Create(uint64_t node_limit, uint64_t job_limit) {
  return std::shared_ptr<Quota>(new Quota(node_limit, job_limit, nullptr, ""));
}

std::shared_ptr<Quota> Quota::CreateShare(std::shared_ptr<Quota> parent, std::string account, uint64_t limit) {
  return std::shared_ptr<Quota>(new Quota(limit, 0, std::move(parent), std::move(account)));
}

bool Quota::CountShare(const std::string& account, uint64_t bytes, bool even_above) {
  MutexLock lock(mutex_);
  if (!even_above && bytes > LeftOf(node_limit_, used_)) return false;
  used_ += bytes;
  by_job_[account] += bytes;
  return true;
}

uint64_t Quota::LeftOfNode() {
  MutexLock lock(mutex_);
  return LeftOf(node_limit_, used_);
}

absl::StatusOr<QuotaHold> Quota::Take(absl::string_view job, uint64_t bytes) {
  MutexLock lock(mutex_);
  uint64_t left = LeftLocked(job);
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
  used_ += bytes;
  by_job_[std::string(job)] += bytes;
  return QuotaHold(shared_from_this(), std::string(job), bytes);
}

uint64_t Quota::LeftLocked(absl::string_view job) const {
  auto found = by_job_.find(std::string(job));
  uint64_t used = found == by_job_.end() ? 0 : found->second;
  const uint64_t left = std::min(LeftOf(node_limit_, used_), LeftOf(job_limit_, used));
  return parent_ == nullptr ? left : std::min(left, parent_->LeftOfNode());
}

uint64_t Quota::Left(absl::string_view job) {
  MutexLock lock(mutex_);
  return LeftLocked(job);
}

uint64_t Quota::LeftOfJob(absl::string_view job) { return LeftOf(job_limit_, UsedBy(job)); }

uint64_t Quota::used() {
  MutexLock lock(mutex_);
  return used_;
}

uint64_t Quota::UsedBy(absl::string_view job) {
  MutexLock lock(mutex_);
  auto found = by_job_.find(std::string(job));
  return found == by_job_.end() ? 0 : found->second;
}

void Quota::GiveBack(const std::string& job, uint64_t bytes) {
  if (parent_ != nullptr) parent_->GiveBack(account_, bytes);
  MutexLock lock(mutex_);
  used_ -= bytes;
  auto found = by_job_.find(job);
  if (found == by_job_.end()) return;
  found->second -= bytes;
  if (found->second == 0) by_job_.erase(found);
}

void Quota::Leave(uint64_t bytes) {
  if (parent_ != nullptr) return parent_->Leave(bytes);
  MutexLock lock(mutex_);
  leaving_ += bytes;
}

void Quota::HasLeft(uint64_t bytes) {
  if (parent_ != nullptr) return parent_->HasLeft(bytes);
  MutexLock lock(mutex_);
  leaving_ -= bytes;
}

uint64_t Quota::leaving() {
  if (parent_ != nullptr) return parent_->leaving();
  MutexLock lock(mutex_);
  return leaving_;
}

}  // namespace ckptd::region
