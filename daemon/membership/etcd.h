// What membership needs of an etcd, without the protocol: calls that wait, for threads that may. etcd_client.h speaks
// to a real one; tests have a double.
#ifndef CKPTD_DAEMON_MEMBERSHIP_ETCD_H_
#define CKPTD_DAEMON_MEMBERSHIP_ETCD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckptd::membership {

// Of the store when it answered. Revisions count all changes of one cluster's store.
struct EtcdHeader {
  uint64_t cluster = 0;
  int64_t revision = 0;
};

struct EtcdEntry {
  std::string key;
  std::string value;
  int64_t revision = 0;  // of its last change
  int64_t lease = 0;     // 0 = none
};

struct EtcdList {
  EtcdHeader header;
  std::vector<EtcdEntry> entries;
};

struct EtcdChange {
  bool deleted = false;
  EtcdEntry entry;  // deleted: key and revision only
};

struct EtcdNews {
  EtcdHeader header;
  std::vector<EtcdChange> changes;  // none: the watch begins, or nothing happened for a while
  // All changes up to header.revision have been said. Never so of an answer with changes: while a watch catches up they
  // come in batches, and each header has the store's newest revision.
  bool up_to_date = false;
};

struct EtcdLease {
  int64_t id = 0;
  int64_t ttl_seconds = 0;  // may be more than was asked for
};

enum class Taking { kIfFree, kAnyway };

// What came of a claim on a key.
struct EtcdClaim {
  bool taken = false;
  int64_t revision = 0;  // taken: of this change
  EtcdEntry holder;      // not taken: what is there
};

enum class WatchEnd {
  kTurn,       // it was open for long enough: go on where it ended
  kCompacted,  // what was asked for is forgotten: list anew
};

// Any thread. Every call ends by itself: those that answer at once with TIMEOUT, a watch after minutes at most.
class Etcd {
 public:
  virtual ~Etcd() = default;

  [[nodiscard]] virtual absl::StatusOr<EtcdLease> Grant(int64_t ttl_seconds) = 0;
  // The seconds that the lease has from now on; 0 = it is over.
  [[nodiscard]] virtual absl::StatusOr<int64_t> KeepAlive(int64_t lease) = 0;
  // NOT_FOUND: the lease is over.
  [[nodiscard]] virtual absl::StatusOr<EtcdClaim> Claim(const std::string& key, const std::string& value, int64_t lease,
                                                        Taking taking) = 0;
  // REFUSED when there are more than `most`.
  [[nodiscard]] virtual absl::StatusOr<EtcdList> List(const std::string& prefix, size_t most) = 0;
  // Of the store, as of all that was committed before the call. It asks below `prefix`: more may not be allowed.
  [[nodiscard]] virtual absl::StatusOr<EtcdHeader> Newest(const std::string& prefix) = 0;
  // Calls `news` on this thread, first when the watch stands; goes on until `news` says false or something ends it.
  [[nodiscard]] virtual absl::StatusOr<WatchEnd> Watch(const std::string& prefix, int64_t from_revision,
                                                       const std::function<bool(EtcdNews)>& news) = 0;
  // For good: what waits and what is called later fails at once.
  virtual void Cancel() = 0;
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_ETCD_H_
