#include "daemon/transport/testing/fake_links.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/transport/outbox.h"

namespace ckptd::transport {

class FakeLinks final : public Links {
 public:
  FakeLinks(FakeNetwork& network, std::string name, std::string agent, LinkSink& sink)
      : network_(network), name_(std::move(name)), agent_(std::move(agent)), sink_(sink) {
    network_.nodes_[name_] = this;
  }
  ~FakeLinks() override {
    network_.nodes_.erase(name_);
    std::erase_if(network_.flights_, [this](const auto& flight) { return flight.second.to == name_; });
  }

  void SetPeers(const std::vector<PeerNode>& peers) override {
    std::map<std::string, Peer> kept;
    for (const PeerNode& peer : peers) {
      if (peer.name == name_) continue;
      auto known = peers_.extract(peer.name);
      if (known.empty())
        kept.try_emplace(peer.name);
      else
        kept.insert(std::move(known));
    }
    peers_ = std::move(kept);
  }

  absl::Status Send(const std::string& peer, const LinkMessage& message) override {
    const auto found = peers_.find(peer);
    if (found == peers_.end())
      return Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", message.job(), ": node ", peer, " is not a member"));
    CKPTD_RETURN_IF_ERROR(found->second.outbox.Put(message));
    found->second.condition.wanted = true;
    return absl::OkStatus();
  }

  std::vector<PeerCondition> Conditions() const override {
    std::vector<PeerCondition> all;
    for (const auto& [name, peer] : peers_) {
      PeerCondition& condition = all.emplace_back(peer.condition);
      condition.name = name;
      condition.connected = condition.wanted && network_.nodes_.count(name) != 0 && !network_.IsCut(name_, name);
      condition.unsent_messages = peer.outbox.size();
      condition.replaced_messages = peer.outbox.replaced();
    }
    return all;
  }

 private:
  friend class FakeNetwork;

  struct Peer {
    Outbox outbox;
    PeerCondition condition;
  };

  std::optional<LinkMessage> TakeFor(const std::string& name, Peer& peer) {
    if (network_.IsCut(name_, name) || network_.nodes_.count(name) == 0) return std::nullopt;
    std::optional<LinkMessage> message = peer.outbox.Take();
    if (!message) return std::nullopt;
    ++peer.condition.sent_messages;
    peer.condition.sent_bytes += message->bytes();
    return message;
  }

  // What a real link would refuse is lost here.
  bool Take(const FakeLinks& from, const LinkMessage& message) {
    const auto found = peers_.find(from.name_);
    if (found == peers_.end() || !CheckReceived(message, from.agent_).ok()) return false;
    found->second.condition.agent = from.agent_;
    ++found->second.condition.received_messages;
    found->second.condition.received_bytes += message.bytes();
    sink_.Received(from.name_, message);
    return true;
  }

  FakeNetwork& network_;
  const std::string name_;
  const std::string agent_;
  LinkSink& sink_;
  std::map<std::string, Peer> peers_;
};

std::unique_ptr<Links> FakeNetwork::Join(const std::string& name, const std::string& agent, LinkSink& sink) {
  return std::make_unique<FakeLinks>(*this, name, agent, sink);
}

void FakeNetwork::Cut(const std::string& a, const std::string& b, bool cut) {
  const auto pair = std::minmax(a, b);
  if (!cut) {
    cuts_.erase(pair);
    return;
  }
  cuts_.insert(pair);
  std::erase_if(flights_, [this](const auto& entry) { return IsCut(entry.second.from, entry.second.to); });
}

bool FakeNetwork::IsCut(const std::string& a, const std::string& b) const {
  return cuts_.count(std::minmax(a, b)) != 0;
}

bool FakeNetwork::Chance(double part) { return std::uniform_real_distribution<>(0, 1)(random_) < part; }

void FakeNetwork::SendAll(Nanos now) {
  for (const auto& [name, node] : nodes_) {
    for (auto& [to, peer] : node->peers_) {
      while (auto message = node->TakeFor(to, peer)) Fly(now, {name, to, *message});
    }
  }
}

void FakeNetwork::Fly(Nanos now, const Flight& flight) {
  if (Chance(faults_.lose)) return;
  std::uniform_int_distribution<int64_t> delay(faults_.least.count(), std::max(faults_.least, faults_.most).count());
  flights_.emplace(now + Nanos(delay(random_)), flight);
  if (Chance(faults_.twice)) flights_.emplace(now + Nanos(delay(random_)), flight);
}

bool FakeNetwork::Arrive(const Flight& flight) {
  const auto from = nodes_.find(flight.from);
  const auto to = nodes_.find(flight.to);
  if (from == nodes_.end() || to == nodes_.end()) return false;
  return to->second->Take(*from->second, flight.message);
}

size_t FakeNetwork::Run(Nanos now) {
  size_t came = 0;
  for (SendAll(now); !flights_.empty() && flights_.begin()->first <= now; SendAll(now)) {
    const Flight flight = std::move(flights_.extract(flights_.begin()).mapped());
    if (Arrive(flight)) ++came;
  }
  return came;
}

std::optional<Nanos> FakeNetwork::NextDue() const {
  return flights_.empty() ? std::nullopt : std::optional<Nanos>(flights_.begin()->first);
}

}  // namespace ckptd::transport
