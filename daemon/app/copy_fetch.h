// A rank's snapshot from other agents' memory, for a restore: asked for in the order that the coordinator gave, the
// next one when one does not have it, does not answer, or gives bytes that are not what they should be.
//
// Bytes go through memory of the agent's own, a few chunks at a time, and by descriptor into the slot: a trainer may
// still have the slot's file mapped, and cut it.
//
// On the loop's thread.
#ifndef CKPTD_DAEMON_APP_COPY_FETCH_H_
#define CKPTD_DAEMON_APP_COPY_FETCH_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/app/copy_keeper.h"
#include "daemon/app/services.h"
#include "daemon/base/callback_scope.h"
#include "daemon/transport/copies.h"

namespace ckptd {

class CopyFetch {
 public:
  // `services` outlives it.
  CopyFetch(Services& services, std::string job, uint32_t uid, Rank rank);

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
  // Into the slot, every chunk checked. The record is that of who gave it.
  using Fetched = std::function<void(const absl::StatusOr<v1::CopyRecord>&)>;
  void Fetch(Request request, Into into, Fetched done);

 private:
  struct Search;   // for one that answers
  struct Journey;  // of the bytes
  using Found = std::function<void(const std::string& agent, v1::DescribeResponse response)>;

  void Ask(const std::shared_ptr<Search>& search);
  void Answered(const std::shared_ptr<Search>& search, const std::string& agent,
                absl::StatusOr<v1::DescribeResponse> answer);
  void AskNext(const std::shared_ptr<Search>& search, const std::string& agent, const absl::Status& why);
  [[nodiscard]] absl::StatusOr<v1::DescribeResponse> AskSelf(const SnapshotId& id);
  void Bring(const std::shared_ptr<Search>& search, const std::string& agent, v1::DescribeResponse response);
  void BringFromSelf(const std::shared_ptr<Search>& search, const v1::DescribeResponse& response);
  [[nodiscard]] absl::Status Receive(const std::shared_ptr<Search>& search, const std::string& agent,
                                     const v1::DescribeResponse& response);
  void Arrived(const std::shared_ptr<Search>& search, const std::string& agent, const absl::Status& status);
  [[nodiscard]] v1::DescribeRequest RequestFor(const Request& request) const;
  [[nodiscard]] std::string Name(const Request& request) const;

  Services& services_;
  const std::string job_;
  const uint32_t uid_;
  const Rank rank_;
  CallbackScope scope_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_COPY_FETCH_H_
