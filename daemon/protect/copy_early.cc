// Captures on their way to holders before they are sealed (copy_sender.h, "Early").
#include <algorithm>

#include "daemon/base/log.h"
#include "daemon/protect/copy_sender.h"

namespace ckptd::protect {
namespace {

constexpr Nanos kPause = std::chrono::milliseconds(200);  // with a holder that has no room yet

}  // namespace

void CopySender::Captured(const Filling& filling) {
  if (!sends_early() || filling.id.attempt != state_->attempt()) return;
  for (const Key& to : OwedBy({filling.rank})) {
    Sending* sending = Find(to, filling.id);
    if (sending == nullptr) {
      StartEarly(to, filling);
    } else if (sending->early()) {
      const auto known = static_cast<ptrdiff_t>(std::min(sending->crcs.size(), filling.crcs.size()));
      sending->crcs.insert(sending->crcs.end(), filling.crcs.begin() + known, filling.crcs.end());
      const absl::Status told = sending->move == nullptr ? absl::OkStatus() : TellReady(*sending);
      if (!told.ok()) FailedEarly(to, told);
    }
  }
}

void CopySender::StartEarly(const Key& to, const Filling& filling) {
  const auto other = sendings_.find(to);
  const bool busy = other != sendings_.end() && !other->second.early();
  const auto failure = failures_.find(to);
  const bool failed =
      failure != failures_.end() && failure->second.id == filling.id && clock_.Monotonic() < failure->second.again;
  if (!counted_ || plan_.held() || busy || failed) return;
  Sending sending;
  sending.id = filling.id;
  sending.held.head = filling.head;
  sending.held.file = filling.file;
  sending.crcs.assign(filling.crcs.begin(), filling.crcs.end());
  if (!SetBytes(to, sending).ok() || sending.bytes.size == 0) return;
  Begin(to, std::move(sending));
}

// The plan orders what goes there early. False: it was told another checksum of a chunk.
bool CopySender::Adopt(const Key& to, HeldSnapshot held) {
  Sending& sending = sendings_.at(to);
  const std::vector<uint32_t>& crcs = held.record->chunk_crcs;
  if (sending.crcs.size() > crcs.size() || !std::equal(sending.crcs.begin(), sending.crcs.end(), crcs.begin()))
    return false;
  Log(kDebug, "copy.early")
      .Job(job_)
      .Rank(to.rank)
      .Snapshot(sending.id)
      .Field("holder", to.agent)
      .Field("chunks", uint64_t{sending.told});
  sending.held = std::move(held);
  sending.crcs.clear();
  if (sending.move == nullptr) return true;  // the answer to its offer is still to come
  absl::Status status = TellReady(sending);
  if (status.ok() && !sending.moved) return true;
  // In its own turn: the plan is being worked off.
  loop_.After(Nanos(0), scope_.Bind([this, to, turn = sending.turn, status] { Moved(to, turn, status); }));
  return true;
}

void CopySender::FailedEarly(const Key& to, const absl::Status& status) {
  const SnapshotId id = sendings_.at(to).id;
  Log(kDebug, "copy.not_early").Job(job_).Rank(to.rank).Snapshot(id).Field("holder", to.agent).Error(status);
  failures_[to] = {id, IsWaiting(status) ? clock_.Monotonic() + kPause : Nanos::max()};
  Drop(to);
}

void CopySender::GivenUp(Rank rank, const SnapshotId& id) {
  DropEarly([&](const Key& to, const Sending& sending) { return to.rank == rank && sending.id == id; });
}

void CopySender::DropEarly(const std::function<bool(const Key&, const Sending&)>& which) {
  std::vector<Key> dropped;
  for (const auto& [to, sending] : sendings_) {
    if (sending.early() && which(to, sending)) dropped.push_back(to);
  }
  for (const Key& to : dropped) Drop(to);
}

}  // namespace ckptd::protect
