// CopyCalls over gRPC: one connection for each call, so that certificates are looked at each time. Everything on the
// loop's thread.
#ifndef CKPTD_DAEMON_TRANSPORT_GRPC_COPIES_H_
#define CKPTD_DAEMON_TRANSPORT_GRPC_COPIES_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/callback_scope.h"
#include "daemon/os/loop.h"
#include "daemon/os/thread.h"
#include "daemon/transport/bulk_port.h"
#include "daemon/transport/bulk_routes.h"
#include "daemon/transport/copies.h"
#include "daemon/transport/dial_stream.h"
#include "daemon/transport/dialled_move.h"
#include "daemon/transport/hello.h"
#include "daemon/transport/mailbox.h"
#include "daemon/transport/path_choice.h"

namespace ckptd::transport {

struct GrpcCopiesOptions {
  std::shared_ptr<Pending> pending;
  Nanos patience;  // from dialling a Move to its answer
  Nanos first_pause;
  Nanos longest_pause;
  size_t moves_at_once;
  std::function<absl::StatusOr<Card>()> self;
  // May `peer`, whose name TLS proved, be believed?
  std::function<absl::Status(const Card& peer)> admit;
  // The same where nothing proved it, or of a card that was believed before: no claim of it counts.
  std::function<absl::Status(const Card& peer)> would_admit;
  // A fresh channel to this member; NOT_FOUND.
  std::function<absl::StatusOr<std::shared_ptr<grpc::Channel>>(const std::string& peer)> connect;
  std::vector<BulkPort*> bulks;  // one of a way; none: Move is called by gRPC alone
  bool measures;                 // the fastest way is taken, also gRPC; else the first of `bulks` that is open
};

class GrpcCopies final : public CopyCalls {
 public:
  // `loop` outlives it.
  GrpcCopies(Loop& loop, const std::shared_ptr<Mailbox>& mailbox, GrpcCopiesOptions options);
  // After the mailbox was closed. Cancels all; waits for its threads, and for no peer.
  ~GrpcCopies() override;

  // Ends the transfers with whoever would not be believed now.
  void Rejudge();
  // Speeds, ports and names of nodes that are members no more.
  void ForgetOthers(const std::function<bool(const std::string& name)>& is_peer);

  void Offer(const std::string& peer, v1::OfferRequest request, Nanos patience,
             CopyAnswer<v1::OfferResponse> answer) override;
  void Seal(const std::string& peer, v1::SealRequest request, Nanos patience,
            CopyAnswer<v1::SealResponse> answer) override;
  void Describe(const std::string& peer, v1::DescribeRequest request, Nanos patience,
                CopyAnswer<v1::DescribeResponse> answer) override;
  absl::StatusOr<std::unique_ptr<CopyMove>> Send(MoveOrder order, BulkSource source, const SenderLimits& limits,
                                                 MoveDone done) override;
  absl::StatusOr<std::unique_ptr<CopyMove>> Receive(MoveOrder order, BulkTarget target, const ReceiverLimits& limits,
                                                    MoveDone done) override;
  [[nodiscard]] std::vector<PathChoice::Speed> Speeds() const override { return choice_.Speeds(); }

 private:
  template <typename Request, typename Response, typename Method>
  void Ask(const std::string& peer, Request request, Nanos patience, CopyAnswer<Response> answer, Method method);
  template <typename Request, typename Response>
  [[nodiscard]] absl::Status CheckAnswered(const Card& self, const std::string& peer, const Request& request,
                                           const absl::StatusOr<Response>& response) const;
  [[nodiscard]] absl::StatusOr<Card> Believe(const Card& self, const std::string& peer, const v1::HelloResponse& by,
                                             bool proved) const;
  [[nodiscard]] absl::StatusOr<Hello> HelloOf(MoveOrder& order, Nanos deadline) const;
  void Dial(const std::string& peer, const Hello& hello, const StreamOpened& opened);
  void DialByCall(const std::string& peer, const Card& self, const v1::MoveHello& hello, const StreamOpened& opened);
  [[nodiscard]] BulkWay WayTo(const std::string& peer);
  void DialBulk(const std::string& peer, const Card& self, BulkPort& port, const v1::MoveHello& hello,
                const StreamOpened& opened);
  void Bulked(const std::string& peer, const Card& self, BulkWay way, const absl::StatusOr<OpenedBulk>& bulk,
              const StreamOpened& opened);
  void Ended(const MoveTold& told);
  void WayFailed(const std::string& peer, BulkWay way);
  [[nodiscard]] BulkPort* PortOf(BulkWay way) const;

  Loop& loop_;
  const std::shared_ptr<Mailbox> mailbox_;
  const GrpcCopiesOptions options_;
  const std::shared_ptr<DialShared> shared_;
  std::map<uint64_t, std::weak_ptr<grpc::ClientContext>> asking_;
  std::map<uint64_t, std::weak_ptr<BulkStream>> dialling_;
  BulkRoutes routes_;
  PathChoice choice_;
  std::map<std::string, Card> answered_;  // peers of a Move, as they were believed last
  uint64_t last_ = 0;
  CallbackScope scope_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_GRPC_COPIES_H_
