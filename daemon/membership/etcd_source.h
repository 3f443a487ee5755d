// Members that register themselves in etcd: each agent keeps one key alive under a lease and watches those of all.
// Generations are revisions of the store, so a node that was paused or cut off for longer than its lease is refused by
// every other that etcd told, and a node that was paused knows it (StandingAt) without asking anybody.
//
// While etcd does not answer the last view stays, and says so, and this node goes on as what it was: all others may be
// without etcd too, and jobs of several nodes need them. etcd itself gives all leases their whole time again when it
// comes back (a new leader); a lease that ended all the same is a new, higher generation then.
//
// A node that ends in peace keeps its key until the lease runs out: an agent that is restarted within it is never gone.
#ifndef CKPTD_DAEMON_MEMBERSHIP_ETCD_SOURCE_H_
#define CKPTD_DAEMON_MEMBERSHIP_ETCD_SOURCE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/mutex.h"
#include "daemon/membership/etcd.h"
#include "daemon/membership/etcd_registration.h"
#include "daemon/membership/etcd_watcher.h"
#include "daemon/membership/fixed_sources.h"
#include "daemon/membership/source.h"
#include "daemon/os/fd.h"
#include "daemon/os/loop.h"
#include "daemon/os/thread.h"

namespace ckptd::membership {

struct EtcdSettings {
  Self self;           // its incarnation is not used
  std::string prefix;  // of all members' keys
  Nanos ttl{0};        // of the lease, in whole seconds; etcd may raise it
};

// On the loop's thread, which never waits here, except in the destructor for calls that are being cancelled.
class EtcdSource final : public Source {
 public:
  // `loop` outlives it.
  EtcdSource(Loop& loop, std::unique_ptr<Etcd> etcd, EtcdSettings settings);
  ~EtcdSource() override;

  [[nodiscard]] absl::Status Start(SourceSink& sink) override;
  [[nodiscard]] Standing StandingAt(Nanos now) const override { return registration_.StandingAt(now); }

 private:
  // What came of a call of the registration.
  struct Outcome {
    absl::Status status;
    std::function<void(Registration& registration, Nanos now)> tell;
  };
  // What the threads have for the loop. Never full: an outcome is of the one open call, and a later word is all there
  // is to know.
  class Mailbox {
   public:
    void Put(EtcdWord word) CKPTD_EXCLUDES(mutex_);
    void Put(Outcome outcome) CKPTD_EXCLUDES(mutex_);
    [[nodiscard]] std::optional<EtcdWord> TakeWord() CKPTD_EXCLUDES(mutex_);
    [[nodiscard]] std::optional<Outcome> TakeOutcome() CKPTD_EXCLUDES(mutex_);
    UniqueFd wake;  // an eventfd; readable when something was put

   private:
    Mutex mutex_;
    std::optional<EtcdWord> word_ CKPTD_GUARDED_BY(mutex_);
    std::optional<Outcome> outcome_ CKPTD_GUARDED_BY(mutex_);
  };

  void OnMail();
  void OnWord(EtcdWord word);
  void OnOutcome(const Outcome& outcome);
  void Step();
  void Report();
  void TellStanding();
  [[nodiscard]] Outcome Make(const Registration::Next& next) const;
  void WakeAt(Nanos now);

  Loop& loop_;
  const std::unique_ptr<Etcd> etcd_;
  const EtcdSettings settings_;
  const std::string key_;
  const std::string value_;
  SourceSink* sink_ = nullptr;
  Registration registration_;
  std::optional<std::vector<Member>> members_;  // nullopt: etcd has said nothing yet
  absl::Status watching_;                       // OK, or why the watcher knows nothing new
  absl::Status calling_;                        // OK, or why the last call failed
  std::optional<Standing> told_;
  Loop::TimerId timer_ = 0;
  Mailbox mailbox_;
  std::unique_ptr<EtcdWatcher> watcher_;
  std::unique_ptr<ThreadPool> calls_;
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_ETCD_SOURCE_H_
