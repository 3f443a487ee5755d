// One bulk connection over UCX, from either side: a worker and an endpoint of its own, so that what belongs to another
// connection cannot get into this one, and so that nothing is written to memory any more once the worker is gone.
//
// A frame (move_frame.h) is one active message. Its header is 8 bytes: the kind, three that are 0, and a u32,
// little-endian, the frame's number from 0. Frames of data are offered by rendezvous, so their bytes wait at the sender
// until the receiver says where they go, and go straight there; all others are sent at once and have at most as many
// bytes as Move allows of their kind. Two kinds are of this way alone and have no body:
//   5 end    nothing more follows
//   6 taken  instead of its number: so many frames of the other side were taken. Nobody sends more than kAhead frames
//            beyond that, and whoever does, or breaks any other of these rules, is cut off.
//
// Threads. All calls of UCX are made on the port's thread; whoever drives the stream leaves his orders in queues, under
// a lock that is held over memory only.
#ifndef CKPTD_DAEMON_TRANSPORT_UCX_UCX_STREAM_H_
#define CKPTD_DAEMON_TRANSPORT_UCX_UCX_STREAM_H_

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/mutex.h"
#include "daemon/os/loop.h"
#include "daemon/transport/bulk_port.h"
#include "daemon/transport/mailbox.h"
#include "daemon/transport/move_frame.h"
#include "daemon/transport/ucx/ucp_calls.h"

namespace ckptd::transport {

// Of the port, which outlives all its streams.
struct UcxHome {
  const UcpCalls& ucp;
  ucp_context_h context;
  Loop& loop;
  std::shared_ptr<Mailbox> mailbox;
};

class UcxStream final : public BulkGuest, public std::enable_shared_from_this<UcxStream> {
 public:
  static constexpr uint32_t kAhead = 32;    // frames
  static constexpr size_t kMostUnsent = 8;  // frames that were given to it and have not arrived
  static constexpr size_t kHeadBytes = 8;

  // What the port does with it, on its thread.
  struct Events {
    // The first frame: the body of a kHello; or why there is none. Once.
    std::function<void(absl::StatusOr<std::string>)> first;
    // Its worker is gone.
    std::function<void()> gone;
  };
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<UcxStream>> Make(const UcxHome& home, std::string address,
                                                                       Events events);
  ~UcxStream() override;
  // One of the two. `hello` is its first frame.
  [[nodiscard]] absl::Status Dial(const sockaddr* to, socklen_t bytes, std::string hello);
  [[nodiscard]] absl::Status Accept(ucp_conn_request_h request);
  // Without a word to the other end; `why` is told to whoever waits for the first frame.
  void GiveUp(const absl::Status& why);
  void CutOff();
  [[nodiscard]] bool greeted() const { return greeted_; }  // the first frame came

  // BulkGuest, BulkStream.
  void Answer(const std::string& body) override { Order(FrameKind::kHello, body); }
  void Refuse(const absl::Status& why) override { Order(FrameKind::kMessage, Encode(StopOf(why))); }
  [[nodiscard]] std::string address() const override { return address_; }
  void Watch(std::function<void()> changed) override CKPTD_EXCLUDES(mutex_);
  absl::StatusOr<std::optional<Incoming>> Take() override CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] std::optional<uint32_t> Place(std::span<std::byte> into) override CKPTD_EXCLUDES(mutex_);
  bool ended() override CKPTD_EXCLUDES(mutex_);
  bool writable() override CKPTD_EXCLUDES(mutex_);
  void Say(const TransferMessage& message) override { Order(FrameKind::kMessage, Encode(message)); }
  void SendHeader(const ChunkHeader& header) override { Order(FrameKind::kChunk, EncodeChunk(header)); }
  absl::Status SendData(size_t bytes, const std::function<absl::Status(std::span<std::byte> into)>& fill) override
      CKPTD_EXCLUDES(mutex_);
  void EndWrites() override CKPTD_EXCLUDES(mutex_);
  void Close(const absl::Status& why) override CKPTD_EXCLUDES(mutex_);
  bool quiet() override CKPTD_EXCLUDES(mutex_);

 private:
  using Buffer = std::unique_ptr<std::byte[]>;  // of kMaxPiece bytes
  static constexpr auto kEnd = static_cast<FrameKind>(5);
  static constexpr auto kTaken = static_cast<FrameKind>(6);

  // On its way out, until UCX needs neither header nor body.
  struct Outgoing {
    UcxStream* stream;
    FrameKind kind;
    std::array<uint8_t, kHeadBytes> head;
    std::string body;
    Buffer data;
    size_t bytes = 0;  // of data
  };
  // Came, and was not taken.
  struct Arrived {
    FrameKind kind;
    std::string body;
    void* offer = nullptr;  // UCX's, of data
    size_t bytes = 0;
  };
  // Data on its way into place.
  struct Placing {
    UcxStream* stream;
    void* offer;
    std::span<std::byte> into;
    bool done = false;
  };
  enum class Phase { kOpen, kParting, kFlushing, kClosing, kSettling, kGone };

