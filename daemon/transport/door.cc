#include "daemon/transport/door.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"
#include "daemon/transport/shown.h"

namespace ckptd::transport {

Door::Door(Loop& loop, std::shared_ptr<Mailbox> mailbox, LinkSink& sink, DoorOptions options)
    : loop_(loop), mailbox_(std::move(mailbox)), sink_(sink), options_(std::move(options)) {}

Door::~Door() {
  for (const auto& [id, visitor] : visitors_) loop_.CancelTimer(visitor.patience);
}

// The mailbox is closed before the door goes.
void Door::Came(std::shared_ptr<Visit> visit) {
  mailbox_->Put([this, visit = std::move(visit)]() mutable { OnCame(std::move(visit)); });
}
void Door::Said(VisitId id, std::shared_ptr<v1::LinkRequest> request) {
  mailbox_->Put([this, id, request = std::move(request)] { OnSaid(id, *request); });
}
void Door::Left(VisitId id) {
  mailbox_->Put([this, id] { SendAway(id, absl::OkStatus()); });
}

void Door::OnCame(std::shared_ptr<Visit> visit) {
  const VisitId id = visit->id();
  Visitor& visitor = visitors_[id];
  visitor.visit = std::move(visit);
  visitor.patience = loop_.After(options_.patience, [this, id] {
    SendAway(id, Error(ErrorCode::TIMEOUT, "a link begins with Hello, and none came"));
  });
}

void Door::OnSaid(VisitId id, v1::LinkRequest& request) {
  const auto found = visitors_.find(id);
  if (found == visitors_.end()) return;  // sent away meanwhile
  if (found->second.card.name.empty())
    Judge(id, request);
  else
    Take(id, request);
}

absl::StatusOr<Greeting> Door::Consider(const Visit& visit, const v1::LinkRequest& request, const Card& self) const {
  if (!request.has_hello()) return Error(ErrorCode::PROTOCOL, "a link begins with Hello; this one began otherwise");
  CKPTD_ASSIGN_OR_RETURN(Greeting greeting, CheckHello(self, request.hello()));
  CKPTD_RETURN_IF_ERROR(options_.admit(visit.caller().names, greeting.peer));
  return greeting;
}

void Door::Judge(VisitId id, const v1::LinkRequest& request) {
  const std::shared_ptr<Visit> visit = visitors_.at(id).visit;
  absl::StatusOr<Card> self = options_.self();
  if (!self.ok()) return SendAway(id, self.status());
  absl::StatusOr<Greeting> greeting = Consider(*visit, request, *self);
  if (greeting.ok()) return LetIn(id, *greeting, *self);
  Log(kWarning, "peer.refused")
      .Field("peer", Shown(request.hello().member()))
      .Field("from", Shown(visit->caller().address))
      .Error(greeting.status());
  SendAway(id, greeting.status());
}

// Whoever comes back has lost its old link, whether this agent has noticed or not.
void Door::LetIn(VisitId id, const Greeting& greeting, const Card& self) {
  Visitor& visitor = visitors_.at(id);
  const std::shared_ptr<Visit> visit = visitor.visit;
  loop_.CancelTimer(visitor.patience);
  if (!visit->Accept(MakeAnswer(self, greeting.protocol))) {
    visitors_.erase(id);
    return;
  }
  const std::string& name = greeting.peer.name;
  visitor.card = greeting.peer;
  if (const auto before = guests_.find(name); before != guests_.end())
    SendAway(before->second, Error(ErrorCode::FENCED, absl::StrCat("node ", name, " made a newer link")));
  guests_[name] = id;
  counts_[name].agent = greeting.peer.agent;
  options_.welcomed(greeting.peer);
  visit->ReadNext();
}

absl::StatusOr<LinkMessage> Door::MessageOf(v1::LinkRequest& request) {
  switch (request.body_case()) {
    case v1::LinkRequest::kState:
      return LinkMessage(std::make_shared<const v1::State>(std::move(*request.mutable_state())));
    case v1::LinkRequest::kReport:
      return LinkMessage(std::make_shared<const v1::Report>(std::move(*request.mutable_report())));
    default:
      return Error(ErrorCode::PROTOCOL, "a message that is neither State nor Report");
  }
}

void Door::Take(VisitId id, v1::LinkRequest& request) {
  const Visitor& visitor = visitors_.at(id);
  const std::shared_ptr<Visit> visit = visitor.visit;
  const std::string name = visitor.card.name;
  absl::StatusOr<LinkMessage> message = MessageOf(request);
  const absl::Status fits = message.ok() ? CheckReceived(*message, visitor.card.agent) : message.status();
  if (!fits.ok()) {
    Log(kWarning, "peer.refused").Field("peer", name).Error(fits);
    return SendAway(id, fits);
  }
  Count& count = counts_[name];
  ++count.messages;
  count.bytes += message->bytes();
  sink_.Received(name, *message);  // which may change the peers
  visit->ReadNext();
}

void Door::SendAway(VisitId id, const absl::Status& why) {
  const auto found = visitors_.find(id);
  if (found == visitors_.end()) return;
  const Visitor visitor = std::move(found->second);
  visitors_.erase(found);
  loop_.CancelTimer(visitor.patience);
  const auto guest = guests_.find(visitor.card.name);
  if (guest != guests_.end() && guest->second == id) guests_.erase(guest);
  visitor.visit->End(why);
}

void Door::Rejudge() {
  std::vector<std::pair<VisitId, absl::Status>> unwanted;
  for (const auto& [name, id] : guests_) {
    const Visitor& visitor = visitors_.at(id);
    absl::Status admitted = options_.admit(visitor.visit->caller().names, visitor.card);
    if (!admitted.ok()) unwanted.emplace_back(id, std::move(admitted));
  }
  for (const auto& [id, why] : unwanted) SendAway(id, why);
}

const Door::Count* Door::FindCount(const std::string& name) const {
  const auto found = counts_.find(name);
  return found == counts_.end() ? nullptr : &found->second;
}

void Door::ForgetCounts(const std::function<bool(const std::string& name)>& is_peer) {
  std::erase_if(counts_, [&](const auto& entry) { return !is_peer(entry.first); });
}

}  // namespace ckptd::transport
