#include "daemon/protect/copy_sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/marks.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/protect/copy_messages.h"
#include "daemon/protect/copy_placement.h"

namespace ckptd::protect {
namespace {

constexpr Nanos kPatience = std::chrono::seconds(20);      // with an answer
constexpr Nanos kBusyPatience = std::chrono::seconds(10);  // with a holder that is dialled in vain; then the plan asks

// Of the rank that this agent has in the group: for each stripe that it gives a block to, to all who keep its parity.
void AddPieces(const RankGroup& group, uint32_t parity, const std::string& agent, const std::set<Rank>& ranks,
               std::set<CopyKey>& owed) {
  const auto shape = ShapeOf(group.ranks.size(), parity);
  const auto at = std::find(group.agents.begin(), group.agents.end(), agent);
  if (!shape || at == group.agents.end()) return;
  const auto place = static_cast<uint32_t>(at - group.agents.begin());
  if (ranks.count(group.ranks[place]) == 0) return;
  for (uint32_t block = 0; block < shape->data; ++block) {
    const uint32_t stripe = erasure::StripeOf(*shape, place, block);
    for (uint32_t row = 0; row < shape->parity; ++row)
      owed.insert({group.ranks[place], group.agents[erasure::ParityHolder(*shape, stripe, row)], stripe});
  }
}

// It does not pass by asking again.
bool IsRefusal(const absl::Status& status) {
  const ErrorCode code = CodeOf(status);
  return code == ErrorCode::INVALID_ARGUMENT || code == ErrorCode::QUOTA_EXCEEDED || code == ErrorCode::REGION_FULL ||
         code == ErrorCode::JOB_OWNED || code == ErrorCode::NEWER_VERSION;
}

}  // namespace

CopySender::CopySender(Loop& loop, const Clock& clock, std::string job, std::string agent, Handler handler)
    : loop_(loop), clock_(clock), job_(std::move(job)), agent_(std::move(agent)), handler_(std::move(handler)) {}

CopySender::~CopySender() { Stop(); }

void CopySender::Stop() {
  if (wake_) loop_.CancelTimer(*wake_);
  wake_.reset();
  state_.reset();
  holders_.clear();
  groups_.clear();
  sendings_.clear();
  failures_.clear();
}

void CopySender::OnState(StatePtr state) {
  state_ = std::move(state);
  holders_ = HoldersOf(GroupsOf(*state_), agent_, state_->copies());
  groups_ = RankGroupsOf(*state_);
  std::erase_if(groups_, [this](const RankGroup& group) {
    return std::find(group.agents.begin(), group.agents.end(), agent_) == group.agents.end();
  });
  plan_.Hold(state_->phase() == v1::State::LOAD);
  DropEarly([this](const Key& to, const Sending& sending) {
    return sending.id.attempt != state_->attempt() || OwedBy({to.rank}).count(to) == 0;
  });
  Refresh();
}

void CopySender::Refresh() {
  if (state_ == nullptr) return;
  const SnapshotId target = ToId(state_->protecting());
  const SnapshotId complete = ToId(state_->protected_());
  counted_ = target.none() ||
             (complete >= target && IsInForce(complete, ToId(state_->unprotected()), state_->protection_turns()));
  if (target.none() && plan_.target().none()) return;
  std::set<Key> owed = target.none() ? std::set<Key>() : OwedBy(Ours(handler_.sealed(target)));
  std::set<std::string> holders;
  for (const Key& key : owed) holders.insert(key.agent);
  std::erase_if(refused_, [&](const Key& key) { return holders.count(key.agent) == 0; });
  const bool another = target != plan_.target();
  plan_.SetTarget(target, std::move(owed), counted_);
  if (another) TellRefused();
  Work();
}

// What a rank left here when it moved to another node is that one's to copy: from here nobody would take it.
std::set<Rank> CopySender::Ours(const std::set<Rank>& ranks) const {
  if (!state_->has_decision()) return ranks;
  std::set<Rank> ours;
  for (const v1::RankClaim& claim : state_->decision().ranks()) {
    if (claim.agent() == agent_ && ranks.count(claim.rank()) != 0) ours.insert(claim.rank());
  }
  return ours;
}

std::set<CopySender::Key> CopySender::OwedBy(const std::set<Rank>& ranks) const {
  std::set<Key> owed;
  for (const std::string& holder : holders_) {
    for (const Rank rank : ranks) owed.insert({rank, holder});
  }
  for (const RankGroup& group : groups_) AddPieces(group, state_->parity(), agent_, ranks, owed);
  return owed;
}

std::optional<ParityPlace> CopySender::PlaceOf(const Key& key) const {
  for (const RankGroup& group : groups_) {
    const auto shape = ShapeOf(group.ranks.size(), state_->parity());
    if (!shape || !group.PlaceOf(key.rank)) continue;
    for (uint32_t row = 0; row < shape->parity; ++row) {
      if (group.agents[erasure::ParityHolder(*shape, key.stripe, row)] == key.agent)
        return ParityPlace{group.ranks, *shape, key.stripe, row};
    }
  }
  return std::nullopt;
}

// Until it is asked again, who had no room for a step has none for the next one.
void CopySender::TellRefused() {
  if (!refused_.empty() && !plan_.target().none()) handler_.refused(plan_.target());
}

void CopySender::Work() {
  if (state_ == nullptr) return;
  if (wake_) loop_.CancelTimer(*wake_);
  wake_.reset();
  for (const Order& order : plan_.Next(clock_.Monotonic())) {
    if (order.kind == Order::Kind::kStart) {
      Start(order.to, order.snapshot);
    } else {
      Cancel(order.to);
    }
  }
  const auto at = plan_.wake();
  if (!at) return;
  wake_ = loop_.After(std::max(Nanos(0), *at - clock_.Monotonic()), [this] {
    wake_.reset();
    Work();
  });
}

CopySender::Sending* CopySender::Find(const Key& to, const SnapshotId& id) {
  const auto at = sendings_.find(to);
  return at == sendings_.end() || at->second.id != id ? nullptr : &at->second;
}

CopySender::Sending* CopySender::Find(const Key& to, Turn turn) {
  const auto at = sendings_.find(to);
  return at == sendings_.end() || at->second.turn != turn ? nullptr : &at->second;
}

void CopySender::Begin(const Key& to, Sending sending) {
  Drop(to);
  sending.turn = ++turns_;
  sendings_[to] = std::move(sending);
  Offer(to);
}

void CopySender::Start(const Key& to, const SnapshotId& id) {
  auto sending = Open(to, id);
  if (!sending.ok()) {
    // In its own turn: the plan is being worked off.
    loop_.After(Nanos(0), scope_.Bind([this, to, id, why = sending.status()] { Ended(to, id, why); }));
    return;
  }
  if (Find(to, id) != nullptr && Adopt(to, sending->held)) return;
  Begin(to, *std::move(sending));
}

absl::StatusOr<CopySender::Sending> CopySender::Open(const Key& to, const SnapshotId& id) const {
  Sending sending;
  sending.id = id;
  CKPTD_ASSIGN_OR_RETURN(sending.held, handler_.open(to.rank, id));
  CKPTD_RETURN_IF_ERROR(SetBytes(to, sending));
  return sending;
}

absl::Status CopySender::SetBytes(const Key& to, Sending& sending) const {
  const Superblock& block = sending.held.head.block;
  sending.bytes = {0, block.slot_bytes};
  if (to.stripe == kWholeImage) return absl::OkStatus();
  sending.parity = PlaceOf(to);
  if (!sending.parity) return Error(ErrorCode::CANCELLED, "the group is another one now");
  sending.bytes = BlockGivenBy(*sending.parity, to.rank, block.slot_bytes, block.chunk_bytes);
  return absl::OkStatus();
}

void CopySender::Cancel(const Key& to) {
  const auto at = sendings_.find(to);
  if (at == sendings_.end()) return;
  at->second.cancelled = true;
  if (at->second.move != nullptr) at->second.move->Cancel();
}

v1::OfferRequest CopySender::RequestFor(Rank rank, const Sending& sending) const {
  v1::OfferRequest request;
  *request.mutable_copy() = NameOfCopy(job_, rank, sending.id);
  request.set_user(state_->user());
  request.set_world_size(sending.held.head.block.world);
  request.set_attempt(state_->attempt());
  *request.mutable_marks() = MarksOf(*state_);
  *request.mutable_layout() = LayoutOf(sending.held.head);
  if (sending.parity) *request.mutable_parity() = PieceOf(*sending.parity);
  return request;
}

void CopySender::Offer(const Key& to) {
  const Sending& sending = sendings_.at(to);
  transport::CopyCalls* calls = handler_.calls();
  auto offered = scope_.Bind(
      [this, to, turn = sending.turn](const absl::StatusOr<v1::OfferResponse>& answer) { Offered(to, turn, answer); });
  if (calls != nullptr) return calls->Offer(to.agent, RequestFor(to.rank, sending), kPatience, std::move(offered));
  loop_.After(Nanos(0), [offered]() mutable {
    offered(
        absl::StatusOr<v1::OfferResponse>(Error(ErrorCode::AGENT_UNREACHABLE, "there are no links to other nodes")));
  });
}

void CopySender::Offered(const Key& to, Turn turn, const absl::StatusOr<v1::OfferResponse>& answer) {
  Sending* sending = Find(to, turn);
  if (sending == nullptr) return;
  const SnapshotId id = sending->id;
  Log(kDebug, "copy.offered").Job(job_).Rank(to.rank).Snapshot(id).Field("holder", to.agent).Error(answer.status());
  NoteRoom(to, *sending, answer);
  if (sending->early() && (!answer.ok() || answer->have())) return FailedEarly(to, answer.status());
  if (!answer.ok()) return Ended(to, id, answer.status());
  if (sending->cancelled) return Ended(to, id, Error(ErrorCode::CANCELLED, "not wanted any more"));
  if (answer->have()) return Ended(to, id, absl::OkStatus());
  if (sending->bytes.size == 0) return Moved(to, turn, absl::OkStatus());
  const absl::Status moving = Move(to, *sending, *answer);
  if (!moving.ok()) Moved(to, turn, moving);
}

// A token says so.
void CopySender::NoteRoom(const Key& to, Sending& sending, const absl::StatusOr<v1::OfferResponse>& answer) {
  sending.has_room = answer.ok() && !answer->have();
  if (sending.has_room) refused_.erase(to);
}

absl::Status CopySender::Move(const Key& to, Sending& sending, const v1::OfferResponse& answer) {
  transport::CopyCalls* calls = handler_.calls();
  if (calls == nullptr) return Error(ErrorCode::AGENT_UNREACHABLE, "there are no links to other nodes");
  transport::MoveOrder order;
  order.peer = to.agent;
  order.name = {to.agent, job_, to.rank, sending.id, answer.slot()};
  order.image_bytes = sending.bytes.size;
  order.chunk_bytes = sending.held.head.block.chunk_bytes;
  order.busy_patience = kBusyPatience;
  CKPTD_ASSIGN_OR_RETURN(order.token, TokenOf(answer.token()));
  order.renew = scope_.Bind(
      [this, to, turn = sending.turn, slot = answer.slot()](auto answered) { Renew(to, turn, slot, answered); });
  transport::BulkSource source;
  source.read = [file = sending.held.file, begin = sending.bytes.begin](uint64_t offset, std::span<std::byte> into) {
    return file->Read(begin + offset, into);
  };
  source.keep = sending.held.file;
  source.file = {sending.held.file->read_fd(), sending.bytes.begin};
  transport::SenderLimits limits;
  limits.deadline = clock_.Monotonic() + transport::kLongestTransfer;
  CKPTD_ASSIGN_OR_RETURN(sending.move,
                         calls->Send(std::move(order), std::move(source), limits,
                                     scope_.Bind([this, to, turn = sending.turn](const absl::Status& status) {
                                       Moved(to, turn, status);
                                     })));
  return TellReady(sending);
}

// A holder that has no room any more, or has not heard of the attempt since its restart, is the plan's matter, which
// asks again, and tells of one that has none for long: the transport would ask for as long as the transfer may last.
// What the holder has of it stays with it for a while, and is not sent again.
void CopySender::Renew(const Key& to, Turn turn, uint32_t slot, const TokenAnswer& answered) {
  const Sending* sending = Find(to, turn);
  transport::CopyCalls* calls = handler_.calls();
  if (sending == nullptr || state_ == nullptr || calls == nullptr)
    return answered(Error(ErrorCode::CANCELLED, "not wanted any more"));
  calls->Offer(to.agent, RequestFor(to.rank, *sending), kPatience,
               scope_.Bind([this, to, turn, slot, answered](const absl::StatusOr<v1::OfferResponse>& again) {
                 Sending* now = Find(to, turn);
                 if (now != nullptr) NoteRoom(to, *now, again);
                 if (now != nullptr && IsWaiting(again.status())) return Moved(to, turn, again.status());
                 answered(RenewedToken(slot, again));
               }));
}

// Of its chunks those that are captured.
absl::Status CopySender::TellReady(Sending& sending) {
  const std::vector<uint32_t>& crcs = sending.early() ? sending.crcs : sending.held.record->chunk_crcs;
  const uint64_t chunk_bytes = sending.held.head.block.chunk_bytes;
  const uint64_t first = sending.bytes.begin / chunk_bytes;
  const uint64_t chunks = (sending.bytes.size + chunk_bytes - 1) / chunk_bytes;
  for (; sending.told < chunks && first + sending.told < crcs.size(); ++sending.told)
    CKPTD_RETURN_IF_ERROR(sending.move->ChunkReady(sending.told, crcs[first + sending.told]));
  return absl::OkStatus();
}

void CopySender::Moved(const Key& to, Turn turn, const absl::Status& status) {
  Sending* sending = Find(to, turn);
  if (sending == nullptr) return;
  transport::CopyCalls* calls = handler_.calls();
  const SnapshotId id = sending->id;
  Log(kDebug, "copy.moved").Job(job_).Rank(to.rank).Snapshot(id).Field("holder", to.agent).Error(status);
  sending->moved = status.ok();
  if (sending->early()) return status.ok() ? void() : FailedEarly(to, status);
  if (!status.ok()) return Ended(to, id, status);
  if (calls == nullptr || state_ == nullptr) return Ended(to, id, Error(ErrorCode::CANCELLED, "not wanted any more"));
  v1::SealRequest seal = SealOf(job_, to.rank, state_->attempt(), sending->held.head, *sending->held.record);
  if (sending->parity) {
    *seal.mutable_parity() = PieceOf(*sending->parity);
    *seal.mutable_record() = RecordOf(*sending->held.record);
  }
  calls->Seal(to.agent, std::move(seal), kPatience,
              scope_.Bind([this, to, turn, id](const absl::StatusOr<v1::SealResponse>& answer) {
                if (Find(to, turn) != nullptr) Ended(to, id, answer.status());
              }));
}

// With it goes the pin, in its own turn: what that sets free may change what is sealed, and begin the next copy. The
// move not before its own call has returned.
void CopySender::Drop(const Key& to) {
  const auto at = sendings_.find(to);
  if (at == sendings_.end()) return;
  const auto ended = std::make_shared<Sending>(std::move(at->second));
  sendings_.erase(at);
  loop_.After(Nanos(0), [ended] {});
}

// What a holder has already was counted when it came.
void CopySender::Ended(const Key& to, const SnapshotId& id, const absl::Status& status) {
  uint64_t bytes = 0;
  bool moved = false;
  bool had_room = false;
  if (const Sending* sending = Find(to, id)) {
    bytes = sending->bytes.size;
    moved = sending->move != nullptr;
    had_room = sending->has_room;
    Drop(to);
  }
  if (!status.ok() && !IsWaiting(status))
    Log(kWarning, "copy.failed").Job(job_).Rank(to.rank).Snapshot(id).Field("holder", to.agent).Error(status);
  if (!IsWaiting(status) && (moved || !status.ok())) handler_.ended(status, bytes);
  plan_.Ended(to, id, status, clock_.Monotonic(), had_room);
  if (IsRefusal(status)) refused_.insert(to);
  if (status.ok()) refused_.erase(to);
  if (plan_.IsOverdue(to)) handler_.refused(plan_.target());
  if (IsRefusal(status)) TellRefused();
  Work();
}

}  // namespace ckptd::protect
