// How a node registers itself in etcd and stays registered: a lease of a few seconds that is kept alive, and one key
// under it. Pure: it says which call to make next, is told what came of it, and knows at any moment how this node
// stands.
//
//   no lease ──Grant──► lease, no key ──Claim──► member ──KeepAlive every TTL/3──► member
//
// * The generation is the revision at which the key was written: etcd's revisions only grow, so it fences every earlier
//   registration of this name (fence.h).
// * Time is counted on this node from when a call was *sent* that etcd answered: this node's lease ends here no later
//   than there, whatever a pause of this process did in between. From that moment it is FENCED, until etcd says
//   that the lease lives after all (then nobody ever saw it end), or it is registered anew, higher.
// * An etcd that is asked and silent fences nobody: it may be silent to all, and then no name is taken and no lease
//   ends that anybody sees. The old generation goes on. If etcd gave it up meanwhile and told others, those refuse it
//   (fence.h), as they refuse any process that wakes up late; what a job writes to storage is arbitrated there.
// * A process that starts takes its name over from whatever held it: it was started for that. One that lost its lease
//   does not: when its name is taken meanwhile, it stays fenced and asks again once per TTL, until the name is free.
//
// One call at a time; every call ends by itself (etcd.h).
#ifndef CKPTD_DAEMON_MEMBERSHIP_ETCD_REGISTRATION_H_
#define CKPTD_DAEMON_MEMBERSHIP_ETCD_REGISTRATION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/membership/etcd.h"
#include "daemon/membership/source.h"

namespace ckptd::membership {

// Pure; one thread. All times are monotonic.
class Registration {
 public:
  enum class Call { kGrant, kClaim, kKeepAlive };
  struct Next {
    Call call = Call::kGrant;
    int64_t lease = 0;  // of kClaim and kKeepAlive
    Taking taking = Taking::kIfFree;
  };

  Registration(std::string name, Nanos ttl) : name_(std::move(name)), wanted_ttl_(ttl) {}

  // The call to make now, which then is open until it is told below; nullopt: none is due before due().
  [[nodiscard]] std::optional<Next> Due(Nanos now);
  [[nodiscard]] Nanos due() const { return due_; }

  // What came of the open call, and when it was sent.
  void Granted(const absl::StatusOr<EtcdLease>& lease, Nanos sent, Nanos now);
  void Claimed(const absl::StatusOr<EtcdClaim>& claim, Nanos now);
  void KeptAlive(const absl::StatusOr<int64_t>& seconds, Nanos sent, Nanos now);

  // What a watch shows under this node's name at `revision`: somebody took the key, or took it away.
  void Seen(const std::optional<EtcdEntry>& entry, int64_t revision, Nanos now);

  [[nodiscard]] Standing StandingAt(Nanos now) const;
  // When StandingAt changes by itself; nullopt: never.
  [[nodiscard]] std::optional<Nanos> Deadline() const;

 private:
  void Lose(Nanos now, std::string why);
  void Retry(const absl::Status& why, Nanos now);
  [[nodiscard]] Nanos RetryDelay() const;

  const std::string name_;
  const Nanos wanted_ttl_;
  bool open_ = false;
  Nanos due_{0};
  int64_t lease_ = 0;
  Nanos ttl_{0};       // of the lease
  Nanos deadline_{0};  // when it ends, unless etcd says otherwise
  uint64_t generation_ = 0;
  bool was_member_ = false;
  std::string lost_;         // why it is no member any more
  absl::Status last_error_;  // of the calls since one succeeded
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_ETCD_REGISTRATION_H_
