// Reads again what lies still: sealed slots, and the files of this agent's ranks in committed steps, each after its
// interval ([scrub] in the configuration) and at a bounded rate. Reads by descriptor from slots and past the page cache
// from storage, where the file system can: what a cache still holds says nothing of the disk.
//
// A slot that went bad is quarantined: restores take another source. Images that went bad are put back from the slot
// where it still holds the same snapshot; damage that stays is a problem in `ckptctl status` until the step is gone or
// good again. The files of a rank are read by the agent that has its slots, so that the agents of a job share the work;
// a job without memory on any node is nobody's, and `ckptctl verify` reads it.
//
// Control thread, but for one worker that reads.
#ifndef CKPTD_DAEMON_APP_SCRUBBER_H_
#define CKPTD_DAEMON_APP_SCRUBBER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/app/scrub_plan.h"
#include "daemon/app/services.h"
#include "daemon/base/pace.h"
#include "daemon/os/thread.h"
#include "daemon/persist/rank_flush.h"
#include "daemon/region/slot_file.h"
#include "daemon/snapshot/events.h"

namespace ckptd {

class JobRunner;
class RankRunner;

class Scrubber {
 public:
  using Jobs = std::map<std::string, std::unique_ptr<JobRunner>>;

  // Both outlive it.
  Scrubber(Services& services, const Jobs& jobs);
  ~Scrubber();

  // What is bad on storage and could not be put back, each with its job.
  [[nodiscard]] const std::map<ScrubItem, absl::Status>& damage() const { return damage_; }

  // Nothing new is read; what is being read ends soon.
  void Stop();
  // After Stop(). False: the worker hangs in the storage.
  [[nodiscard]] bool StopWithin(Nanos patience) { return worker_.StopWithin(patience); }

 private:
  using Made = std::map<ScrubItem, Nanos>;
  struct Listing {
    Made made;
    std::map<std::string, absl::Status> unlisted;  // jobs, and why storage did not list them
  };
  enum class Mend { kMayTry, kTried };

  void Round();
  void Listed(const Listing& listing);
  void TellUnlisted(const std::map<std::string, absl::Status>& unlisted);
  void Advance();
  void Rest();
  void ReadSlot(const ScrubItem& item);
  void SlotRead(const ScrubItem& item, const snapshot::SlotId& slot, const absl::Status& status);
  void ReadStored(const ScrubItem& item, Mend mend);
  void StoredRead(const ScrubItem& item, const std::vector<BadChunk>& bad, Mend mend);
  [[nodiscard]] bool StartMending(const ScrubItem& item, const std::vector<BadChunk>& bad);
  void Ended(const ScrubItem& item);

  [[nodiscard]] RankRunner* FindRank(const ScrubItem& item) const;
  [[nodiscard]] Made SlotsHere() const;
  [[nodiscard]] uint64_t rate() const;

  Services& services_;
  const Jobs& jobs_;
  ScrubPlan plan_;
  std::map<ScrubItem, absl::Status> damage_;
  std::map<std::string, absl::Status> unlisted_;  // in the last round
  bool stopped_ = false;
  Pace pace_;
  ThreadPool worker_{"ckptd-scrub", 1, 4};
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_SCRUBBER_H_
