// A trainer that speaks the socket's protocol by hand and has a layout of its own: it can save.
#ifndef CKPTD_TESTS_INTEGRATION_RAW_HOLDER_H_
#define CKPTD_TESTS_INTEGRATION_RAW_HOLDER_H_

#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "tests/integration/fill.h"
#include "tests/integration/raw_trainer.h"

namespace ckptd::harness {

// Rank 0 of 1 of a job, as far as LAYOUT_READY.
struct RawHolder {
  RawTrainer trainer;
  LoadMessage load{};
  LayoutReadyMessage ready{};
  std::vector<UniqueFd> fds;  // ctl, bell, hint, slots
  GrantMessage grant{};       // the newest
  int fresh_slots = 0;        // new files of slots that came
  uint64_t last_epoch = 0;    // of the grant that was used

  RawHolder(const std::string& socket, const std::string& job, uint64_t ticket = 77) : trainer(socket) {
    trainer.Join(job, 0, 1, ticket);
    load = trainer.Await<LoadMessage>(MessageType::kLoad);
    LoadedMessage loaded{};
    loaded.attempt = load.attempt;
    loaded.ticket = ticket;
    trainer.Say(MessageType::kLoaded, loaded);
    (void)trainer.Await<GoMessage>(MessageType::kGo);
    trainer.Layout(ticket, load.attempt);
    ready = trainer.Await<LayoutReadyMessage>(MessageType::kLayoutReady, &fds);
  }
  [[nodiscard]] bool good() const { return fds.size() == 3 + ready.slot_count; }
  [[nodiscard]] int bell() const { return fds[1].get(); }
  [[nodiscard]] int hint() const { return fds[2].get(); }
  [[nodiscard]] int slot(uint32_t index) const { return fds[3 + index].get(); }
  // What comes while something else is waited for: a slot's new file, a grant.
  void Take(MessageType type, Packet& packet) {
    SlotMessage fresh{};
    if (type == MessageType::kSlot && packet.bytes.size() >= sizeof fresh && packet.fds.size() == 1) {
      std::memcpy(&fresh, packet.bytes.data(), sizeof fresh);
      if (fresh.slot < ready.slot_count) fds[3 + fresh.slot] = std::move(packet.fds[0]);
      ++fresh_slots;
    }
    if (type == MessageType::kGrant && packet.bytes.size() >= sizeof grant)
      std::memcpy(&grant, packet.bytes.data(), sizeof grant);
  }
  std::optional<Packet> Next(MessageType type) {
    return trainer.Next(type, kLong, [this](MessageType other, Packet& packet) { Take(other, packet); });
  }
  // Captures the step; false when no slot was lent.
  bool Save(uint64_t step) {
    if (grant.epoch <= last_epoch) {
      auto packet = Next(MessageType::kGrant);
      if (packet) Take(MessageType::kGrant, *packet);
    }
    if (grant.epoch <= last_epoch) return false;
    last_epoch = grant.epoch;
    const FillOrder order{grant.epoch, grant.attempt,    step, ready.slot_bytes, ready.chunk_bytes,
                          grant.slot,  ready.chunk_count};
    BeginFill(bell(), order);
    PassSave(bell(), grant.attempt, step);
    if (!CompleteFill(bell(), slot(grant.slot), order)) return false;
    Ring();
    return true;
  }
  // Until the agent says so; false: it never did.
  bool AwaitDurable(uint64_t step) { return Await(step, &NewsMessage::durable_step); }
  bool AwaitCaptured(uint64_t step) { return Await(step, &NewsMessage::captured_step); }
  bool Await(uint64_t step, uint64_t NewsMessage::*told) {
    NewsMessage news{};
    while (news.*told < step) {
      const auto packet = Next(MessageType::kNews);
      if (!packet || packet->bytes.size() < sizeof news) return false;
      std::memcpy(&news, packet->bytes.data(), sizeof news);
    }
    return true;
  }
  void Ring() const {
    const uint64_t one = 1;
    (void)!write(hint(), &one, sizeof one);
  }
  // It leaves the job; the connection stays.
  void Bye() { trainer.Say(MessageType::kBye, ByeMessage{}); }
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_RAW_HOLDER_H_
