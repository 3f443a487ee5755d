#include "daemon/region/reclaim.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
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

absl::Status NotEnough(const std::vector<JobFacts>& jobs, uint64_t need, uint64_t found) {
  std::string kept;
  for (const JobFacts& job : jobs)
    if (!IsOrphan(job)) absl::StrAppend(&kept, kept.empty() ? "" : ", ", WhyKept(job));
  return Error(ErrorCode::REGION_FULL, absl::StrCat("needs ", FormatBytes(need), ", abandoned jobs hold ",
                                                    FormatBytes(found), "; kept: ", kept.empty() ? "none" : kept));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> PlanReclaim(std::vector<JobFacts> jobs, uint64_t need) {
  std::sort(jobs.begin(), jobs.end(), Older);
  std::vector<std::string> names;
  uint64_t found = 0;
  for (const JobFacts& job : jobs) {
    if (found >= need) break;
    if (!IsOrphan(job)) continue;
    names.push_back(job.job);
    found += job.bytes;
  }
  if (found < need) return NotEnough(jobs, need, found);
  return names;
}

}  // namespace ckptd::region
