// Who holds which rank of which job on this node. Pure bookkeeping, one thread, no I/O.
//
//  - A job belongs to the uid that opened it first on this node; another uid is refused.
//  - A rank is held by one process. A second process is refused while the holder lives; the holder is named.
//  - The same process may claim again with a new ticket (a new restore()): the old ticket is then void.
//  - What a user has named stays known, so it is bounded: so many jobs, and so many ranks of them. What an agent finds
//    in its region counts, and is never refused. A job is unknown again when it is forgotten: above the bounds the
//    agent forgets what nobody needs any more (ExcessFor, then region/reclaim.h), and refuses when that is not enough.
//  - A closed socket ends a connection, not a claim: forked children keep sockets open, agents restart, networks of
//    containers hiccup. A claim ends with the process (pidfd) or with BYE.
#ifndef CKPTD_DAEMON_SESSION_CLAIMS_H_
#define CKPTD_DAEMON_SESSION_CLAIMS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/base/ids.h"

namespace ckptd {

using SessionId = uint64_t;  // a connection; 0 = none; never reused

struct Holder {
  uint32_t pid = 0;
  uint64_t start_time = 0;
  uint32_t uid = 0;
  Ticket ticket = 0;
  SessionId session = 0;  // 0 while not connected
  bool operator==(const Holder&) const = default;
};

class Claims {
 public:
  static constexpr size_t kMostJobsOfUser = 1024;
  static constexpr size_t kMostRanksOfUser = 4096;  // of all jobs

  // The uid of a job that is known from its region, before anyone connects.
  void SetOwner(const std::string& job, uint32_t uid);
  // Nobody holds a rank of it any more, and it is anybody's again.
  void Forget(const std::string& job);

  // What has to be forgotten of the user's jobs before it may claim the rank.
  struct Excess {
    size_t jobs = 0;
    size_t ranks = 0;  // of all jobs
    [[nodiscard]] bool none() const { return jobs == 0 && ranks == 0; }
  };
  [[nodiscard]] Excess ExcessFor(const std::string& job, Rank rank, uint32_t uid) const;
  // REFUSED when there is an excess.
  [[nodiscard]] absl::Status CheckBounds(const std::string& job, Rank rank, uint32_t uid) const;
  // The user's jobs in the order of their names, and how many ranks of each count; until `visit` gives false.
  void VisitJobsOf(uint32_t uid, absl::FunctionRef<bool(const std::string& job, size_t ranks)> visit) const;

  // RANK_TAKEN, JOB_OWNED or, above the bounds, REFUSED; on success the rank is `holder`'s.
  [[nodiscard]] absl::Status Claim(const std::string& job, Rank rank, const Holder& holder);

  // The connection is gone; the claims stay.
  void Disconnect(SessionId session);
  // The process is gone: its claims, now ended.
  std::vector<std::pair<std::string, Rank>> EndProcess(uint32_t pid, uint64_t start_time);
  // BYE. False when `ticket` does not hold the rank.
  bool Release(const std::string& job, Rank rank, Ticket ticket);

  [[nodiscard]] bool Holds(const std::string& job) const;  // any rank of it
  [[nodiscard]] std::vector<Holder> HoldersOf(const std::string& job) const;
  // Whether the process holds a rank of any job but `but`.
  [[nodiscard]] bool HoldsAny(uint32_t pid, uint64_t start_time, const std::string& but = "") const;
  [[nodiscard]] std::optional<Holder> Find(const std::string& job, Rank rank) const;
  // 0 when the rank is not held by `ticket` or its holder is not connected.
  [[nodiscard]] SessionId SessionOf(const std::string& job, Rank rank, Ticket ticket) const;

 private:
  struct Job {
    uint32_t uid = 0;
    std::set<Rank> ranks;  // that ever were claimed
  };
  struct Known {
    size_t jobs = 0;
    size_t ranks = 0;
  };
  void Note(const std::string& job, Rank rank, uint32_t uid);

  std::map<std::string, Job> jobs_;
  std::map<uint32_t, Known> known_;  // of users
  std::map<std::pair<std::string, Rank>, Holder> held_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_SESSION_CLAIMS_H_
