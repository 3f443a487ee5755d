#include "daemon/protect/plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::protect {
namespace {

// It has given a slot, and serves others first, or has begun anew since.
bool HasTurnToCome(const absl::Status& status, bool had_room) {
  return had_room && (IsWaiting(status) || CodeOf(status) == ErrorCode::FENCED);
}

}  // namespace

void Plan::SetTarget(const SnapshotId& snapshot, std::set<CopyKey> owed, bool counted) {
  if (snapshot != target_) {
    last_error_ = absl::OkStatus();
    for (auto& [key, copy] : copies_) {
      copy.late = copy.late || copy.overdue;
      if (!copy.late) copy.failing_since = copy.unserved_since = std::nullopt;
      copy.taken = copy.overdue = false;
      const bool asks_at_once = copy.only_waits || copy.late;  // the holder may have room for this one
      if (copy.state == State::kWaiting && asks_at_once) copy = Anew(copy);
    }
  }
  target_ = snapshot;
  counted_ = counted;
  owed_ = target_.none() ? std::set<CopyKey>() : std::move(owed);
  for (const CopyKey& key : owed_) copies_.try_emplace(key);
  std::erase_if(copies_,
                [&](const auto& entry) { return entry.second.state != State::kUnderWay && !Wanted(entry.first); });
  for (auto& [key, copy] : copies_) {
    if (copy.state == State::kDone && copy.snapshot != target_) copy = {};
  }
}

// What was late stays so: its holder has shown no room.
void Plan::Hold(bool hold) {
  const bool goes_on = held_ && !hold;
  held_ = hold;
  if (!goes_on) return;
  for (auto& [key, copy] : copies_) {
    if (!copy.late) copy.failing_since = copy.unserved_since = std::nullopt;
  }
}

// For another step.
Plan::Copy Plan::Anew(const Copy& copy) {
  Copy anew;
  anew.failing_since = copy.failing_since;
  anew.unserved_since = copy.unserved_since;
  anew.late = copy.late;
  return anew;
}

void Plan::ShowsRoom(Copy& copy) {
  copy.failing_since.reset();
  copy.late = false;
}

bool IsWaiting(const absl::Status& status) {
  const ErrorCode code = CodeOf(status);
  return code == ErrorCode::BUSY || code == ErrorCode::LAYOUT_PREPARING || code == ErrorCode::CANCELLED;
}

bool Plan::Wanted(const CopyKey& key) const { return owed_.count(key) != 0; }

bool Plan::Startable(const Copy& copy) const {
  return !held_ && (copy.state == State::kWaiting || (copy.state == State::kDone && !counted_));
}

void Plan::Ended(const CopyKey& to, const SnapshotId& snapshot, const absl::Status& status, Nanos now, bool had_room) {
  const auto at = copies_.find(to);
  if (at == copies_.end() || at->second.state != State::kUnderWay || at->second.snapshot != snapshot) return;
  Copy& copy = at->second;
  if (!Wanted(to)) {
    copies_.erase(at);
    return;
  }
  if (snapshot != target_) {
    if (HasTurnToCome(status, had_room)) ShowsRoom(copy);
    copy = status.ok() ? Copy() : Anew(copy);
    return;
  }
  if (status.ok()) return Taken(to, copy, now);
  Failed(to, copy, status, now, had_room);
}

// What is asked for again says nothing of the others.
void Plan::Taken(const CopyKey& to, Copy& copy, Nanos now) {
  if (!std::exchange(copy.taken, true)) {
    for (auto& [key, other] : copies_) {
      if (key.agent == to.agent) other.unserved_since.reset();
    }
  }
  copy.state = State::kDone;
  copy.pause = Nanos(0);
  copy.not_before = now + pauses_.longest;
  ShowsRoom(copy);
  copy.unserved_since.reset();
  copy.overdue = false;
  last_error_ = absl::OkStatus();
}

void Plan::Failed(const CopyKey& to, Copy& copy, const absl::Status& status, Nanos now, bool had_room) {
  if (!copy.unserved_since) copy.unserved_since = now;
  if (!copy.failing_since) copy.failing_since = now;
  if (HasTurnToCome(status, had_room)) ShowsRoom(copy);
  const Nanos failing = now - copy.failing_since.value_or(now);
  const Nanos unserved = now - *copy.unserved_since;
  copy.overdue = failing >= pauses_.patience || unserved >= pauses_.turn;
  if (!IsWaiting(status)) {
    last_error_ = status;
  } else if (copy.overdue) {
    const auto taken_none = std::chrono::duration_cast<std::chrono::seconds>(std::max(failing, unserved));
    last_error_ = Error(CodeOf(status), absl::StrCat("node ", to.agent, " has taken no copy of rank ", to.rank, " for ",
                                                     taken_none.count(), " s: ", status.message()));
  }
  const Nanos longest = IsWaiting(status) ? std::min(pauses_.longest, pauses_.first * 5) : pauses_.longest;
  copy.pause = copy.pause == Nanos(0) ? pauses_.first : std::min(longest, copy.pause * 2);
  copy.only_waits = IsWaiting(status);
  copy.state = State::kWaiting;
  copy.cancelled = false;
  copy.not_before = now + copy.pause;
}

bool Plan::IsOverdue(const CopyKey& to) const {
  const auto at = copies_.find(to);
  return at != copies_.end() && at->second.overdue;
}

std::vector<Order> Plan::Next(Nanos now) {
  std::vector<Order> orders;
  for (auto& [key, copy] : copies_) {
    if (copy.state == State::kUnderWay && !copy.cancelled && (!Wanted(key) || copy.snapshot != target_)) {
      copy.cancelled = true;
      orders.push_back({Order::Kind::kCancel, key, copy.snapshot});
    }
    if (!Startable(copy) || copy.not_before > now) continue;
    copy.state = State::kUnderWay;
    copy.cancelled = false;
    copy.snapshot = target_;
    orders.push_back({Order::Kind::kStart, key, target_});
  }
  return orders;
}

std::optional<Nanos> Plan::wake() const {
  std::optional<Nanos> first;
  for (const auto& [key, copy] : copies_) {
    if (Startable(copy) && (!first || copy.not_before < *first)) first = copy.not_before;
  }
  return first;
}

Plan::Count Plan::count() const {
  Count count;
  count.owed = owed_.size();
  for (const auto& [key, copy] : copies_) {
    count.done += copy.state == State::kDone ? 1 : 0;
    count.under_way += copy.state == State::kUnderWay ? 1 : 0;
  }
  return count;
}

}  // namespace ckptd::protect
