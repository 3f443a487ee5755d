// Everything that a handle's threads share. One mutex guards it; nothing waits for the agent or copies state while
// holding it.
//
//   trainer threads   ckpt_*: read and change it, wait on `changed`
//   session thread    speaks with the agent: see session.h
//   copy thread       copies one capture at a time: see copy_thread.h
//   pull thread       only where saves may be pulled: prepares the copier, see pull_thread.h
//
// `sums` has helpers of its own, which see nothing of the rest.
#ifndef CKPTD_CLIENT_SRC_STATE_H_
#define CKPTD_CLIENT_SRC_STATE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/core/threads/cores.h"
#include "client/core/threads/sum_team.h"
#include "client/core/threads/sync.h"
#include "client/core/wire/fds.h"
#include "client/src/attachment.h"
#include "client/src/capture.h"
#include "client/src/claim.h"
#include "client/src/layout.h"
#include "client/src/pin_watch.h"
#include "client/src/pull.h"
#include "client/src/rescue.h"
#include "client/src/steps.h"

namespace ckptd {

// SAVE, DONE and DROP on their way to the session thread. Hints: when it is full the newest is lost.
class HintQueue {
 public:
  void Push(const CaptureMessage& message);
  [[nodiscard]] bool Pop(CaptureMessage* message);

 private:
  std::array<CaptureMessage, 64> ring_;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
};

struct State {
  // Fixed by ckpt_open.
  std::string job;
  uint32_t rank = 0;
  uint32_t world = 0;
  uint32_t every = 0;
  uint64_t gate_timeout_ns = 0;
  bool pull_wanted = false;          // CKPT_PULL or CKPT_AUTO, or
  bool rescue_wanted = false;        // CKPT_POSTMORTEM
  bool restart = false;              // CKPT_RESTART
  std::vector<std::string> sockets;  // tried in this order
  UniqueFd wake;                     // eventfd: the session thread has something to look at

  Mutex mutex;
  CondVar changed;        // any change that an API call may wait for
  CondVar copy_wanted;    // the copy thread waits here
  bool stopping = false;  // the handle is being closed: waits end
  uint32_t callers = 0;   // see Caller

  // An exception ended a thread of ours: nothing is saved any more, and training goes on.
  bool broken = false;
  bool deaf = false;  // it was the session's: who waits for the agent waits in vain
  char broken_sentence[160] = {};

  // The session.
  bool connected = false;    // HELLO_REPLY was received on this connection
  int32_t connect_code = 0;  // why not, when trying again is futile (PERMISSION, PROTOCOL)
  std::string connect_sentence;
  bool holds_back = false;  // a later socket waits until an earlier one has had the connect timeout to come back
  std::string tried;        // "PATH (why not), ...": what came of the last attempt to connect
  uint64_t reconnects = 0;
  Claim claim;
  uint64_t attempt = 0;  // running; 0 before GO
  uint64_t fenced_by = 0;
  uint64_t captured_step = 0;
  uint64_t durable_step = 0;
  BackPressure back_pressure = BackPressure::kSkip;  // the agent's
  int32_t agent_code = 0;                            // NEWS.last_error

  std::atomic<uint64_t> reads{0};  // grows about once a second while a snapshot is read
  std::atomic<uint64_t> read_at_ns{0};
  Lanes lanes;  // the trainer's thread only
  Pull pull;
  PinWatch pin_watch;
  std::vector<Orphan> orphans;
  std::shared_ptr<Rescue> rescue;  // the last one; it counts while
  bool rescue_ready = false;       // a copier watches it
  std::string rescue_why;          // it does not

  // The layout.
  std::shared_ptr<const Registration> registration;
  std::shared_ptr<Attachment> attachment;  // of registration->shape, or of an older one while the next is prepared
  int32_t layout_code = 0;                 // the agent refused the layout
  std::string layout_sentence;
  uint64_t prepared_bytes = 0;
  uint64_t prepare_total = 0;

  // Saves.
  uint64_t pos = 0;
  uint64_t wanted = 0;  // somebody waits for this step to be durable
  uint64_t traces = 0;
  Steps steps;
  Capture capture;
  SumTeam sums{SumTeam::HelpersFor(UsableCores())};  // of who owns the capture's phase
  bool gating_trusted = false;                       // a gate was seen, and none was missing since
  bool gated_step = false;                           // one was seen since the last ckpt_step or ckpt_save
  HintQueue hints;
  uint64_t saves = 0;
  uint64_t dropped = 0;
  int32_t last_code = 0;
  char last_sentence[256] = {};

  void Wake() const;  // any thread; best without the mutex
  void NoteRead();    // the same: another chunk of what is restored was read

  // The rest: with the mutex held.
  [[nodiscard]] bool Ready() const;
  // The agent has granted a first slot of this layout, a moment after its memory is Ready().
  [[nodiscard]] bool SlotsAreGranted() const;
  [[nodiscard]] bool Pulls() const;  // the copier is prepared for what is registered now, and saves are pulled
  [[nodiscard]] std::shared_ptr<Rescue> Rescuer() const;  // of what is registered now; or null
  void DropRescue(const char* why);
  [[nodiscard]] const char* RescueWhy() const;  // why there is no Rescuer()
  void Remember(int32_t number, const char* sentence);
  void Break(const char* thread, const char* why) noexcept;
};

// A call that any thread may make, while it lasts: closing the handle ends its waits and waits for its end.
class Caller {
 public:
  explicit Caller(State& state);
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  ~Caller();

  [[nodiscard]] bool late() const { return late_; }  // the handle was being closed already

 private:
  State& state_;
  bool late_ = false;
};

// A number nobody else has: for tickets and traces. Falls back to the clock when the kernel has none yet.
[[nodiscard]] uint64_t RandomNumber();

// Takes the attachment out of use: unused grants are given back. With the mutex held; the caller lets go of the
// returned pointer after unlocking, because unmapping takes a while.
[[nodiscard]] std::shared_ptr<Attachment> Detach(State& state);

// Acknowledges what the agent abandoned and nobody here writes. With the mutex held.
void AcknowledgeUnused(State& state);

// Tells the bell the last step passed to ckpt_save. After the slot's step: an agent that sees the one sees the other.
// With the mutex held.
void PublishPos(const State& state);

// Asks for `step`, or a newer one, to be flushed: the agent may be told not to flush every step. With the mutex held.
void WantDurable(State& state, uint64_t step);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_STATE_H_
