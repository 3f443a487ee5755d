// A restore whose snapshot is in no slot of this node: effects FindLayout and Fetch of the snapshot machine. Other
// agents' memory comes first (copy_fetch.h), in the coordinator's order, with the storage beside it; alone the storage
// comes last. Control thread.
#ifndef CKPTD_DAEMON_APP_RANK_FETCH_H_
#define CKPTD_DAEMON_APP_RANK_FETCH_H_

#include <functional>

#include "absl/status/statusor.h"
#include "daemon/app/rank_runner.h"
#include "proto/ckptd/v1/copy.pb.h"
#include "proto/ckptd/v1/manifest.pb.h"

namespace ckptd {

struct RankFetch {
  RankRunner& runner;

  void Find(const snapshot::FindLayout& e) const;
  void Fetch(const snapshot::Fetch& e) const;

  using Placed = std::function<void(absl::StatusOr<region::LayoutSet*>, bool)>;

  void FindLayoutByParity(const snapshot::FindLayout& e) const;
  void FindLayoutOnStorage(const snapshot::FindLayout& e) const;
  void PlaceLayout(const SnapshotId& snapshot, absl::StatusOr<v1::Sidecar> sidecar) const;
  void PlaceLayoutOf(const SnapshotId& snapshot, const v1::DescribeResponse& copy) const;
  [[nodiscard]] Placed WhenPlaced(const SnapshotId& snapshot) const;
  void NotByParity(const SnapshotId& snapshot, const absl::Status& why) const;
  // True when `attempt`, that of a read that failed, is over: then the machine was told why, and asks anew.
  [[nodiscard]] bool IsOver(AttemptId attempt, const snapshot::Fetch& e, const absl::Status& why) const;
  void FetchByParity(const snapshot::Fetch& e) const;
  void FetchFromStorage(const snapshot::Fetch& e) const;
  // `source`: kReplica or kParity.
  void FetchedFromOthers(const snapshot::Fetch& e, const protect::CopyFetch::Brought& brought,
                         snapshot::Source source) const;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_RANK_FETCH_H_
