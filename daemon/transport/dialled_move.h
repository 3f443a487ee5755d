// A transfer that this agent dials: CopyCalls::Send and Receive. The transfer itself is a TransferRun; here is what
// happens between its connections, on the loop's thread:
//
//   (renewing the token) -> waiting for a slot -> dialling -> driven on a thread of the pool
//        ^                                           |             |
//        '------ pausing <---------------------------'-------------'     until it is complete or has failed
//
// The first connection takes the token of the order. Whoever hands out tokens may take his time, or be stopped: so a
// slot is asked for with the token in hand. When the wait was long, the token is renewed with the slot in hand, or a
// busy node would never dial.
//
// A sender that has nothing to send until a chunk is ready, because a capture has only begun or stands still, rests: it
// has no slot, so that others move meanwhile, and waits for one when a chunk is ready. Now and then it dials all the
// same, or the other end would take it for given up.
#ifndef CKPTD_DAEMON_TRANSPORT_DIALLED_MOVE_H_
#define CKPTD_DAEMON_TRANSPORT_DIALLED_MOVE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/callback_scope.h"
#include "daemon/os/loop.h"
#include "daemon/os/thread.h"
#include "daemon/transport/backoff.h"
#include "daemon/transport/bulk_way.h"
#include "daemon/transport/copies.h"
#include "daemon/transport/mailbox.h"
#include "daemon/transport/move_slots.h"
#include "daemon/transport/transfer_run.h"

namespace ckptd::transport {

struct OpenedStream {
  std::shared_ptr<BulkStream> stream;
  BulkWay way = BulkWay::kGrpc;
};
using StreamOpened = std::function<void(absl::StatusOr<OpenedStream>)>;

// What came of a connection: nothing was verified over it, or so many bytes.
struct MoveTold {
  std::string peer;
  BulkWay way = BulkWay::kGrpc;
  uint64_t bytes = 0;
  Nanos took{0};  // without what a sender waited for its source
};

// What all of them share.
struct DialShared {
  Loop& loop;
  std::shared_ptr<Mailbox> mailbox;
  std::shared_ptr<ThreadPool> pool;  // as many threads as there are slots
  std::shared_ptr<MoveSlots> slots;
  Nanos first_pause;
  Nanos longest_pause;
  // The loop's thread; `opened` once, there, never within the call.
  std::function<void(const std::string& peer, const Hello& hello, StreamOpened opened)> dial;
  // The loop's thread: a connection that `dial` opened has ended. May be null.
  std::function<void(const MoveTold& told)> ended;
  struct Run {
    std::string peer;
    std::weak_ptr<TransferRun> run;
  };
  std::vector<Run> runs;

  // Of all that are left, or of those to one peer: their threads let go.
  void AbortAll(const absl::Status& why);
  void AbortPeer(const std::string& peer, const absl::Status& why);
};

class DialledMove final : public CopyMove {
 public:
  // `ready`: of a sender; null for a receiver. `hello` without its token. `most_vain`: connections in a row that
  // brought nothing; 0: the run counts for itself.
  DialledMove(std::shared_ptr<DialShared> shared, MoveOrder order, Hello hello, std::shared_ptr<TransferRun> run,
              std::function<absl::Status(uint32_t, uint32_t)> ready, uint32_t most_vain, MoveDone done);
  ~DialledMove() override;
  DialledMove(const DialledMove&) = delete;
  DialledMove& operator=(const DialledMove&) = delete;

  [[nodiscard]] absl::Status ChunkReady(uint32_t chunk, uint32_t crc) override;
  void Cancel() override;
  [[nodiscard]] uint64_t Progress() const override { return run_->verified_bytes(); }
  [[nodiscard]] bool WaitsForOthers() const override { return phase_ == Phase::kWaiting; }

 private:
  enum class Phase { kResting, kWaiting, kRenewing, kDialling, kDriven, kPausing, kOver };

  void Wait();
  void AskForSlot();
  void Rest();
  void Awake();
  void Granted();
  void Waited();
  void Renew();
  void Renewed(const absl::StatusOr<TransferToken>& token);
  void Dial();
  [[nodiscard]] bool TokenIsFresh() const;
  void Opened(absl::StatusOr<OpenedStream> opened);
  void Drive(OpenedStream opened);
  void Returned();
  void Failed(const absl::Status& why);
  void Vain();
  void Pause();
  void SetAlarm();
  void Look();
  void GiveSlotBack();
  void Finish();
  [[nodiscard]] bool Over() const { return run_->state() != TransferState::kRunning; }
  [[nodiscard]] Nanos Now() const { return shared_->loop.clock().Monotonic(); }

  const std::shared_ptr<DialShared> shared_;
  const MoveOrder order_;
  Hello hello_;
  const std::shared_ptr<TransferRun> run_;
  const std::function<absl::Status(uint32_t, uint32_t)> ready_;
  const uint32_t most_vain_;
  const MoveDone done_;
  Backoff backoff_;
  Phase phase_ = Phase::kWaiting;
  MoveSlots::Ticket ticket_ = 0;
  bool has_slot_ = false;  // while it is driven, the slot is its thread's
  Loop::TimerId pause_ = 0;
  Loop::TimerId alarm_ = 0;
  TransferToken token_;
  Nanos token_since_;
  bool token_used_ = false;
  uint32_t vain_ = 0;
  std::optional<Nanos> busy_since_;  // the other end, since the last connection; without what this one waited here
  Nanos waits_since_{0};             // for a slot, or a chunk
  uint64_t progress_ = 0;            // before the present connection
  BulkWay way_ = BulkWay::kGrpc;     // of it
  Nanos driven_since_{0};
  Nanos starved_{0};         // before it
  uint64_t renewal_ = 0;     // which answer is heard
  absl::Status last_error_;  // of a connection
  std::function<void()> look_;
  std::function<void()> awake_;
  std::atomic<bool> rests_{false};  // whoever says that a chunk is ready is to call `awake_`
  bool shows_up_ = false;           // with nothing to send
  CallbackScope scope_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_DIALLED_MOVE_H_
