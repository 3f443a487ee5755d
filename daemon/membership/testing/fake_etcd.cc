#include "daemon/membership/testing/fake_etcd.h"

#include <utility>

#include "daemon/base/errors.h"

namespace ckptd::membership {

namespace {

constexpr uint64_t kCluster = 7;
absl::Status Down() { return Error(ErrorCode::TIMEOUT, "etcd does not answer"); }

}  // namespace

class FakeClient final : public Etcd {
 public:
  explicit FakeClient(FakeStore& store) : store_(store) {}

  absl::StatusOr<EtcdLease> Grant(int64_t ttl_seconds) override {
    MutexLock lock(store_.mutex_);
    if (Unable()) return Down();
    store_.leases_.insert(store_.next_lease_);
    return EtcdLease{store_.next_lease_++, ttl_seconds};
  }

  absl::StatusOr<int64_t> KeepAlive(int64_t lease) override {
    MutexLock lock(store_.mutex_);
    if (Unable()) return Down();
    return store_.leases_.count(lease) > 0 ? int64_t{3} : int64_t{0};
  }

  absl::StatusOr<EtcdClaim> Claim(const std::string& key, const std::string& value, int64_t lease,
                                  Taking taking) override {
    MutexLock lock(store_.mutex_);
    if (Unable()) return Down();
    if (store_.leases_.count(lease) == 0) return Error(ErrorCode::NOT_FOUND, "lease not found");
    const auto held = store_.entries_.find(key);
    if (taking == Taking::kIfFree && held != store_.entries_.end()) return EtcdClaim{false, 0, held->second};
    store_.Change(key, false, {key, value, 0, lease});
    return EtcdClaim{true, store_.revision_, {}};
  }

  absl::StatusOr<EtcdList> List(const std::string& prefix, size_t) override {
    MutexLock lock(store_.mutex_);
    if (Unable()) return Down();
    ++store_.lists_;
    EtcdList list{{kCluster, store_.revision_}, {}};
    for (const auto& [key, entry] : store_.entries_)
      if (key.rfind(prefix, 0) == 0) list.entries.push_back(entry);
    return list;
  }

  absl::StatusOr<EtcdHeader> Newest(const std::string&) override {
    MutexLock lock(store_.mutex_);
    if (Unable()) return Down();
    return EtcdHeader{kCluster, store_.revision_};
  }

  absl::StatusOr<WatchEnd> Watch(const std::string& prefix, int64_t from_revision,
                                 const std::function<bool(EtcdNews)>& news) override {
    int era = -1;
    for (EtcdNews next; Await(prefix, from_revision, &era, &next);) {
      for (const EtcdChange& change : next.changes) from_revision = std::max(from_revision, change.entry.revision + 1);
      if (!news(std::move(next))) return WatchEnd::kTurn;
    }
    MutexLock lock(store_.mutex_);
    if (Unable() || from_revision > store_.compacted_) return Down();
    return WatchEnd::kCompacted;
  }

  void Cancel() override {
    MutexLock lock(store_.mutex_);
    cancelled_ = true;
    store_.changed_.NotifyAll();
  }

 private:
  bool Unable() const CKPTD_REQUIRES(store_.mutex_) { return cancelled_ || store_.down_; }

  // Waits for the next news; false when the watch is over. The first says only that it stands.
  bool Await(const std::string& prefix, int64_t from, int* era, EtcdNews* next) {
    MutexLock lock(store_.mutex_);
    const bool begins = *era == -1;
    if (begins) *era = store_.era_;
    while (true) {
      if (Unable() || store_.era_ != *era || from <= store_.compacted_) return false;
      *next = {{kCluster, store_.revision_}, {}, false};
      for (const EtcdChange& change : store_.history_)
        if (change.entry.revision >= from && change.entry.key.rfind(prefix, 0) == 0) next->changes.push_back(change);
      if (begins) next->changes.clear();
      if (begins || !next->changes.empty()) return true;
      store_.changed_.Wait(store_.mutex_);
    }
  }

  FakeStore& store_;
  bool cancelled_ = false;
};

void FakeStore::Change(const std::string& key, bool deleted, const EtcdEntry& entry) {
  EtcdChange change{deleted, entry};
  change.entry.revision = ++revision_;
  if (deleted) {
    entries_.erase(key);
  } else {
    entries_[key] = change.entry;
  }
  history_.push_back(std::move(change));
  changed_.NotifyAll();
}

void FakeStore::EndWatches() {
  ++era_;
  changed_.NotifyAll();
}

void FakeStore::SetDown(bool down) {
  MutexLock lock(mutex_);
  down_ = down;
  EndWatches();
}

void FakeStore::ExpireLeases() {
  MutexLock lock(mutex_);
  leases_.clear();
  const auto entries = entries_;
  for (const auto& [key, entry] : entries)
    if (entry.lease != 0) Change(key, true, {key, "", 0, 0});
}

void FakeStore::Compact() {
  MutexLock lock(mutex_);
  compacted_ = revision_ + 5;
  revision_ = compacted_ + 1;
  history_.clear();
  EndWatches();
}

void FakeStore::RestoreBackup() {
  MutexLock lock(mutex_);
  revision_ = 1;
  history_.clear();
  entries_.clear();
  EndWatches();
}

void FakeStore::Put(const std::string& key, const std::string& value) {
  MutexLock lock(mutex_);
  Change(key, false, {key, value, 0, 0});
}

int FakeStore::lists() {
  MutexLock lock(mutex_);
  return lists_;
}

std::unique_ptr<Etcd> FakeStore::Connect() { return std::make_unique<FakeClient>(*this); }

}  // namespace ckptd::membership
