// Copies of this node's snapshots to their holders, or their blocks to those who keep parity of them
// (v1::ParityPiece): carries out what Plan decides for one job.
//
//   Offer ── token ──► Move (all chunks; slot pinned) ── acknowledged ──► Seal ──► the holder has verified it
//
// What counts as protected is what the holders REPORT, not what comes back here.
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
  using StatePtr = std::shared_ptr<const v1::State>;

  // `loop` and `clock` outlive it. `agent`: this one, as the job protocol names it.
  CopySender(Loop& loop, const Clock& clock, std::string job, std::string agent, Handler handler);
  ~CopySender();

  // The newest STATE of the job: who holds, and what is protected now.
  void OnState(StatePtr state);
  // Slots of this node's ranks changed.
  void Refresh();
  // Nothing is sent any more.
  void Stop();

  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] bool busy() const { return !sendings_.empty(); }

 private:
  struct Sending {
    SnapshotId id;
    HeldSnapshot held;
    std::optional<ParityPlace> parity;  // nothing: a copy
    erasure::Extent bytes;  // of the image: all, or the block; whole chunks, and none where the block is empty
    std::unique_ptr<transport::CopyMove> move;
    bool cancelled = false;
  };
  using Key = CopyKey;

  [[nodiscard]] std::set<Key> Owed(const SnapshotId& target) const;
  [[nodiscard]] std::optional<ParityPlace> PlaceOf(const Key& key) const;
  [[nodiscard]] absl::StatusOr<Sending> Open(const Key& to, const SnapshotId& id) const;
  void Work();
  void Start(const Key& to, const SnapshotId& id);
  void Cancel(const Key& to);
  void Offer(const Key& to);
  void Offered(const Key& to, const SnapshotId& id, const absl::StatusOr<v1::OfferResponse>& answer);
  [[nodiscard]] absl::Status Move(const Key& to, Sending& sending, const v1::OfferResponse& answer);
  void Moved(const Key& to, const SnapshotId& id, const absl::Status& status);
  void Drop(const Key& to);
  void TellRefused();
  void Ended(const Key& to, const SnapshotId& id, const absl::Status& status);
  [[nodiscard]] Sending* Find(const Key& to, const SnapshotId& id);
  [[nodiscard]] v1::OfferRequest RequestFor(Rank rank, const Sending& sending) const;

  Loop& loop_;
  const Clock& clock_;
  const std::string job_;
  const std::string agent_;
  const Handler handler_;
  StatePtr state_;
  std::vector<RankGroup> groups_;  // of state_, where there is parity
  Plan plan_;
  std::map<Key, Sending> sendings_;
  std::set<Key> refused_;  // when they were asked last
  std::optional<Loop::TimerId> wake_;
  CallbackScope scope_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_COPY_SENDER_H_
