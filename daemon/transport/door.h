// Who may speak to this agent: visitors (visit.h) are strangers until their Hello was judged, then guests, one of each
// name, whose messages are told to the sink.
#ifndef CKPTD_DAEMON_TRANSPORT_DOOR_H_
#define CKPTD_DAEMON_TRANSPORT_DOOR_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/loop.h"
#include "daemon/transport/hello.h"
#include "daemon/transport/links.h"
#include "daemon/transport/mailbox.h"
#include "daemon/transport/visit.h"

namespace ckptd::transport {

struct DoorOptions {
  Nanos patience;  // for a stranger's Hello
  // This agent; an error while it may not speak to others.
  std::function<absl::StatusOr<Card>()> self;
  // May the caller with this certificate speak as `peer`? Asked anew on Rejudge.
  std::function<absl::Status(const CertificateNames& names, const Card& peer)> admit;
  // A guest was let in.
  std::function<void(const Card& peer)> welcomed;
};

// Everything on the loop's thread, but the VisitSink.
class Door final : public VisitSink {
 public:
  // `loop` and `sink` outlive it. It ends no visits when it goes: the desk does.
  Door(Loop& loop, std::shared_ptr<Mailbox> mailbox, LinkSink& sink, DoorOptions options);
  ~Door() override;

  // Sends away whoever would not be let in now.
  void Rejudge();
  struct Count {
    std::string agent;
    uint64_t messages = 0;
    uint64_t bytes = 0;
  };
  // What this peer ever said; null when nothing.
  [[nodiscard]] const Count* FindCount(const std::string& name) const;
  // Of peers that are none any more.
  void ForgetCounts(const std::function<bool(const std::string& name)>& is_peer);

 private:
  struct Visitor {
    std::shared_ptr<Visit> visit;
    Loop::TimerId patience = 0;
    Card card;  // of a guest; a stranger's name is empty
  };

  void Came(std::shared_ptr<Visit> visit) override;
  void Said(VisitId id, std::shared_ptr<v1::LinkRequest> request) override;
  void Left(VisitId id) override;

  void OnCame(std::shared_ptr<Visit> visit);
  void OnSaid(VisitId id, v1::LinkRequest& request);
  void Judge(VisitId id, const v1::LinkRequest& request);
  void LetIn(VisitId id, const Greeting& greeting, const Card& self);
  void Take(VisitId id, v1::LinkRequest& request);
  [[nodiscard]] absl::StatusOr<Greeting> Consider(const Visit& visit, const v1::LinkRequest& request,
                                                  const Card& self) const;
  void SendAway(VisitId id, const absl::Status& why);
  [[nodiscard]] static absl::StatusOr<LinkMessage> MessageOf(v1::LinkRequest& request);

  Loop& loop_;
  const std::shared_ptr<Mailbox> mailbox_;
  LinkSink& sink_;
  const DoorOptions options_;
  std::map<VisitId, Visitor> visitors_;
  std::map<std::string, VisitId> guests_;
  std::map<std::string, Count> counts_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_DOOR_H_
