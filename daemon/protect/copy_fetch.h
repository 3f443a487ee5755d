// A rank's snapshot from other agents' memory, for a restore. What lies on this node is taken first. Several others
// bring it at once, and the storage beside them (shared_fetch.h); where there is no storage and one agent only, or the
// image is short, they are asked in the order that the coordinator gave, the next one when one does not have it, does
// not answer, or gives bytes that are not what they should be.
//
// Bytes go through memory of the agent's own, a few chunks at a time, and by descriptor into the slot: a trainer may
// still have the slot's file mapped, and cut it.
//
// Whoever is silent while bytes move is left for the next one; the last one is waited for as long as the transport
// does. An agent that began anew in the middle is asked once more from the beginning.
//
// On the loop's thread. Destroying it ends what is under way.
#ifndef CKPTD_DAEMON_PROTECT_COPY_FETCH_H_
#define CKPTD_DAEMON_PROTECT_COPY_FETCH_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/callback_scope.h"
#include "daemon/base/clock.h"
#include "daemon/base/executor.h"
#include "daemon/os/loop.h"
#include "daemon/protect/copy_keeper.h"
#include "daemon/protect/stored_copy.h"
#include "daemon/transport/copies.h"

namespace ckptd::protect {

struct SharedOutcome;  // shared_fetch.h

class CopyFetch {
 public:
  struct Whose {
    std::string agent;  // this one, as the job protocol names it
    std::string job;
    uint32_t uid = 0;
    Rank rank = 0;
  };
  struct Handler {
    // Null while this node speaks to no other.
    std::function<transport::CopyCalls*()> calls;
    // Wherever it lies on this node. NOT_FOUND.
    std::function<absl::StatusOr<HeldSnapshot>(const SnapshotId& id)> open;
    // As it is on storage, whether or not it is; may be null.
    std::function<std::unique_ptr<StoredCopy>(const SnapshotId& id)> stored;
  };

  // All outlive it. `work` copies what is on this node already.
  CopyFetch(Loop& loop, const Clock& clock, Executor& work, Whose whose, Handler handler);

  struct Request {
    SnapshotId id;
    std::vector<std::string> sources;  // this agent itself may be among them
    AttemptId attempt = 0;             // that loads it
  };
  // What the first of them that has it says of it.
  using Described = std::function<void(const absl::StatusOr<v1::DescribeResponse>&)>;
  void Describe(Request request, Described done);

  struct Into {
    region::CtlHead head;  // the layout that Describe told of
    std::shared_ptr<region::SlotFile> file;
  };
  struct Brought {
    v1::CopyRecord record;      // of who gave it
    uint64_t from_storage = 0;  // bytes, of the slot's
    absl::Status storage = {};  // why it was no help
  };
  // Into the slot, every chunk checked.
  using Fetched = std::function<void(const absl::StatusOr<Brought>&)>;
  void Fetch(Request request, Into into, Fetched done);

 private:
  struct Search;  // for one that answers, and what it gives
  using Found = std::function<void(const std::string& agent, v1::DescribeResponse response)>;

  void Ask(const std::shared_ptr<Search>& search);
  void Answered(const std::shared_ptr<Search>& search, const std::string& agent,
                absl::StatusOr<v1::DescribeResponse> answer);
  void AskNext(const std::shared_ptr<Search>& search, const std::string& agent, const absl::Status& why);
  [[nodiscard]] absl::StatusOr<v1::DescribeResponse> AskSelf(const SnapshotId& id);
  void Bring(const std::shared_ptr<Search>& search, const std::string& agent, const v1::DescribeResponse& response);
  [[nodiscard]] bool Share(const std::shared_ptr<Search>& search);
  void EndShared(const std::shared_ptr<Search>& search, SharedOutcome outcome);
  void BringFromSelf(const std::shared_ptr<Search>& search);
  [[nodiscard]] absl::Status Receive(const std::shared_ptr<Search>& search, const std::string& agent,
                                     const v1::DescribeResponse& response);
  void Renew(const std::shared_ptr<Search>& search, const std::string& agent, uint32_t slot,
             const std::function<void(absl::StatusOr<transport::TransferToken>)>& answered);
  [[nodiscard]] absl::Status Patiently(Search& search, const absl::Status& said) const;
  void LogBrought(const Search& search, const std::string& source, uint64_t bytes) const;
  void Finish(const std::shared_ptr<Search>& search);
  void Arrived(const std::shared_ptr<Search>& search, const std::string& agent, const absl::Status& status);
  [[nodiscard]] v1::DescribeRequest RequestFor(const Request& request) const;
  [[nodiscard]] std::string Name(const Request& request) const;

  Loop& loop_;
  const Clock& clock_;
  Executor& work_;
  const Whose whose_;
  const Handler handler_;
  std::set<std::shared_ptr<Search>> fetching_;
  CallbackScope scope_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_COPY_FETCH_H_
