// What the agents have reported in the present attempt: the newest of each, and, once it is decided which agent has
// which rank, what is known of every rank without searching: with thousands of ranks every step over all of them
// counts.
#ifndef CKPTD_DAEMON_JOB_REPORTS_H_
#define CKPTD_DAEMON_JOB_REPORTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/job/events.h"

namespace ckptd::job {

class Reports {
 public:
  // Forgets everything.
  void Clear();
  // Forgets everything; from now on Facts() are those of these ranks, each from the agent of its claim.
  void Assign(const std::map<Rank, v1::RankClaim>& claims);

  // False: an older one than what is known of that life of the agent.
  bool Take(const ReportPtr& report);
  // A resend timer has fired: Silent() counts them.
  void Tick() { ++tick_; }

  [[nodiscard]] const std::map<std::string, ReportPtr>& by_agent() const { return by_agent_; }
  [[nodiscard]] bool Has(const std::string& agent) const { return by_agent_.count(agent) != 0; }
  // Ticks since its last one, or UINT64_MAX where there was none. `heard` is its Report.heard.
  [[nodiscard]] uint64_t Silent(const std::string& agent, uint64_t* heard) const;

  // Of each assigned rank in the order of ranks, null where its agent has not reported it. Valid until the next call
  // of anything that is not const.
  [[nodiscard]] const std::vector<const v1::RankReport*>& Facts() const { return facts_; }
  // Null also where the rank was not assigned.
  [[nodiscard]] const v1::RankReport* Facts(Rank rank) const;

 private:
  struct Place {
    Rank rank;
    std::string agent;
  };
  [[nodiscard]] const v1::RankReport** FactsOf(Rank rank, const std::string& agent);

  std::map<std::string, ReportPtr> by_agent_;
  std::map<std::string, uint64_t> heard_at_;
  std::vector<Place> places_;  // by rank; facts_[i] is of places_[i]
  std::vector<const v1::RankReport*> facts_;
  uint64_t tick_ = 0;
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_REPORTS_H_
