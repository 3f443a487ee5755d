// An etcd in memory, for tests: one store, many clients; leases end when a test says so.
#ifndef CKPTD_DAEMON_MEMBERSHIP_TESTING_FAKE_ETCD_H_
#define CKPTD_DAEMON_MEMBERSHIP_TESTING_FAKE_ETCD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/base/mutex.h"
#include "daemon/membership/etcd.h"

namespace ckptd::membership {

// Any thread.
class FakeStore {
 public:
  // Calls and watches fail until it is up again.
  void SetDown(bool down) CKPTD_EXCLUDES(mutex_);
  void ExpireLeases() CKPTD_EXCLUDES(mutex_);
  void Compact() CKPTD_EXCLUDES(mutex_);        // and ends all watches
  void RestoreBackup() CKPTD_EXCLUDES(mutex_);  // the revision goes back to 1, and all watches end
  void Put(const std::string& key, const std::string& value) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] int lists() CKPTD_EXCLUDES(mutex_);

  [[nodiscard]] std::unique_ptr<Etcd> Connect();

 private:
  friend class FakeClient;

  void Change(const std::string& key, bool deleted, const EtcdEntry& entry) CKPTD_REQUIRES(mutex_);
  void EndWatches() CKPTD_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool down_ CKPTD_GUARDED_BY(mutex_) = false;
  int64_t revision_ CKPTD_GUARDED_BY(mutex_) = 1;
  int64_t compacted_ CKPTD_GUARDED_BY(mutex_) = 0;
  int64_t next_lease_ CKPTD_GUARDED_BY(mutex_) = 1;
  int era_ CKPTD_GUARDED_BY(mutex_) = 0;  // watches of an earlier one end
  int lists_ CKPTD_GUARDED_BY(mutex_) = 0;
  std::set<int64_t> leases_ CKPTD_GUARDED_BY(mutex_);
  std::map<std::string, EtcdEntry> entries_ CKPTD_GUARDED_BY(mutex_);
  std::vector<EtcdChange> history_ CKPTD_GUARDED_BY(mutex_);
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_TESTING_FAKE_ETCD_H_
