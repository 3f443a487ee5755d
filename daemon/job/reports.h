// What the agents have reported in the present attempt: the newest of each, and, once it is decided which agent has
// which rank, what is known of every rank without searching: with thousands of ranks every step over all of them
// counts.
#ifndef CKPTD_DAEMON_JOB_REPORTS_H_
#define CKPTD_DAEMON_JOB_REPORTS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/job/events.h"

namespace ckptd::job {

// Every member reports by the same timer, so one that is silent for several has lost what it heard, or cannot be heard.
inline constexpr uint64_t kSilent = 3;

// `id` is among them.
[[nodiscard]] bool Names(const google::protobuf::RepeatedPtrField<v1::SnapshotRef>& refs, const SnapshotId& id);

class Reports {
 public:
  // Who is not a member is not Alive.
  void SetMembers(const std::vector<std::string>& members);
  // Forgets everything.
  void Clear();
  // Forgets everything; from now on Facts() are those of these ranks, each from the agent of its claim.
  void Assign(const std::map<Rank, v1::RankClaim>& claims);

  // False: an older one than what is known of that life of the agent.
  bool Take(const ReportPtr& report);
  // A resend timer has fired: Silent() counts them.
  void Tick();

  [[nodiscard]] const std::map<std::string, ReportPtr>& by_agent() const { return by_agent_; }
  [[nodiscard]] bool Has(const std::string& agent) const { return by_agent_.count(agent) != 0; }
  // Ticks since its last one, or UINT64_MAX where there was none. `heard` is its Report.heard.
  [[nodiscard]] uint64_t Silent(const std::string& agent, uint64_t* heard) const;
  // A member that was heard, and is not silent for too long.
  [[nodiscard]] bool Alive(const std::string& agent) const;
  [[nodiscard]] bool AllMembersReported() const { return unheard_members_ == 0; }

  // It has heard a State of this version or a newer one, and does with one that leaves out what that said.
  [[nodiscard]] bool Completes(const std::string& agent, uint64_t version) const;
  // It has said that it does not. False: said already, since its last REPORT.
  bool Lack(const std::string& agent) { return !std::exchange(standings_[agent].lacks, true); }
  [[nodiscard]] bool Lacks(const std::string& agent) const;

  // Agents with another REPORT than at the last call, or that are Alive and were not, or are so no more.
  [[nodiscard]] std::set<std::string> TakeChanged();
  // Grows when somebody is Alive who was not, or the other way round.
  [[nodiscard]] uint64_t alive_version() const { return alive_version_; }

  // Of each assigned rank in the order of ranks, null where its agent has not reported it. Valid until the next call
  // of anything that is not const.
  [[nodiscard]] const std::vector<const v1::RankReport*>& Facts() const { return facts_; }
  // Null also where the rank was not assigned.
  [[nodiscard]] const v1::RankReport* Facts(Rank rank) const;
  // None of Facts() is null.
  [[nodiscard]] bool AllFacts() const { return unknown_facts_ == 0; }

 private:
  struct Standing {
    bool member = false;
    bool heard = false;
    bool alive = false;
    bool lacks = false;  // since its last REPORT
    uint64_t heard_at = 0;
  };
  struct Place {
    Rank rank;
    std::string agent;
  };
  [[nodiscard]] const v1::RankReport** FactsOf(Rank rank, const std::string& agent);
  void Hear(const std::string& agent);
  void Judge(const std::string& agent, Standing* standing);

  std::map<std::string, ReportPtr> by_agent_;
  std::map<std::string, Standing> standings_;
  std::set<std::string> changed_;
  std::vector<Place> places_;  // by rank; facts_[i] is of places_[i]
  std::vector<const v1::RankReport*> facts_;
  size_t unknown_facts_ = 0;
  size_t unheard_members_ = 0;
  uint64_t alive_version_ = 0;
  uint64_t tick_ = 0;
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_REPORTS_H_
