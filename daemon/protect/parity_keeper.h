// Parity that this node keeps of other nodes' ranks: pieces that they offer are folded into it as they come
// (parity_work.h), and who rebuilds an image reads it.
//
//   Offer of each piece ──► all sizes are known ──► memory, slot ──► tokens; Moves ──► Seal of each piece ──► complete
//
// A stripe has one parity under way at a time: the newest order, by attempt and step, takes the place of an older one.
// The parity before stays until the new one is complete (region/peer_rules.h). CopyKeeper has checked who asks.
//
// On the loop's thread, but for what the transport folds and reads.
#ifndef CKPTD_DAEMON_PROTECT_PARITY_KEEPER_H_
#define CKPTD_DAEMON_PROTECT_PARITY_KEEPER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/callback_scope.h"
#include "daemon/base/clock.h"
#include "daemon/base/executor.h"
#include "daemon/os/loop.h"
#include "daemon/os/scratch.h"
#include "daemon/protect/parity_piece.h"
#include "daemon/protect/parity_reads.h"
#include "daemon/protect/parity_work.h"
#include "daemon/region/region.h"
#include "daemon/transport/copies.h"
#include "proto/ckptd/v1/job.pb.h"

namespace ckptd::protect {

class ParityKeeper {
 public:
  struct Handler {
    // Complete parity of the job came, or went.
    std::function<void(const std::string& job)> changed;
    std::function<absl::StatusOr<transport::TransferToken>(const transport::TransferName& name)> issue;
    std::function<uint32_t()> number;  // another one each time, of all transfers of this node
    // region::PeerStore::StartLayout, with what can be given up for it.
    std::function<absl::StatusOr<std::unique_ptr<region::PeerBuild>>(const region::PeerSpec& spec,
                                                                     const region::SlotBuild::Done& done)>
        start_layout;
  };

  // All outlive it. `work` prepares memory.
  ParityKeeper(Loop& loop, const Clock& clock, region::Region& region, Executor& work, Handler handler);

  // `loading`: ranks of the job load, and may need parity of other groups.
  void Offer(const std::string& peer, const v1::OfferRequest& request, bool loading,
             transport::CopyAnswer<v1::OfferResponse> answer);
  [[nodiscard]] absl::Status Seal(const std::string& peer, const v1::SealRequest& request);
  [[nodiscard]] absl::StatusOr<v1::DescribeResponse> Describe(const std::string& peer,
                                                              const v1::DescribeRequest& request) {
    return reads_.Describe(peer, request);
  }
  [[nodiscard]] absl::StatusOr<HeldParity> Open(const std::string& job, const ParityPlace& place,
                                                const SnapshotId& id) const {
    return reads_.Open(job, place, id);
  }
  // Nothing when the transfer is none of these.
  [[nodiscard]] std::optional<transport::BulkEnd> Redeem(const transport::TransferName& name);

  // Complete parity of the job, for REPORT.
  [[nodiscard]] std::vector<v1::HeldParity> HeldOf(const std::string& job) const;
  // All ranks of the job have loaded.
  void HaveLoaded(const std::string& job) { reads_.HaveLoaded(job); }
  // A few times a minute: what nobody works on any more is let go of.
  void Sweep();

 private:
  struct Piece {
    std::string peer;
    v1::CopyLayout layout;
    uint32_t world = 0;
    uint32_t number = 0;  // of its transfer
    transport::CopyAnswer<v1::OfferResponse> waiting;
    std::shared_ptr<Scratch> scratch;      // while the transfer is under way
    std::optional<v1::CopyRecord> record;  // sealed
  };
  struct Making {
    ParityPlace place;
    SnapshotId id;
    AttemptId attempt = 0;
    std::string user;
    region::PeerMarks marks;
    bool loading = false;
    bool preparing = false;
    std::map<Rank, Piece> pieces;
    std::shared_ptr<ParityWork> work;  // once all pieces were offered
    Nanos touched{0};
    size_t folded = 0;
  };
  using Key = std::pair<std::string, uint32_t>;  // job, PeerKey::number
  [[nodiscard]] bool IsComplete(const std::string& job, const ParityPlace& place, const SnapshotId& id) const;
  [[nodiscard]] bool Overtakes(const v1::OfferRequest& request, const Making& now) const;
  [[nodiscard]] absl::StatusOr<Making*> Join(const Key& key, const v1::OfferRequest& request, bool loading);
  [[nodiscard]] absl::StatusOr<Piece*> PieceOf(Making& making, const std::string& peer,
                                               const v1::OfferRequest& request);
  void Advance(const Key& key);
  [[nodiscard]] absl::Status Begin(const Key& key, Making& making);
  [[nodiscard]] absl::StatusOr<std::shared_ptr<region::PeerFill>> OpenFill(const Key& key, Making& making,
                                                                           const region::PeerSpec& spec);
  [[nodiscard]] bool GiveUpOther(const Key& key, const Making& making);
  [[nodiscard]] absl::Status Prepare(const Key& key, Making& making, const region::PeerSpec& spec);
  void Prepared(const Key& key, const absl::Status& status);
  void AnswerAll(Making& making, const absl::Status& status);
  [[nodiscard]] absl::Status SealPiece(Making& making, Piece& piece, const v1::SealRequest& request) const;
  [[nodiscard]] absl::Status Complete(const Key& key, Making& making);
  void Drop(const Key& key, const absl::Status& why);
  [[nodiscard]] bool DropIfContradicted(const Key& key, Rank rank);
  void MoveEnded(const Key& key, Rank rank, uint32_t number, const absl::Status& status);
  [[nodiscard]] transport::BulkEnd EndOf(const Key& key, Making& making, const transport::TransferName& name);

  Loop& loop_;
  const Clock& clock_;
  region::Region& region_;
  Executor& work_;
  const Handler handler_;
  std::map<Key, Making> making_;
  ParityReads reads_;
  CallbackScope scope_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_PARITY_KEEPER_H_
