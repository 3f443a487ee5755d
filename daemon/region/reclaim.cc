#include "daemon/region/reclaim.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"

namespace ckptd::region {
namespace {

bool IsOrphan(const JobFacts& job) { return !job.in_use && job.unpersisted == 0; }

bool Older(const JobFacts& a, const JobFacts& b) {
  return a.newest_unix_ns != b.newest_unix_ns ? a.newest_unix_ns < b.newest_unix_ns : a.job < b.job;
}

std::string WhyKept(const JobFacts& job) {
  if (job.in_use) return absl::StrCat(job.job, " (in use)");
  return absl::StrCat(job.job, " (", job.unpersisted, " snapshots not on storage)");
}

absl::Status NotEnoughBytes(const std::vector<JobFacts>& jobs, uint64_t need, uint64_t found) {
  std::string kept;
  for (const JobFacts& job : jobs)
    if (!IsOrphan(job)) absl::StrAppend(&kept, kept.empty() ? "" : ", ", WhyKept(job));
  return Error(ErrorCode::REGION_FULL, absl::StrCat("needs ", FormatBytes(need), ", abandoned jobs hold ",
                                                    FormatBytes(found), "; kept: ", kept.empty() ? "none" : kept));
}

// They may be a thousand: how many, and one that the operator can do something about.
absl::Status NotEnoughNames(const std::vector<JobFacts>& jobs) {
  const auto in_use = std::count_if(jobs.begin(), jobs.end(), [](const JobFacts& job) { return job.in_use; });
  const auto oldest =
      std::find_if(jobs.begin(), jobs.end(), [](const JobFacts& job) { return !job.in_use && job.unpersisted != 0; });
  const auto unsaved =
      std::count_if(oldest, jobs.end(), [](const JobFacts& job) { return !job.in_use && job.unpersisted != 0; });
  std::string why = absl::StrCat(in_use, " in use");
  if (unsaved != 0) absl::StrAppend(&why, ", ", unsaved, " with snapshots that are not on storage");
  absl::StrAppend(&why, "; stop one");
  if (unsaved != 0) absl::StrAppend(&why, ", or ckptctl flush ", oldest->job);
  return Error(ErrorCode::REFUSED, why);
}

bool Enough(const Need& found, const Need& need) {
  return found.bytes >= need.bytes && found.jobs >= need.jobs && found.ranks >= need.ranks;
}

void Count(const JobFacts& job, Need* found) {
  found->bytes += job.bytes;
  found->jobs += 1;
  found->ranks += job.ranks;
}

bool Helps(const JobFacts& job, const Need& found, const Need& need) {
  return (found.bytes < need.bytes && job.bytes != 0) || found.jobs < need.jobs ||
         (found.ranks < need.ranks && job.ranks != 0);
}

}  // namespace

absl::StatusOr<std::vector<JobFacts>> ChooseOrphans(std::vector<JobFacts> jobs, const Need& need) {
  std::sort(jobs.begin(), jobs.end(), Older);
  std::vector<JobFacts> chosen;
  Need found;
  for (const JobFacts& job : jobs) {
    if (!IsOrphan(job) || !Helps(job, found, need)) continue;
    chosen.push_back(job);
    Count(job, &found);
  }
  if (Enough(found, need)) return chosen;
  return found.bytes < need.bytes ? NotEnoughBytes(jobs, need.bytes, found.bytes) : NotEnoughNames(jobs);
}

absl::StatusOr<std::vector<std::string>> PlanReclaim(std::vector<JobFacts> jobs, const Need& need) {
  CKPTD_ASSIGN_OR_RETURN(std::vector<JobFacts> chosen, ChooseOrphans(std::move(jobs), need));
  std::vector<std::string> names;
  names.reserve(chosen.size());
  for (JobFacts& job : chosen) names.push_back(std::move(job.job));
  return names;
}

bool NeverSaved::SufficeWith(const JobFacts& job) {
  if (IsOrphan(job) && job.newest_unix_ns == 0) Count(job, &found_);
  return Enough(found_, need_);
}

}  // namespace ckptd::region
