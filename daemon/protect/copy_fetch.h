// A rank's snapshot from other agents' memory, for a restore. What lies on this node is taken first. The others bring
// it together, and the storage beside them (shared_fetch.h); who told another record than they did is asked when they
// all failed.
//
// What it looks like is told by the first of them that answers (first_answer.h).
//
// Bytes go through memory of the agent's own, a few chunks at a time, and by descriptor into the slot: a trainer may
// still have the slot's file mapped, and cut it.
//
// On the loop's thread. Destroying it ends what is under way.
#ifndef CKPTD_DAEMON_PROTECT_COPY_FETCH_H_
#define CKPTD_DAEMON_PROTECT_COPY_FETCH_H_

#include <functional>
#include <map>
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

class FirstAnswer;
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
    std::function<AttemptId()> attempt;  // that loads now
  };

  // All outlive it. `work` copies what is on this node already.
  CopyFetch(Loop& loop, const Clock& clock, Executor& work, Whose whose, Handler handler);
  ~CopyFetch();

  struct Request {
    SnapshotId id;
    std::vector<std::string> sources;  // this agent itself may be among them
  };
  // What the first of them that has it says of it. It may come within the call.
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
  struct Bringing;

  [[nodiscard]] absl::StatusOr<v1::DescribeResponse> AskSelf(const SnapshotId& id) const;
  void BringFromSelf(const std::shared_ptr<Bringing>& bringing);
  void CopiedFromSelf(const std::shared_ptr<Bringing>& bringing, const absl::Status& status);
  void Share(const std::shared_ptr<Bringing>& bringing, std::unique_ptr<StoredCopy> stored);
  void EndShared(const std::shared_ptr<Bringing>& bringing, SharedOutcome outcome);
  void Finish(const std::shared_ptr<Bringing>& bringing, const absl::Status& status);

  [[nodiscard]] std::unique_ptr<StoredCopy> Stored(const SnapshotId& id) const;
  void LogNotThere(const Request& request, const std::string& agent, const absl::Status& why) const;
  [[nodiscard]] absl::Status NotHere(const Request& request, const absl::Status& why) const;
  void LogBrought(const Request& request, const std::string& source, uint64_t bytes) const;
  [[nodiscard]] v1::DescribeRequest RequestFor(const Request& request) const;
  [[nodiscard]] std::string Name(const Request& request) const;

  Loop& loop_;
  const Clock& clock_;
  Executor& work_;
  const Whose whose_;
  const Handler handler_;
  std::map<uint64_t, std::unique_ptr<FirstAnswer>> questions_;
  uint64_t next_question_ = 0;
  std::set<std::shared_ptr<Bringing>> bringing_;
  CallbackScope scope_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_COPY_FETCH_H_
