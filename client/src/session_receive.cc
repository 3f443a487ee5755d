// What the agent says. Every message is copied into its struct and checked before it is used; one that makes no sense
// now is ignored, one that breaks the protocol ends the connection.
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "client/src/capture_end.h"
#include "client/src/failure.h"
#include "client/src/session.h"

namespace ckptd {
namespace {

constexpr uint64_t kAskAgainNs = 5'000'000'000;
constexpr uint64_t kLoadFds = 2;

template <typename Message>
bool Parse(const Packet& packet, Message* message) {
  if (packet.bytes.size() < sizeof(Message)) return false;
  memcpy(message, packet.bytes.data(), sizeof(Message));
  return true;
}

// Text of a peer: with its final zero, whatever was sent.
template <size_t n>
void Terminate(char (&text)[n]) {
  text[n - 1] = 0;
}

bool SameOffer(const LoadMessage& a, const LoadMessage& b) {
  return a.attempt == b.attempt && a.snapshot_attempt == b.snapshot_attempt && a.snapshot_step == b.snapshot_step;
}

// For a process that never called ckpt_restore_begin: nothing may exist, or it would overwrite the end of another run.
void AnswerImplicitly(Claim& claim) {
  claim.untaken = false;
  claim.stage = Claim::Stage::kReported;
  claim.result = claim.load.snapshot_attempt == 0 ? 0 : code::NOT_RESTORED;
  snprintf(claim.reason, sizeof claim.reason, "%s",
           claim.result == 0 ? "" : "this process did not call ckpt_restore_begin");
}

}  // namespace

// One packet: poll tells when there are more, and an empty socket would cost the buffer.
bool Session::Receive() {
  int error = ReceivePacket(socket_.get(), Wait::kNo, &packet_);
  return error == EAGAIN || (error == 0 && Dispatch(packet_));
}

bool Session::Dispatch(Packet& packet) {
  MessageHead head;
  if (!Parse(packet, &head) || head.magic != kMessageMagic || head.size != packet.bytes.size()) return false;
  auto with = [&](auto message, auto handle) {
    if (!Parse(packet, &message)) return false;
    if constexpr (std::is_void_v<decltype(handle(message))>) {
      handle(message);
      return true;
    } else {
      return handle(message);
    }
  };
  auto type = static_cast<MessageType>(head.type);
  if (!connection_.greeted && type != MessageType::kHelloReply && type != MessageType::kError) return false;
  {
    MutexLock lock(state_.mutex);
    AcknowledgeUnused(state_);
  }
  switch (type) {
    case MessageType::kHelloReply:
      return with(HelloReplyMessage(), [&](auto& message) { return OnHelloReply(message); });
    case MessageType::kSkipped:
      return with(SkippedMessage(), [&](auto& message) { OnSkipped(message); });
    case MessageType::kLoad:
      return with(LoadMessage(), [&](auto& message) { return OnLoad(message, packet.fds); });
    case MessageType::kPatience:
      return with(PatienceMessage(), [&](auto& message) { OnPatience(message); });
    case MessageType::kGo:
      return with(GoMessage(), [&](auto& message) { OnGo(message); });
    case MessageType::kError:
      return with(ErrorMessage(), [&](auto& message) { OnError(message); });
    case MessageType::kLayoutState:
      return with(LayoutStateMessage(), [&](auto& message) { OnLayoutState(message); });
    case MessageType::kLayoutReady:
      return with(LayoutReadyMessage(), [&](auto& message) { return OnLayoutReady(message, packet.fds); });
    case MessageType::kSlot:
      return with(SlotMessage(), [&](auto& message) { OnSlot(message, packet.fds); });
    case MessageType::kCopierReply:
      return with(CopierReplyMessage(), [&](auto& message) { OnCopierReply(message, packet.fds); });
    case MessageType::kGrant:
      return with(GrantMessage(), [&](auto&) { OnGrant(); });
    case MessageType::kNews:
      return with(NewsMessage(), [&](auto& message) { OnNews(message); });
    case MessageType::kResumeRefused:
      return with(ResumeRefusedMessage(), [&](auto& message) { OnResumeRefused(message); });
    default:
      return true;  // what a newer agent adds is not for us
  }
}

bool Session::OnHelloReply(const HelloReplyMessage& message) {
  MutexLock lock(state_.mutex);
  if (message.major < kProtocolMajorMin || message.major > kProtocolMajorMax) {
    state_.connect_code = code::PROTOCOL;
    state_.connect_sentence = "the agent answered with protocol " + std::to_string(message.major);
    state_.changed.NotifyAll();
    return false;
  }
  connection_.greeted = true;
  backoff_ns_ = 0;
  state_.connected = true;
  state_.holds_back = false;
  state_.back_pressure = static_cast<BackPressure>(message.back_pressure);
  state_.claim.answered = true;
  state_.connect_code = 0;
  AskAgain();  // the timer has reconnected instead
  state_.changed.NotifyAll();
  return true;
}

void Session::OnSkipped(const SkippedMessage& from) {
  SkippedMessage message = from;
  Terminate(message.why);
  MutexLock lock(state_.mutex);
  WhySkipped& why = state_.claim.why_skipped;
  if (why.attempt != message.attempt) why = {message.attempt, {}};
  if (why.sentences.size() < kMaxSkipped) why.sentences[{message.step.attempt, message.step.step}] = message.why;
}

bool Session::OnLoad(const LoadMessage& message, std::span<UniqueFd> fds) {
  if (message.skipped_count > kMaxSkipped || (message.snapshot_attempt != 0 && fds.size() != kLoadFds)) return false;
  MutexLock lock(state_.mutex);
  Claim& claim = state_.claim;
  connection_.offered_attempt = message.attempt;
  connection_.reported_attempt = 0;
  if (claim.stage == Claim::Stage::kRunning) {
    // It trains already: another attempt cannot be loaded any more.
    if (message.attempt != claim.attempt) state_.fenced_by = message.attempt;
    return true;
  }
  bool repeated = claim.stage != Claim::Stage::kJoining && SameOffer(message, claim.load);
  if (repeated || claim.stage == Claim::Stage::kNone || claim.stage == Claim::Stage::kFailed) return true;
  claim.load = message;
  claim.attempt = message.attempt;
  claim.slot_file = message.snapshot_attempt != 0 ? std::move(fds[0]) : UniqueFd();
  claim.ctl_file = message.snapshot_attempt != 0 ? std::move(fds[1]) : UniqueFd();
  claim.untaken = true;
  claim.stage = Claim::Stage::kOffered;
  if (claim.implicit) AnswerImplicitly(claim);
  state_.changed.NotifyAll();
  return true;
}

void Session::OnPatience(const PatienceMessage& message) {
  connection_.patience = true;
  MutexLock lock(state_.mutex);
  if (message.ticket != state_.claim.ticket) return;
  KeepPatience(state_.claim, message.patience_ms);
  state_.changed.NotifyAll();
}

void Session::OnGo(const GoMessage& message) {
  MutexLock lock(state_.mutex);
  Claim& claim = state_.claim;
  if (claim.stage != Claim::Stage::kReported || message.attempt != claim.attempt || claim.result != 0) return;
  claim.stage = Claim::Stage::kRunning;
  claim.start_step = message.start_step;
  state_.attempt = message.attempt;
  state_.fenced_by = 0;
  state_.durable_step = message.durable_step;
  state_.captured_step = 0;
  state_.wanted = 0;
  state_.pos = message.start_step;
  state_.steps.Clear();
  state_.changed.NotifyAll();
}

void Session::RefuseLayout(int32_t number, const char* sentence) {
  state_.layout_code = number;
  state_.layout_sentence = sentence;
  state_.Remember(-number, sentence);
  ArmTimer(kAskAgainNs);
}

void Session::OnError(const ErrorMessage& from) {
  ErrorMessage message = from;
  Terminate(message.sentence);
  auto number = static_cast<int32_t>(message.code);
  if (number <= 0) number = code::INTERNAL;
  auto answers = static_cast<MessageType>(message.answers);
  MutexLock lock(state_.mutex);
  Claim& claim = state_.claim;
  if (!connection_.greeted) {
    state_.connect_code = number;
    state_.connect_sentence = message.sentence;
  } else if (answers == MessageType::kLayout) {
    RefuseLayout(number, message.sentence);
  } else if (claim.stage == Claim::Stage::kJoining || claim.stage == Claim::Stage::kOffered ||
             claim.stage == Claim::Stage::kReported) {
    claim.stage = Claim::Stage::kFailed;
    claim.code = number;
    claim.sentence = message.sentence;
    state_.Remember(-number, message.sentence);
    if (claim.implicit) ArmTimer(kAskAgainNs);
  } else {
    state_.Remember(-number, message.sentence);
    if (answers == MessageType::kJoin || answers == MessageType::kResume) OnRefusedWhileRunning(number);
  }
  state_.changed.NotifyAll();
}

// Training goes on, and with it the wish to save: what the agent cannot now (its storage hangs, other ranks are not
// back yet) it may later. Not at once: an agent that refuses would be asked without end. With the mutex held.
void Session::OnRefusedWhileRunning(int32_t number) {
  const bool for_good = number == code::FENCED || number == code::JOB_OWNED || state_.fenced_by != 0;
  if (state_.claim.stage != Claim::Stage::kRunning || for_good) return;
  connection_.refused = true;
  ArmTimer(kAskAgainNs);
}

void Session::OnLayoutState(const LayoutStateMessage& message) {
  MutexLock lock(state_.mutex);
  if (state_.registration == nullptr || message.header_crc != state_.registration->shape->header_crc) return;
  state_.prepared_bytes = message.prepared_bytes;
  state_.prepare_total = message.total_bytes;
}

// Mapping and populating take a while: without the mutex.
bool Session::OnLayoutReady(const LayoutReadyMessage& message, std::span<UniqueFd> fds) {
  std::shared_ptr<const Registration> registration;
  std::shared_ptr<Attachment> attachment;
  {
    MutexLock lock(state_.mutex);
    registration = state_.registration;
    attachment = state_.attachment;
  }
  connection_.resuming = false;
  connection_.devices = {};  // the agent waits to hear that its memory is pinned
  if (attachment != nullptr && attachment->IsSame(message, fds)) {
    ReplaceSlots(attachment, message, fds);
    return true;
  }
  if (registration == nullptr || message.header_crc != registration->shape->header_crc) return true;
  std::shared_ptr<Attachment> fresh;
  {
    MutexLock lock(state_.mutex);
    state_.pin_watch.Begin();
  }
  int32_t rc = Attachment::Create(message, *registration, fds, &fresh);
  std::shared_ptr<Attachment> old;
  MutexLock lock(state_.mutex);
  state_.pin_watch.End();
  if (rc != 0) {
    RefuseLayout(-rc, LastSentence());
    return true;
  }
  old = Detach(state_);
  state_.attachment = std::move(fresh);
  state_.layout_code = 0;
  state_.prepared_bytes = state_.prepare_total = message.slot_bytes * message.slot_count;
  PublishPos(state_);
  state_.changed.NotifyAll();
  return true;
}

void Session::ReplaceSlots(const std::shared_ptr<Attachment>& attachment, const LayoutReadyMessage& message,
                           std::span<UniqueFd> fds) {
  attachment->ReplaceHint(fds[Attachment::kHint]);
  for (uint32_t i = 0; i < message.slot_count; ++i) {
    if (attachment->slots[i]->file_id == message.file_id[i]) continue;
    SlotMessage slot = {};
    slot.layout = message.layout;
    slot.slot = i;
    slot.file_id = message.file_id[i];
    OnSlot(slot, fds.subspan(Attachment::kFirstSlot + i, 1));
  }
  MutexLock lock(state_.mutex);
  attachment->SetAttempt(message.attempt);
  state_.layout_code = 0;
  AcknowledgeUnused(state_);
  state_.changed.NotifyAll();
}

void Session::OnSlot(const SlotMessage& message, std::span<UniqueFd> fds) {
  std::shared_ptr<Attachment> attachment;
  std::shared_ptr<Device> device;
  {
    MutexLock lock(state_.mutex);
    attachment = state_.attachment;
    if (state_.registration != nullptr) device = state_.registration->devices.first_device();
  }
  if (attachment == nullptr || fds.size() != 1 || message.layout != attachment->ready().layout ||
      message.slot >= attachment->slot_count()) {
    return;
  }
  std::shared_ptr<const SlotFile> file;
  uint64_t bytes = attachment->ready().slot_bytes;
  if (OpenSlotFile(std::move(fds[0]), bytes, message.file_id, std::move(device), &file) != 0) return;
  MutexLock lock(state_.mutex);
  attachment->slots[message.slot].swap(file);
  state_.changed.NotifyAll();
}

void Session::OnCopierReply(const CopierReplyMessage& message, std::span<UniqueFd> fds) {
  MutexLock lock(state_.mutex);
  Pull& pull = state_.pull;
  if (pull.stage != Pull::Stage::kAsked || (message.code == 0 && fds.size() != 2)) return;
  if (memcmp(message.gpu, pull.gpu, sizeof pull.gpu) != 0) return;
  pull.reply = message;
  Terminate(pull.reply.sentence);
  if (message.code == 0) {
    pull.socket = std::move(fds[0]);
    pull.process = std::move(fds[1]);
  }
  pull.replied = true;
  state_.changed.NotifyAll();
}

// The ctl file tells which; a save may wait for it.
void Session::OnGrant() {
  MutexLock lock(state_.mutex);
  state_.changed.NotifyAll();
}

void Session::OnNews(const NewsMessage& from) {
  NewsMessage message = from;
  Terminate(message.last_sentence);
  if (message.outcome_count > kMaxOutcomes) return;
  MutexLock lock(state_.mutex);
  if (message.fenced_by != 0 && message.fenced_by > state_.attempt && state_.attempt != 0) {
    state_.fenced_by = message.fenced_by;
  }
  if (message.attempt == state_.attempt && state_.attempt != 0) {
    state_.captured_step = message.captured_step;
    state_.durable_step = message.durable_step;
    for (uint32_t i = 0; i < message.outcome_count; ++i) {
      const StepOutcome& outcome = message.outcomes[i];
      state_.steps.Apply(outcome.step, outcome.flags, -static_cast<int32_t>(outcome.code & INT32_MAX));
    }
  }
  auto number = static_cast<int32_t>(message.last_error & INT32_MAX);
  if (number != 0 && number != state_.agent_code) state_.Remember(-number, message.last_sentence);
  state_.agent_code = number;
  state_.changed.NotifyAll();
}

// What stood in the bell is lost to the agent. Nothing of it was reported as captured.
void Session::OnResumeRefused(const ResumeRefusedMessage& from) {
  ResumeRefusedMessage message = from;
  Terminate(message.sentence);
  connection_.resuming = false;
  connection_.layout = nullptr;
  std::shared_ptr<Attachment> old;
  MutexLock lock(state_.mutex);
  auto number = static_cast<int32_t>(message.code & INT32_MAX);
  if (state_.capture.phase != Capture::Phase::kIdle) {
    GiveUp(state_, code::INTERRUPTED, "the agent lost the memory of this capture");
    if (state_.capture.phase == Capture::Phase::kHeld) EndCapture(state_);
  }
  old = Detach(state_);
  state_.Remember(-number, message.sentence);
  state_.changed.NotifyAll();
}

}  // namespace ckptd
