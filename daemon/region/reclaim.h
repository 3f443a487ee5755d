// Which jobs may go when memory is needed, or when a user has as many jobs or ranks as it may (session/claims.h).
//
// A job is an orphan when no session of it is connected or expected and every sealed snapshot it holds is on storage.
// Orphans go oldest first (by their newest sealed snapshot; jobs without one are the oldest), and only as many as are
// needed. A job with a sealed snapshot that is not on storage never goes by itself: only by an explicit `ckptctl rm`.
// A fill that was not sealed is no reason to stay: nobody was told of it.
#ifndef CKPTD_DAEMON_REGION_RECLAIM_H_
#define CKPTD_DAEMON_REGION_RECLAIM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ckptd::region {

struct JobFacts {
  std::string job;
  uint64_t bytes = 0;
  uint32_t unpersisted = 0;     // sealed snapshots that are not on storage
  uint64_t newest_unix_ns = 0;  // of the newest sealed snapshot; 0 = none
  bool in_use = false;          // filled in by the caller: a session, a flush or a reader
  uint64_t ranks = 0;           // filled in by the caller: that count for its user
  bool copies = false;          // held of it for other nodes; else what ran here
};

// What is to be given back, all of it.
struct Need {
  uint64_t bytes = 0;
  uint64_t jobs = 0;
  uint64_t ranks = 0;
};

// Names to remove, in order, that give back at least `need` together. What stands in the way when there is not enough,
// as REGION_FULL for bytes and REFUSED for names; nothing should be removed then.
[[nodiscard]] absl::StatusOr<std::vector<std::string>> PlanReclaim(std::vector<JobFacts> jobs, const Need& need);

// The same, with all that is known of them.
[[nodiscard]] absl::StatusOr<std::vector<JobFacts>> ChooseOrphans(std::vector<JobFacts> jobs, const Need& need);

// Tells when to stop asking for facts: of a thousand jobs that a user only named, the first few give room for one more.
class NeverSaved {
 public:
  explicit NeverSaved(const Need& need) : need_(need) {}
  // Jobs in the order of their names. True when the orphans among them that were never saved, and so go first, give all
  // of `need`: what comes later in the order changes no plan.
  [[nodiscard]] bool SufficeWith(const JobFacts& job);

 private:
  const Need need_;
  Need found_;
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_RECLAIM_H_
