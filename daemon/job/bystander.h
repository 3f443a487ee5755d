// An agent that has nothing of a job: no rank, and no snapshot in its memory. The coordinator waits for its REPORT all
// the same, since it cannot know. So it is told, and nothing is kept of the job that has to survive: who holds nothing
// freezes nothing. (A region that lost snapshots has another region id, or says so in `lost` of a job that it holds.)
//
// The newest State of each such job is remembered while there is room for it, so that a rank that joins here hears of
// its attempt at once, and an older coordinator is told of the higher attempt.
#ifndef CKPTD_DAEMON_JOB_BYSTANDER_H_
#define CKPTD_DAEMON_JOB_BYSTANDER_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "daemon/job/events.h"
#include "daemon/job/report_numbers.h"

namespace ckptd::job {

// This agent, as its Reports name it.
struct ReporterId {
  std::string agent;
  uint64_t incarnation = 0;
  uint64_t region_id = 0;
};

// Asks the coordinator of `state` for the whole of it. `seen`: the highest attempt known here.
[[nodiscard]] ReportPtr AskForWhole(const v1::State& state, const ReporterId& self, AttemptId seen, uint64_t seq);

// The answer to `state` of an agent that has nothing of its job. `seq`: ReportNumbers.
[[nodiscard]] ReportPtr NothingHere(const v1::State& state, const ReporterId& self, uint64_t seq);

// Pure; one thread.
class Bystander {
 public:
  Bystander(ReporterId self, std::shared_ptr<ReportNumbers> numbers, size_t max_bytes = size_t{64} << 20,
            size_t max_jobs = 1000)
      : self_(std::move(self)), numbers_(std::move(numbers)), max_bytes_(max_bytes), max_jobs_(max_jobs) {}

  // A State of a job of which this agent has nothing; what is to be sent to its coordinator.
  [[nodiscard]] ReportPtr Heard(const StatePtr& state);
  // The newest one heard of a job that is no longer strange; null when there is none.
  [[nodiscard]] StatePtr Take(const std::string& job);

  [[nodiscard]] size_t jobs() const { return known_.size(); }

 private:
  struct Known {
    StatePtr state;
    size_t bytes = 0;
    std::list<std::string>::iterator place;
  };

  void Remember(const StatePtr& state);
  void Forget(std::map<std::string, Known>::iterator known);

  const ReporterId self_;
  const std::shared_ptr<ReportNumbers> numbers_;
  const size_t max_bytes_;
  const size_t max_jobs_;
  size_t bytes_ = 0;
  std::map<std::string, Known> known_;
  std::list<std::string> by_age_;  // what was heard of last is at the end
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_BYSTANDER_H_
