// One agent that a rebuild reads from: what it says of a piece, and the bytes of it. It is asked in the name of the
// attempt that loads at that moment, as the rank's trainer may start anew meanwhile. An agent that has not heard of the
// attempt is asked again for a while, one that has heard of a later one for a moment, until this agent has, too; one
// that falls silent while bytes move is given up when others can do without it, and waited for as long as the transport
// does when not.
//
// On the loop's thread. Destroying it ends what is under way.
#ifndef CKPTD_DAEMON_PROTECT_PIECE_SOURCE_H_
#define CKPTD_DAEMON_PROTECT_PIECE_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/callback_scope.h"
#include "daemon/base/clock.h"
#include "daemon/os/loop.h"
#include "daemon/transport/copies.h"

namespace ckptd::protect {

class PieceSource {
 public:
  using Calls = std::function<transport::CopyCalls*()>;
  using Attempt = std::function<AttemptId()>;  // that loads now
  using Answer = std::function<void(absl::StatusOr<v1::DescribeResponse>)>;

  // `spare`: others can do without it.
  PieceSource(Loop& loop, const Clock& clock, Calls calls, Attempt attempt, std::string agent, bool spare);
  void set_spare(bool spare) { spare_ = spare; }

  // One question at a time, its attempt left out. The answer may come within the call.
  void Ask(v1::DescribeRequest request, Answer answer);

  // The bytes that the last answer told of: `bytes` in chunks of `chunk_bytes`. `done` comes once, never within the
  // call, when no thread writes to the target any more.
  [[nodiscard]] absl::Status Receive(const v1::DescribeResponse& told, uint64_t bytes, uint64_t chunk_bytes,
                                     transport::BulkTarget target, transport::MoveDone done);
  // Of Receive: it has not begun, because of other transfers of this agent.
  [[nodiscard]] bool WaitsForOthers() const { return move_ != nullptr && move_->WaitsForOthers(); }
  // Of Receive: `done` comes soon.
  void Cancel();

 private:
  void AskNow();
  void Answered(absl::StatusOr<v1::DescribeResponse> answer);
  void Renew(uint32_t slot, const std::function<void(absl::StatusOr<transport::TransferToken>)>& answered);
  [[nodiscard]] absl::Status Patiently(const absl::Status& said);

  Loop& loop_;
  const Clock& clock_;
  const Calls calls_;
  const Attempt attempt_;
  const std::string agent_;
  bool spare_;
  v1::DescribeRequest request_;
  Answer answer_;
  Nanos asked_{0};  // first
  Nanos patience_ends_{0};
  std::unique_ptr<transport::CopyMove> move_;
  CallbackScope scope_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_PIECE_SOURCE_H_
