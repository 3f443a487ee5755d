// Snapshots that move between agents, as room app sees it: proto/ckptd/v1/copies.proto says what is asked and answered.
// CopyHost is app's side of what others ask of this agent; CopyCalls is what this agent asks of others. No gRPC here.
//
// Threads. Everything is called, and every callback comes, on the loop's thread, but for what says "any thread". No
// call waits. An answer may come within the call that asks for it only where that is said.
//
// Memory. What is received goes straight into BulkTarget::bytes, what is sent is read by BulkSource::read, both on a
// thread of the transport. Both ends keep `keep` until nobody reads or writes there any more, which may be a moment
// after `done`, or after the handle is gone: so PeerFill stands behind it, or PeerCopy.
#ifndef CKPTD_DAEMON_TRANSPORT_COPIES_H_
#define CKPTD_DAEMON_TRANSPORT_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/transport/bulk_stream.h"
#include "daemon/transport/path_choice.h"
#include "daemon/transport/transfer_messages.h"
#include "daemon/transport/transfer_receiver.h"
#include "daemon/transport/transfer_sender.h"
#include "daemon/transport/transfer_shape.h"
#include "daemon/transport/transfer_token.h"
#include "proto/ckptd/v1/copy.pb.h"

namespace ckptd::transport {

template <typename Response>
using CopyAnswer = std::function<void(absl::StatusOr<Response>)>;
using MoveDone = std::function<void(const absl::Status&)>;

// Where received bytes go.
struct BulkTarget {
  std::span<std::byte> bytes;  // as many as the image has
  std::shared_ptr<void> keep;
  // Any thread, one at a time. The bytes of the chunk are in place, `crc` was made of them there and is what the
  // sender says it is. Not OK (FENCED): nobody wants them any more; the transfer ends with it. May be null.
  std::function<absl::Status(uint32_t chunk, uint32_t crc)> verified;
};

// Where sent bytes come from.
struct BulkSource {
  // Any thread, one at a time: fills all of `into` from `offset` of the image. An error ends the transfer. A descriptor
  // read (SlotFile::Read) needs no guard; whoever reads a mapping of a file that others may truncate brings his own.
  std::function<absl::Status(uint64_t offset, std::span<std::byte> into)> read;
  std::shared_ptr<void> keep;
  // The same bytes in a file, from `offset` on, if they are in one: open as long as `keep` is there. May be used
  // instead.
  FilePlace file = {};
};

// This agent's end of a transfer that another one dialled.
struct ServedSend {
  BulkSource source;
  SenderLimits limits;
  std::vector<uint32_t> chunk_crcs;  // of the record, one for each chunk: all are ready
};
struct ServedReceive {
  BulkTarget target;
  ReceiverLimits limits;
};
struct BulkEnd {
  TransferName name;  // of the token: `peer` is who dialled
  uint64_t image_bytes = 0;
  uint64_t chunk_bytes = 0;
  std::variant<ServedReceive, ServedSend> end;
  // Once for each transfer, not for each connection: OK when every chunk was verified. A transfer that is dialled again
  // (the same name, and the same target.bytes or a source) goes on, and the BulkEnd of the later connection takes the
  // place of this one's `done`. The last chunk was `verified` before the peer heard of it, so its Seal may come before
  // `done`. Not after GrpcLinks is gone. May be null.
  MoveDone done;
  // Asked a few times a second while the transfer waits for its next connection. False: it ends, FENCED, and lets go of
  // its memory. Holds nothing of that itself. May be null: it waits for as long as it may be alone.
  std::function<bool()> wanted = nullptr;
};

// What other agents ask of this one. They proved to be `peer`; the messages were checked by copy_request.h: names,
// numbers and sizes are within their bounds, and nothing else is known of them. Each `answer` is called once, at once
// or any time later, on the loop's thread; after GrpcLinks or the call is gone it does nothing. `by` is filled in.
class CopyHost {
 public:
  virtual ~CopyHost() = default;
  virtual void Offer(const std::string& peer, const v1::OfferRequest& request,
                     CopyAnswer<v1::OfferResponse> answer) = 0;
  virtual void Seal(const std::string& peer, const v1::SealRequest& request, CopyAnswer<v1::SealResponse> answer) = 0;
  virtual void Describe(const std::string& peer, const v1::DescribeRequest& request,
                        CopyAnswer<v1::DescribeResponse> answer) = 0;
  // A bulk connection: TokenTable::Redeem, and what is to be done. hello.name.peer is `peer`. The transport compares
  // name and shape of the end with what `hello` says (PERMISSION).
  [[nodiscard]] virtual absl::StatusOr<BulkEnd> Redeem(const std::string& peer, const Hello& hello) = 0;
};

// A transfer under way. Destroying it cancels; `done` is not called then.
class CopyMove {
 public:
  virtual ~CopyMove() = default;
  // Any thread. Of Send: TransferSender::ChunkReady. INVALID_ARGUMENT for Receive.
  [[nodiscard]] virtual absl::Status ChunkReady(uint32_t chunk, uint32_t crc) = 0;
  // Any thread. `done` comes with CANCELLED, unless it had ended.
  virtual void Cancel() = 0;
  // Any thread: verified bytes.
  [[nodiscard]] virtual uint64_t Progress() const = 0;
  // The loop's thread. It has no connection because other transfers of this agent have theirs, not because of its peer.
  [[nodiscard]] virtual bool WaitsForOthers() const = 0;
};

struct MoveOrder {
  std::string peer;
  TransferName name;  // `peer` is filled in
  uint64_t image_bytes = 0;
  uint64_t chunk_bytes = 0;
  TransferToken token{};
  // Asks for another token: by Offer or Describe with the same words; answer once, within the call or later. BUSY,
  // LAYOUT_PREPARING: asked again after a pause, for as long as `busy_patience` has it; AGENT_UNREACHABLE, TIMEOUT: the
  // same, as a vain connection; everything else ends the transfer.
  std::function<void(std::function<void(absl::StatusOr<TransferToken>)> answer)> renew;
  // So long without a connection because the other end was BUSY, for a token or when it was dialled: the transfer ends
  // with that. Its owner may know better what to do.
  Nanos busy_patience = Nanos::max();
};

// What this agent asks of others. The handles may outlive it only to be destroyed.
class CopyCalls {
 public:
  virtual ~CopyCalls() = default;

