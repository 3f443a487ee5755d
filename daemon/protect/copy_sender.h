// Copies of this node's snapshots to their holders, or their blocks to those who keep parity of them
// (v1::ParityPiece): carries out what Plan decides for one job.
//
//   Offer ── token ──► Move (all chunks; slot pinned) ── acknowledged ──► Seal ──► the holder has verified it
//
// While ranks load nothing is begun: a restore may need the same links, and the memory of the same holder. What is
// under way goes on.
//
// What counts as protected is what the holders REPORT, not what comes back here.
//
// Early. A capture goes to the holders while it is made, chunk by chunk, before anybody knows whether it will be
// sealed: Offer and Move as above, without a pin; when the plan orders that copy, its record is compared with what was
// told of the chunks, the rest is sent, and it is sealed. Nothing is early before all copies of the step before are
// counted: a holder that makes room for a newer step would give up what it has of that one. An older step that becomes
// the one to protect takes its place, here and with the holder (region/peer_rules.h). What fails early is forgotten.
//
// On the loop's thread. The slot's bytes are read by descriptor on the transport's threads.
#ifndef CKPTD_DAEMON_PROTECT_COPY_SENDER_H_
#define CKPTD_DAEMON_PROTECT_COPY_SENDER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/callback_scope.h"
#include "daemon/base/clock.h"
#include "daemon/os/loop.h"
#include "daemon/protect/copy_keeper.h"
#include "daemon/protect/groups.h"
#include "daemon/protect/parity_piece.h"
#include "daemon/protect/plan.h"
#include "daemon/transport/copies.h"
#include "proto/ckptd/v1/job.pb.h"

namespace ckptd::protect {

class CopySender {
 public:
  struct Handler {
    // Null while this node speaks to no other.
    std::function<transport::CopyCalls*()> calls;
    // Ranks of this node that have `id` sealed.
    std::function<std::set<Rank>(const SnapshotId& id)> sealed;
    // Such a slot, pinned. NOT_FOUND.
    std::function<absl::StatusOr<HeldSnapshot>(Rank rank, const SnapshotId& id)> open;
    // A holder has no room for the target, and will have none soon; or it has taken none for long (Plan::IsOverdue).
    std::function<void(const SnapshotId& id)> refused;
    // A copy is with its holder, or is not (yet).
    std::function<void(const absl::Status& status, uint64_t bytes)> ended;
  };
  // A fill of a rank of this node, as far as it is captured.
  struct Filling {
    Rank rank = 0;
    SnapshotId id;
    const region::CtlHead& head;
    std::shared_ptr<region::SlotFile> file;
    std::span<const uint32_t> crcs;  // of its first chunks, which are in place, as its trainer tells
  };
  using StatePtr = std::shared_ptr<const v1::State>;

  // `loop` and `clock` outlive it. `agent`: this one, as the job protocol names it.
  CopySender(Loop& loop, const Clock& clock, std::string job, std::string agent, Handler handler);
  ~CopySender();

  // The newest STATE of the job: who holds, and what is protected now.
  void OnState(StatePtr state);
  // Slots of this node's ranks changed.
  void Refresh();
  // Whether Captured() is of any use.
  [[nodiscard]] bool sends_early() const { return state_ != nullptr && (state_->copies() > 1 || state_->parity() > 0); }
  // More chunks of a fill are in place.
  void Captured(const Filling& filling);
  // It will not be sealed.
  void GivenUp(Rank rank, const SnapshotId& id);
  // Nothing is sent any more.
  void Stop();

  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] bool busy() const { return !sendings_.empty(); }

 private:
  using Turn = uint64_t;
  struct Sending {
    Turn turn = 0;  // what is answered to another one of the same step is not this one's
    SnapshotId id;
    HeldSnapshot held;                  // early: without record and pin
    std::optional<ParityPlace> parity;  // nothing: a copy
    erasure::Extent bytes;  // of the image: all, or the block; whole chunks, and none where the block is empty
    std::unique_ptr<transport::CopyMove> move;
    std::vector<uint32_t> crcs;  // early: of the first chunks of the image
    uint32_t told = 0;           // chunks that the move has
    bool has_room = false;       // the holder has a slot for it, as it said last
    bool moved = false;          // all of them are with the holder
    bool cancelled = false;
    [[nodiscard]] bool early() const { return held.record == nullptr; }
  };
  using Key = CopyKey;
  struct Failure {
    SnapshotId id;
    Nanos again{0};  // not before
  };

  [[nodiscard]] std::set<Rank> Ours(const std::set<Rank>& ranks) const;
  [[nodiscard]] std::set<Key> OwedBy(const std::set<Rank>& ranks) const;
  [[nodiscard]] std::optional<ParityPlace> PlaceOf(const Key& key) const;
  [[nodiscard]] absl::StatusOr<Sending> Open(const Key& to, const SnapshotId& id) const;
  [[nodiscard]] absl::Status SetBytes(const Key& to, Sending& sending) const;
  void Work();
  void Start(const Key& to, const SnapshotId& id);
  void Begin(const Key& to, Sending sending);
  // copy_early.cc
  void StartEarly(const Key& to, const Filling& filling);
  [[nodiscard]] bool Adopt(const Key& to, HeldSnapshot held);
  void FailedEarly(const Key& to, const absl::Status& status);
  void DropEarly(const std::function<bool(const Key&, const Sending&)>& which);
  void Cancel(const Key& to);
  void Offer(const Key& to);
  void Offered(const Key& to, Turn turn, const absl::StatusOr<v1::OfferResponse>& answer);
  void NoteRoom(const Key& to, Sending& sending, const absl::StatusOr<v1::OfferResponse>& answer);
  [[nodiscard]] absl::Status Move(const Key& to, Sending& sending, const v1::OfferResponse& answer);
  using TokenAnswer = std::function<void(absl::StatusOr<transport::TransferToken>)>;
  void Renew(const Key& to, Turn turn, uint32_t slot, const TokenAnswer& answered);
  [[nodiscard]] static absl::Status TellReady(Sending& sending);
  void Moved(const Key& to, Turn turn, const absl::Status& status);
  void Drop(const Key& to);
  void TellRefused();
  void Ended(const Key& to, const SnapshotId& id, const absl::Status& status);
  [[nodiscard]] Sending* Find(const Key& to, const SnapshotId& id);
  [[nodiscard]] Sending* Find(const Key& to, Turn turn);
  [[nodiscard]] v1::OfferRequest RequestFor(Rank rank, const Sending& sending) const;

  Loop& loop_;
  const Clock& clock_;
  const std::string job_;
  const std::string agent_;
  const Handler handler_;
  StatePtr state_;
  // Of state_, where captures look at it chunk by chunk.
  std::vector<std::string> holders_;
  std::vector<RankGroup> groups_;  // those of this agent, where there is parity
  Plan plan_;
  bool counted_ = false;  // the coordinator knows of all copies of the plan's target, if there is one
  std::map<Key, Sending> sendings_;
  Turn turns_ = 0;
  std::map<Key, Failure> failures_;  // of early ones
  std::set<Key> refused_;            // when they were asked last, in a way that does not pass by asking again
  std::optional<Loop::TimerId> wake_;
  CallbackScope scope_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_COPY_SENDER_H_