  UcxStream(const UcxHome& home, std::string address, Events events)
      : home_(home), address_(std::move(address)), events_(std::move(events)) {}
  // Any thread.
  void Order(FrameKind kind, std::string body) CKPTD_EXCLUDES(mutex_);
  void Put(std::unique_ptr<Outgoing> frame) CKPTD_EXCLUDES(mutex_);
  void AskForWork() CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] bool TakeableLocked() const CKPTD_REQUIRES(mutex_);
  [[nodiscard]] bool TakeNext(Arrived* frame, std::span<std::byte>* placed) CKPTD_EXCLUDES(mutex_);

  // The port's thread.
  [[nodiscard]] absl::Status MakeWorker();
  [[nodiscard]] absl::Status MakeEndpoint(ucp_ep_params_t* params);
  void Work() CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] bool Sleeps();
  void StartOrders() CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] std::unique_ptr<Outgoing> NextToSend() CKPTD_EXCLUDES(mutex_);
  void SendNow(std::unique_ptr<Outgoing> frame) CKPTD_EXCLUDES(mutex_);
  void Sent(Outgoing* sent, ucs_status_t status) CKPTD_EXCLUDES(mutex_);
  void SayTaken() CKPTD_EXCLUDES(mutex_);
  void StartPlacing(Placing order);
  void Placed(ucs_status_t status);
  [[nodiscard]] ucs_status_t Came(absl::string_view head, void* data, size_t bytes, bool offered)
      CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] absl::Status Check(FrameKind kind, uint32_t number, size_t bytes, bool offered) CKPTD_EXCLUDES(mutex_);
  void Keep(Arrived frame) CKPTD_EXCLUDES(mutex_);
  void First(const Arrived& frame);
  void Break(const absl::Status& why) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] bool Part() CKPTD_EXCLUDES(mutex_);
  template <bool UcxStream::*kDone>
  [[nodiscard]] ucp_request_param_t Marks();
  void Flush();
  void ReleaseOffers() CKPTD_EXCLUDES(mutex_);
  void CloseEndpoint();
  void Settle();
  [[nodiscard]] bool Settled() const;
  void Vanish() CKPTD_EXCLUDES(mutex_);
  void Tell() CKPTD_EXCLUDES(mutex_);

  const UcxHome home_;
  const std::string address_;
  // The port's thread:
  Events events_;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int event_fd_ = -1;
  Phase phase_ = Phase::kOpen;
  bool greeted_ = false;
  bool news_ = false;  // for Tell
  bool closed_endpoint_ = false;
  bool flushed_ = false;
  bool settled_ = false;
  uint32_t sent_ = 0;  // frames
  uint32_t peer_took_ = 0;
  uint32_t next_ = 0;  // frame to come
  uint32_t said_taken_ = 0;
  std::map<uint32_t, Arrived> early_;  // came before the one that is next
  std::map<Outgoing*, std::unique_ptr<Outgoing>> flying_;
  std::deque<std::unique_ptr<Placing>> placings_;
  Loop::TimerId parting_ = 0;

  Mutex mutex_;
  std::function<void()> changed_ CKPTD_GUARDED_BY(mutex_);
  bool asked_ CKPTD_GUARDED_BY(mutex_) = false;  // for Work
  std::deque<std::unique_ptr<Outgoing>> orders_ CKPTD_GUARDED_BY(mutex_);
  size_t unsent_ CKPTD_GUARDED_BY(mutex_) = 0;  // of orders_ and on their way
  std::vector<Buffer> spare_ CKPTD_GUARDED_BY(mutex_);
  std::deque<Arrived> arrived_ CKPTD_GUARDED_BY(mutex_);
  std::vector<void*> refused_ CKPTD_GUARDED_BY(mutex_);  // offers that nobody took
  uint32_t took_ CKPTD_GUARDED_BY(mutex_) = 0;
  void* to_be_placed_ CKPTD_GUARDED_BY(mutex_) = nullptr;  // the offer that was taken last
  std::deque<Placing> to_place_ CKPTD_GUARDED_BY(mutex_);
  std::deque<std::span<std::byte>> placed_ CKPTD_GUARDED_BY(mutex_);  // was not told yet
  size_t unplaced_ CKPTD_GUARDED_BY(mutex_) = 0;                      // pieces that are not in place
  bool end_came_ CKPTD_GUARDED_BY(mutex_) = false;
  bool broken_ CKPTD_GUARDED_BY(mutex_) = false;
  bool end_said_ CKPTD_GUARDED_BY(mutex_) = false;
  bool closed_ CKPTD_GUARDED_BY(mutex_) = false;
  bool gone_ CKPTD_GUARDED_BY(mutex_) = false;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_UCX_UCX_STREAM_H_
