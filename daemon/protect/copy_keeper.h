// What this node keeps for others, as they ask for it: copies of their ranks' snapshots, or parity of them
// (parity_keeper.h), come into the region's peer store, and go out to whoever restores; so do the slots of ranks that
// run, or ran, here.
//
// Who may ask what of a job, beside being a member:
//
//   Offer, Seal   the agent that has the rank in the newest decision that this node heard of; of parity, only for a
//                 group of ranks that STATE makes one
//   Describe      who has any rank of the job in it, while ranks load: a rebuild reads the images of other ranks
//
// A node that has not heard of that attempt says BUSY, and is asked again. What stays and what may be given up is
// decided by what the coordinator told this node, never by the marks in an Offer: a step that nobody told would shut
// out other ranks' copies, and give up those that protect the job. Where the owner has heard of later steps, and the
// copy is not wanted by what this node has heard, the answer is BUSY, too.
//
// What was given up of a job (GiveUp) is not taken again, or the owner, which asks every few seconds, would fill the
// memory that was just freed: SUPERSEDED. A newer step is taken, and in a new attempt every step: the job runs.
//
// On the loop's thread, but for what the transport reads and writes.
#ifndef CKPTD_DAEMON_PROTECT_COPY_KEEPER_H_
#define CKPTD_DAEMON_PROTECT_COPY_KEEPER_H_

#include <compare>
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
#include "daemon/base/executor.h"
#include "daemon/os/loop.h"
#include "daemon/protect/copy_messages.h"
#include "daemon/protect/copy_reads.h"
#include "daemon/protect/held_snapshot.h"
#include "daemon/protect/parity_keeper.h"
#include "daemon/region/region.h"
#include "daemon/transport/copies.h"
#include "proto/ckptd/v1/job.pb.h"

namespace ckptd::protect {

class CopyKeeper final : public transport::CopyHost {
 public:
  // What it asks of the rest of the agent.
  struct Handler {
    // The newest State heard of the job; null when nothing runs for it here.
    std::function<std::shared_ptr<const v1::State>(const std::string& job)> state;
    // A sealed slot of a rank of this node, pinned. NOT_FOUND.
    std::function<absl::StatusOr<HeldSnapshot>(const std::string& job, Rank rank, const SnapshotId& id)> own;
    // Copies of the job came, or went.
    std::function<void(const std::string& job)> changed;
    // What this node is to hold of the job, as that State says.
    std::function<std::set<region::PeerKey>(const std::string& job)> wanted;
  };

  // All outlive it. `work` prepares memory and reads copies back.
  CopyKeeper(Loop& loop, const Clock& clock, region::Region& region, Executor& work, Handler handler);
  ~CopyKeeper() override;

  // What a predecessor left is read, once: what is bad is offered to nobody any more.
  void VerifyAdopted();
  // STATE of a job: what is fenced and what stays (region::PeerMarks), and whether anybody still reads.
  void Heard(const v1::State& state);
  // All that is held of the job, which has ended or is given up on somebody's word; its coordinator, if there is one,
  // hears that it is gone, and it is not taken again (above). As PeerStore::RemoveJob.
  [[nodiscard]] absl::Status GiveUp(const std::string& job);
  // The complete copies of the job, for REPORT.
  [[nodiscard]] std::vector<v1::HeldCopies> CopiesOf(const std::string& job) const;
  // The complete parity of the job, for REPORT.
  [[nodiscard]] std::vector<v1::HeldParity> ParityOf(const std::string& job) const { return parity_.HeldOf(job); }
  // Of this node. NOT_FOUND, CORRUPT.
  [[nodiscard]] absl::StatusOr<HeldParity> OpenParity(const std::string& job, const ParityPlace& place,
                                                      const SnapshotId& id) const {
    return parity_.Open(job, place, id);
  }
  // Wherever it lies on this node. NOT_FOUND.
  [[nodiscard]] absl::StatusOr<HeldSnapshot> Open(const std::string& job, Rank rank, const SnapshotId& id);

  void Offer(const std::string& peer, const v1::OfferRequest& request,
             transport::CopyAnswer<v1::OfferResponse> answer) override;
  void Seal(const std::string& peer, const v1::SealRequest& request,
            transport::CopyAnswer<v1::SealResponse> answer) override;
  void Describe(const std::string& peer, const v1::DescribeRequest& request,
                transport::CopyAnswer<v1::DescribeResponse> answer) override;
  [[nodiscard]] absl::StatusOr<transport::BulkEnd> Redeem(const std::string& peer,
                                                          const transport::Hello& hello) override;

 private:
  struct Key {
    std::string job;
    Rank rank = 0;
    SnapshotId id;
    std::string peer;
    auto operator<=>(const Key&) const = default;
  };
  struct GivenUp {
    AttemptId attempt = 0;  // of the job then
    SnapshotId newest;
  };
  struct Incoming {
    uint32_t number = 0;
    std::shared_ptr<region::PeerFill> fill;
    Nanos touched{0};    // asked for, or a chunk came
    size_t missing = 0;  // chunks, when it was looked at last
  };

  [[nodiscard]] absl::Status MayAsk(const std::string& peer, const v1::CopyName& copy, AttemptId attempt,
                                    const std::string& user, bool reads = false) const;
  [[nodiscard]] absl::Status MayComeBack(const v1::OfferRequest& request) const;
  void Decide(const std::string& peer, const v1::OfferRequest& request, const v1::State& state,
              transport::CopyAnswer<v1::OfferResponse> answer);
  [[nodiscard]] absl::StatusOr<v1::OfferResponse> Take(const std::string& peer, const v1::OfferRequest& request);
  [[nodiscard]] absl::Status Prepare(const region::PeerSpec& spec);
  [[nodiscard]] absl::StatusOr<std::unique_ptr<region::PeerBuild>> StartLayout(const region::PeerSpec& spec,
                                                                               const region::SlotBuild::Done& done);
  [[nodiscard]] absl::StatusOr<std::unique_ptr<region::PeerBuild>> StartInRoom(const region::PeerSpec& spec,
                                                                               const region::SlotBuild::Done& done);
  [[nodiscard]] absl::StatusOr<Incoming*> Begin(const Key& key, const region::PeerSpec& spec,
                                                const v1::CopyMarks& marks);
  [[nodiscard]] absl::StatusOr<transport::TransferToken> Issue(const transport::TransferName& name);
  [[nodiscard]] size_t CountComplete(const Key& key) const;
  [[nodiscard]] bool IsComplete(const std::string& job, Rank rank, const SnapshotId& id) const;
  [[nodiscard]] transport::BulkEnd EndOf(const transport::TransferName& name, Incoming& incoming);
  void Verify(const region::PeerEntry& entry);
  void Verified(const region::PeerEntry& entry, const region::SlotRecord& record, const absl::Status& status);
  void Failed(const Key& key, uint32_t number, const absl::Status& why);
  void Sweep();
  [[nodiscard]] bool IsAbandoned(const Key& key, Incoming& incoming);

  Loop& loop_;
  const Clock& clock_;
  region::Region& region_;
  Executor& work_;
  const Handler handler_;
  transport::TokenTable tokens_;
  std::map<Key, Incoming> incoming_;
  std::map<std::string, GivenUp> given_up_;  // by job
  uint32_t last_number_ = 0;
  CopyReads reads_;
  ParityKeeper parity_;
  Loop::TimerId sweep_ = 0;
  CallbackScope scope_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_COPY_KEEPER_H_
