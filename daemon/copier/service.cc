#include "daemon/copier/service.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "daemon/copier/failpoint.h"
#include "daemon/copier/pull.h"
#include "daemon/copier/requests.h"

namespace ckptd {

int Service::Run() {
  int code = ServeAll();
  if (code == kExitClosed && estate_ != nullptr) Rescue();
  return code;
}

// Its socket tells nothing: forked workers of a dead trainer keep it open, and one that lives may have closed it.
void Service::Rescue() {
  if (!channel_.AwaitEnd(estate_->hold())) return;
  channel_.GoOnAlone(estate_->hold());
  auto& gate = *reinterpret_cast<GatePage*>(gate_.data());
  (void)CaptureEstate(*estate_, {channel_, *gpu_.stream, *slots_, gate, imports_.all(), plan_, team_}, last_copy_ + 1);
}

int Service::ServeAll() {
  Packet packet;
  while (exit_ < 0) {
    int error = channel_.Next(&packet);
    if (error != 0) return error == ENOTCONN ? kExitClosed : kExitSocket;
    if (int code = Serve(packet); code >= 0) return code;
  }
  return exit_;
}

int Service::Serve(Packet& packet) {
  uint64_t pinned_bytes = 0;
  Outcome outcome = CheckRequest(packet.bytes, packet.fds.size());
  if (outcome.ok()) outcome = Do(packet, &pinned_bytes);
  if (outcome.IsBroken()) exit_ = std::max(exit_, kExitDevice);
  if (silent_) return exit_;
  int error = Answer(packet, outcome, pinned_bytes);
  // An EPIPE is the trainer's end; what it meant of a broken context nobody is left to learn.
  return error == 0 ? exit_ : kExitClosed;
}

Outcome Service::Do(Packet& packet, uint64_t* pinned_bytes) {
  const auto type = static_cast<CopierMessageType>(ReadMessage<MessageHead>(packet.bytes).type);
  if (type == CopierMessageType::kStart) return Start(packet);
  if (gpu_.device == nullptr) return Refuse("START comes first");
  switch (type) {
    case CopierMessageType::kSlots:
      return Slots(packet, pinned_bytes);
    case CopierMessageType::kImport:
      CKPTD_COPIER_FP("import");
      return imports_.Add(*gpu_.device, ReadMessage<CopierImport>(packet.bytes), packet.fds);
    case CopierMessageType::kPlan:
      return Plan(packet);
    case CopierMessageType::kCopy:
      return Copy(ReadMessage<CopierCopy>(packet.bytes));
    case CopierMessageType::kWatch:
      return Watch(packet);
    case CopierMessageType::kRelease:
      return Release();
    default:
      return Refuse("a packet of type %u", static_cast<unsigned>(type));
  }
}

Outcome Service::Start(const Packet& packet) {
  CKPTD_COPIER_FP("start");
  if (gpu_.device != nullptr) return Refuse("START came before");
  SharedMapping gate;
  Outcome outcome = MapGate(packet.fds[0].get(), &gate);
  if (!outcome.ok()) return outcome;
  outcome = OpenGpu(ReadMessage<CopierStart>(packet.bytes).gpu, &gpu_);
  if (outcome.ok()) gate_ = std::move(gate);
  return outcome;
}

// The old slots go before the new ones are pinned: together they may be more than can be. A plan stays when the slots
// have its size still: a single file was replaced.
Outcome Service::Slots(const Packet& packet, uint64_t* pinned_bytes) {
  estate_.reset();
  std::unique_ptr<SlotSet> slots;
  CKPTD_COPIER_FP("slots");
  Outcome outcome = SlotSet::Open(ReadMessage<CopierSlots>(packet.bytes), packet.fds, &slots);
  if (!outcome.ok()) return outcome;
  if (slots_ != nullptr && slots_->slot_bytes() != slots->slot_bytes()) plan_.clear();
  slots_ = std::move(slots);
  DeviceError error = slots_->Pin(gpu_.device);
  *pinned_bytes = slots_->pinned_bytes();
  if (error.ok()) return {};
  outcome = DeviceFails("pinning", error);
  if (outcome.code == CopierOutcome::kRefused) outcome.code = CopierOutcome::kDone;
  return outcome;
}

// A refused plan leaves none: the one before was to be replaced.
Outcome Service::Plan(const Packet& packet) {
  CKPTD_COPIER_FP("plan");
  plan_ = {};
  estate_.reset();
  if (slots_ == nullptr) return Refuse("PLAN comes behind SLOTS");
  std::vector<CopierPiece> plan;
  Outcome outcome = ReadPlan(packet.fds[0].get(), ReadMessage<CopierPlan>(packet.bytes).count, &plan);
  if (outcome.ok()) outcome = CheckPieces(plan, imports_.all(), slots_->slot_bytes());
  if (outcome.ok()) plan_ = std::move(plan);
  return outcome;
}

Outcome Service::Watch(Packet& packet) {
  estate_.reset();
  if (slots_ == nullptr || plan_.empty()) return Refuse("WATCH comes behind PLAN");
  UniqueFd process = std::move(packet.fds.back());
  packet.fds.pop_back();
  const auto watch = ReadMessage<CopierWatch>(packet.bytes);
  Outcome outcome = Estate::Open(watch, slots_->slot_bytes(), std::move(packet.fds), &estate_);
  if (outcome.ok()) channel_.SetProcess(std::move(process));
  return outcome;
}

Outcome Service::Release() {
  CKPTD_COPIER_FP("release");
  plan_ = {};
  estate_.reset();
  return imports_.CloseAll();
}

Outcome Service::CheckCopy(const CopierCopy& copy) const {
  if (slots_ == nullptr || plan_.empty()) return Refuse("COPY comes behind PLAN");
  if (copy.slot >= slots_->slot_count()) return Refuse("COPY: slot %u of %u", copy.slot, slots_->slot_count());
  if (copy.serial <= last_copy_) {
    return Refuse("COPY: serial %" PRIu64 " behind serial %" PRIu64, copy.serial, last_copy_);
  }
  return {};
}

Outcome Service::Copy(const CopierCopy& copy) {
  Outcome refused = CheckCopy(copy);
  if (!refused.ok()) return refused;
  last_copy_ = copy.serial;
  auto& gate = *reinterpret_cast<GatePage*>(gate_.data());
  Pull pull({channel_, *gpu_.stream, *slots_, gate, imports_.all(), plan_, team_}, copy);
  PullEnd end = pull.Run();
  silent_ = end.kind != PullEnd::Kind::kAnswer;
  if (end.kind == PullEnd::Kind::kClosed) exit_ = kExitClosed;
  if (end.kind == PullEnd::Kind::kHung) exit_ = kExitDevice;
  return end.outcome;
}

int Service::Answer(const Packet& packet, const Outcome& outcome, uint64_t pinned_bytes) {
  const auto request = ReadMessage<CopierSerial>(packet.bytes);  // every request has its serial there
  CopierAnswer answer = {};
  answer.head.magic = kMessageMagic;
  answer.head.type = static_cast<uint16_t>(CopierMessageType::kAnswer);
  answer.head.major = kProtocolMajorMax;
  answer.head.size = sizeof answer;
  answer.head.trace = request.head.trace;
  answer.serial = request.serial;
  answer.outcome = static_cast<uint32_t>(outcome.code);
  answer.pinned_bytes = pinned_bytes;
  CKPTD_COPIER_FP("answer");
  size_t length = std::min(outcome.sentence.size(), sizeof answer.sentence - 1);
  std::memcpy(answer.sentence, outcome.sentence.data(), length);
  return channel_.Send({reinterpret_cast<const uint8_t*>(&answer), sizeof answer});
}

}  // namespace ckptd