  // `from` is filled in. The answer comes once, never within the call, within `patience`; not after GrpcLinks is gone.
  // Errors: what the holder said; NOT_FOUND (no such peer), AGENT_UNREACHABLE, TIMEOUT, PERMISSION, PROTOCOL, FENCED.
  // Responses were checked by copy_request.h.
  virtual void Offer(const std::string& peer, v1::OfferRequest request, Nanos patience,
                     CopyAnswer<v1::OfferResponse> answer) = 0;
  virtual void Seal(const std::string& peer, v1::SealRequest request, Nanos patience,
                    CopyAnswer<v1::SealResponse> answer) = 0;
  virtual void Describe(const std::string& peer, v1::DescribeRequest request, Nanos patience,
                        CopyAnswer<v1::DescribeResponse> answer) = 0;

  // `done` comes once, never within the call: OK when every chunk was verified, else what TransferSender::status and
  // TransferReceiver::status say. Reconnects by itself until limits.deadline, or until limits.vain_connections in a row
  // brought no chunk. INVALID_ARGUMENT for an order that makes no sense.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<CopyMove>> Send(MoveOrder order, BulkSource source,
                                                                       const SenderLimits& limits, MoveDone done) = 0;
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<CopyMove>> Receive(MoveOrder order, BulkTarget target,
                                                                          const ReceiverLimits& limits,
                                                                          MoveDone done) = 0;
  // How fast each way to each peer was lately.
  [[nodiscard]] virtual std::vector<PathChoice::Speed> Speeds() const { return {}; }
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_COPIES_H_
