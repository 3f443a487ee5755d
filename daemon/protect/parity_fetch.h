// A rank's snapshot that no agent has any more, rebuilt from the other images of its parity group and from parity, for
// a restore. Shaped like copy_fetch.h: what the coordinator says is there is asked for, and every chunk is checked
// twice, by its source's record before it is used and by the lost image's own before it counts.
//
// The image is rebuilt stripe by stripe (daemon/erasure/rotation.h), each from k of the other members of its code: data
// first, then as little parity as possible. One stretch of a stripe at a time: what is in memory is bounded, and mostly
// much less (RebuildEnds::memory, stripe_rebuild.h). What lies on this node is read here and not asked for.
//
// A source that is not there, silent, of another snapshot or corrupt is lost (parity_plan.h), and what is still missing
// of the stripe is rebuilt from others, as long as k are left. Whoever cannot be done without is waited for as long as
// the transport does, unless the storage tells that it has the snapshot, too: then one that is silent ends the rebuild.
//
// On the loop's thread. Destroying it ends what is under way.
#ifndef CKPTD_DAEMON_PROTECT_PARITY_FETCH_H_
#define CKPTD_DAEMON_PROTECT_PARITY_FETCH_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "absl/status/statusor.h"
#include "daemon/protect/first_answer.h"
#include "daemon/protect/stripe_fetch.h"

namespace ckptd::protect {

class ParityFetch {
 public:
  explicit ParityFetch(RebuildEnds ends);
  ~ParityFetch();

  struct Request {
    SnapshotId id;
    std::shared_ptr<const v1::ParitySources> sources;
  };
  // What the first parity that was made of the rank's image says of it: layout and record.
  using Described = CopyFetch::Described;
  void Describe(const Request& request, Described done);

  // Into the slot. The record is that of the rank's own image.
  using Fetched = std::function<void(const absl::StatusOr<v1::CopyRecord>&)>;
  void Fetch(Request request, CopyFetch::Into into, Fetched done);

 private:
  struct Rebuild;

  [[nodiscard]] std::optional<v1::DescribeResponse> AskSelf(const Request& request, const ParityPlan::Source& holder);
  [[nodiscard]] absl::StatusOr<v1::DescribeResponse> DescribeOwn(const SnapshotId& id,
                                                                 const ParityPlan::Source& holder) const;
  void AskStorage(const std::shared_ptr<Rebuild>& rebuild);
  void Next(const std::shared_ptr<Rebuild>& rebuild);
  void StartStripe(const std::shared_ptr<Rebuild>& rebuild, uint32_t stripe, const erasure::Extent& block);
  void StripeEnded(const std::shared_ptr<Rebuild>& rebuild, uint32_t stripe, StripeFetch::Outcome outcome);
  void End(const std::shared_ptr<Rebuild>& rebuild, const absl::Status& status);
  void LogLost(const SnapshotId& id, const ParityPlan::Source& source, const absl::Status& why) const;

  const RebuildEnds ends_;
  std::map<uint64_t, std::unique_ptr<FirstAnswer>> questions_;
  uint64_t next_question_ = 0;
  std::set<std::shared_ptr<Rebuild>> rebuilding_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_PARITY_FETCH_H_
