// The transfers that others dialled: each goes on with the next connection of the same name, if that is to the same
// memory. On the loop's thread; each connection is driven on a thread of the pool.
#ifndef CKPTD_DAEMON_TRANSPORT_SERVED_MOVES_H_
#define CKPTD_DAEMON_TRANSPORT_SERVED_MOVES_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "daemon/base/callback_scope.h"
#include "daemon/os/loop.h"
#include "daemon/os/thread.h"
#include "daemon/transport/copies.h"
#include "daemon/transport/mailbox.h"
#include "daemon/transport/transfer_run.h"

namespace ckptd::transport {

class ReceiveRun;

class ServedMoves {
 public:
  // `loop` outlives it. At most `at_once` connections.
  ServedMoves(Loop& loop, std::shared_ptr<Mailbox> mailbox, size_t at_once);
  // Ends all of them; waits for no peer.
  ~ServedMoves();
  ServedMoves(const ServedMoves&) = delete;
  ServedMoves& operator=(const ServedMoves&) = delete;

  // BUSY: no more connections now.
  [[nodiscard]] absl::Status CheckRoom() const;
  // BUSY: the transfer that this one would replace has a connection still, for a second at most, and may write until
  // then. It is given up, if it was not.
  [[nodiscard]] absl::Status CheckFree(const BulkEnd& end) const;
  // BUSY; INVALID_ARGUMENT for an end that makes no sense. `stream` was answered, or will be closed with the error.
  [[nodiscard]] absl::Status Begin(BulkEnd end, std::shared_ptr<BulkStream> stream);
  // Of this peer, which is none any more.
  void AbortPeer(const std::string& peer, const absl::Status& why);
  void AbortAll(const absl::Status& why);

 private:
  struct Served {
    std::string key;
    std::string peer;
    std::shared_ptr<TransferRun> run;
    std::shared_ptr<ReceiveRun> receive;  // the same, if it receives
    MoveDone done;
    std::function<bool()> wanted;
    Nanos due{0};  // so long it may be alone
    bool driven = false;
    std::shared_ptr<BulkStream> next;  // waits until the one before was let go
    Loop::TimerId alone = 0;
  };
  using ServedPtr = std::shared_ptr<Served>;

  [[nodiscard]] static std::string KeyOf(const BulkEnd& end);
  [[nodiscard]] absl::StatusOr<ServedPtr> Make(BulkEnd& end) const;
  [[nodiscard]] ServedPtr FindSame(const std::string& key, const BulkEnd& end) const;
  void Drive(const ServedPtr& served, std::shared_ptr<BulkStream> stream);
  void Returned(const ServedPtr& served);
  void WaitForAnother(const ServedPtr& served);
  void LookAgain(const ServedPtr& served);
  void Finish(const ServedPtr& served);
  void Drop(const ServedPtr& served, const absl::Status& why);

  Loop& loop_;
  const std::shared_ptr<Mailbox> mailbox_;
  const size_t at_once_;
  size_t driven_ = 0;
  std::map<std::string, ServedPtr> served_;
  ThreadPool pool_;
  CallbackScope scope_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_SERVED_MOVES_H_
