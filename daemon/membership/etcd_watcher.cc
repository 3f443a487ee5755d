#include "daemon/membership/etcd_watcher.h"

#include <chrono>
#include <utility>

#include "daemon/base/status_macros.h"

namespace ckptd::membership {
namespace {

// Between two turns, whatever ended the first: a server that ends watches at once is not asked without a pause.
constexpr std::chrono::milliseconds kPause{500};

}  // namespace

EtcdWatcher::EtcdWatcher(Etcd& etcd, std::string prefix, std::string own_name, std::function<void(EtcdWord)> tell)
    : etcd_(etcd),
      prefix_(prefix),
      own_name_(std::move(own_name)),
      tell_(std::move(tell)),
      mirror_(std::move(prefix)),
      thread_("etcd-watch", [this] { Run(); }) {}

EtcdWatcher::~EtcdWatcher() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    stopped_.NotifyAll();
  }
  thread_.Join();
}

void EtcdWatcher::Run() {
  do {
    if (absl::Status ended = Turn(); !ended.ok()) tell_({ended, {}, {}, 0});
  } while (Pause());
}

bool EtcdWatcher::Pause() {
  const auto until = std::chrono::steady_clock::now() + kPause;
  MutexLock lock(mutex_);
  while (!stop_) {
    if (!stopped_.WaitUntil(mutex_, until)) break;
  }
  return !stop_;
}

// Where it goes on from is checked first: a watch from a revision that this store has not reached yet, as after a
// restore from a backup, would be silent until it does.
absl::Status EtcdWatcher::CatchUp() {
  if (!relist_) {
    CKPTD_ASSIGN_OR_RETURN(EtcdHeader newest, etcd_.Newest(prefix_));
    return mirror_.Check(newest);
  }
  CKPTD_ASSIGN_OR_RETURN(EtcdList list, etcd_.List(prefix_, kMaxMembers));
  CKPTD_RETURN_IF_ERROR(mirror_.Reset(list));
  relist_ = false;
  return absl::OkStatus();
}

absl::Status EtcdWatcher::Turn() {
  CKPTD_RETURN_IF_ERROR(CatchUp());
  absl::Status applied;
  auto end = etcd_.Watch(prefix_, mirror_.revision() + 1, [this, &applied](const EtcdNews& news) {
    applied = mirror_.Apply(news);
    if (applied.ok()) TellAll();
    return applied.ok();
  });
  if (!applied.ok()) relist_ = true;
  CKPTD_RETURN_IF_ERROR(applied);
  CKPTD_RETURN_IF_ERROR(end.status());
  if (*end == WatchEnd::kCompacted) relist_ = true;
  return absl::OkStatus();
}

void EtcdWatcher::TellAll() {
  tell_({absl::OkStatus(), mirror_.Members(), mirror_.Find(own_name_), mirror_.revision()});
}

}  // namespace ckptd::membership
