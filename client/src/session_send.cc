// What is due on this connection: the difference between the handle's state and what the agent was told.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "client/src/device_report.h"
#include "client/src/failure.h"
#include "client/src/session.h"
#include "client/src/version.h"
#include "proto/local/rescue.h"

namespace ckptd {
namespace {

constexpr uint64_t kImplicitTimeoutMs = 120'000;

uint64_t RemainingMs(uint64_t deadline_ns) {
  if (deadline_ns == UINT64_MAX) return kImplicitTimeoutMs;
  uint64_t now = MonotonicNs();
  return deadline_ns <= now ? 1 : (deadline_ns - now) / 1'000'000 + 1;
}

bool Matches(const Attachment& attachment, const Shape& shape) {
  return attachment.ready().header_crc == shape.header_crc && attachment.ready().slot_bytes == shape.slot_bytes;
}

// What a copier may take behind this process' death; `copy_ns`: what a copy took, 0 where there was none yet.
uint64_t HoldFor(uint64_t copy_ns) {
  constexpr uint64_t kSlackNs = 500'000'000;
  constexpr uint64_t kRoundNs = 250'000'000;
  if (copy_ns == 0) return kMostHoldNs;
  return std::min(kMostHoldNs, (copy_ns + kSlackNs + kRoundNs - 1) / kRoundNs * kRoundNs);
}

template <size_t n>
void CopyText(const char* text, char (&into)[n]) {
  snprintf(into, n, "%s", text);
}

}  // namespace

template <typename Message>
bool Session::Send(Message& message, MessageType type, std::span<const int> fds) {
  message.head.magic = kMessageMagic;
  message.head.type = static_cast<uint16_t>(type);
  message.head.major = connection_.greeted ? kProtocolMajorMax : 0;
  message.head.size = sizeof message;
  int error = SendPacket(socket_.get(), {reinterpret_cast<const uint8_t*>(&message), sizeof message}, fds);
  // Any other error is a dead peer: reading finds that out and reconnects.
  if (error == EAGAIN) connection_.blocked = true;
  return error == 0;
}

void Session::SendWhatIsDue() {
  if (!socket_.valid() || !connection_.greeted) return;
  connection_.blocked = false;
  bool told = SendResume() && SendJoin() && SendLoading() && SendLoaded() && SendDevices() && SendLayout() &&
              SendCopier() && SendRescue();
  if (told) SendHints();
}

bool Session::SendHello() {
  HelloMessage hello = {};
  hello.min_major = kProtocolMajorMin;
  hello.max_major = kProtocolMajorMax;
  hello.pid = static_cast<uint32_t>(getpid());
  CopyText(kLibraryVersion, hello.library);
  return Send(hello, MessageType::kHello);
}

// Instead of JOIN when a bell is at hand: what was captured while the agent was away is in it.
bool Session::SendResume() {
  ResumeMessage resume = {};
  std::shared_ptr<Attachment> attachment;
  {
    MutexLock lock(state_.mutex);
    const Claim& claim = state_.claim;
    if (connection_.joined_ticket != 0 || claim.stage != Claim::Stage::kRunning || state_.attachment == nullptr)
      return true;
    attachment = state_.attachment;
    CopyText(state_.job.c_str(), resume.job);
    resume.ticket = claim.ticket;
    resume.attempt = state_.attempt;
  }
  const LayoutReadyMessage& ready = attachment->ready();
  resume.rank = state_.rank;
  resume.world = state_.world;
  resume.region_id = ready.region_id;
  resume.bell_id = ready.bell_id;
  resume.layout = ready.layout;
  resume.header_crc = ready.header_crc;
  int bell = attachment->bell_fd();
  if (!Send(resume, MessageType::kResume, {&bell, 1})) return false;
  connection_.joined_ticket = resume.ticket;
  connection_.resuming = true;
  connection_.refused = false;
  return true;
}

bool Session::SendJoin() {
  JoinMessage join = {};
  {
    MutexLock lock(state_.mutex);
    const Claim& claim = state_.claim;
    bool wanted = claim.stage != Claim::Stage::kNone && claim.stage != Claim::Stage::kFailed;
    if (!wanted || connection_.joined_ticket == claim.ticket) return true;
    CopyText(state_.job.c_str(), join.job);
    join.ticket = claim.ticket;
    join.want = static_cast<uint32_t>(claim.want);
    join.implicit = claim.implicit && claim.want != Want::kFresh ? 1 : 0;  // refused where snapshots exist
    join.want_step = claim.want_step;
    // The deadline was the restore's. Who trains already only comes back, and nobody waits for that.
    const bool running = claim.stage == Claim::Stage::kRunning;
    join.timeout_ms = running ? kImplicitTimeoutMs : RemainingMs(claim.deadline_ns);
  }
  join.rank = state_.rank;
  join.world = state_.world;
  if (!Send(join, MessageType::kJoin)) return false;
  connection_.joined_ticket = join.ticket;
  connection_.resuming = false;
  connection_.refused = false;
  return true;
}

// Whoever waits for this rank does so as long as it reads.
bool Session::SendLoading() {
  LoadingMessage loading = {};
  const uint64_t reads = state_.reads.load();
  if (!connection_.patience || reads == connection_.reads_told) return true;
  {
    MutexLock lock(state_.mutex);
    const Claim& claim = state_.claim;
    if (claim.stage != Claim::Stage::kOffered || connection_.offered_attempt != claim.attempt) return true;
    loading.attempt = claim.attempt;
    loading.ticket = claim.ticket;
  }
  if (!Send(loading, MessageType::kLoading)) return false;
  connection_.reads_told = reads;
  return true;
}

// Only after LOAD was seen on this connection. A process that trains already answers LOAD of its own attempt once more.
bool Session::SendLoaded() {
  LoadedMessage loaded = {};
  {
    MutexLock lock(state_.mutex);
    const Claim& claim = state_.claim;
    bool answered = claim.stage == Claim::Stage::kReported || claim.stage == Claim::Stage::kRunning;
    if (!answered || connection_.offered_attempt != claim.attempt || claim.attempt == 0 ||
        connection_.reported_attempt == claim.attempt) {
      return true;
    }
    loaded.attempt = claim.attempt;
    loaded.ticket = claim.ticket;
    loaded.code = static_cast<uint32_t>(claim.result);
    loaded.bytes = claim.loaded_bytes;
    CopyText(claim.reason, loaded.reason);
  }
  if (!Send(loaded, MessageType::kLoaded)) return false;
  connection_.reported_attempt = loaded.attempt;
  return true;
}

bool Session::SendLayout() {
  LayoutMessage layout = {};
  std::shared_ptr<const Shape> shape;
  {
    MutexLock lock(state_.mutex);
    bool running = state_.claim.stage == Claim::Stage::kRunning && state_.fenced_by == 0;
    if (!running || connection_.resuming || state_.registration == nullptr) return true;
    shape = state_.registration->shape;
    const Attachment* attachment = state_.attachment.get();
    bool there = attachment != nullptr && attachment->ready().attempt == state_.attempt && Matches(*attachment, *shape);
    // Unless another one was asked for meanwhile: the agent gives the grants to the last.
    bool last = connection_.layout == nullptr || connection_.layout->header_crc == shape->header_crc;
    if (there && last) return true;
    layout.attempt = state_.attempt;
    layout.ticket = state_.claim.ticket;
  }
  if (connection_.layout == shape && connection_.layout_attempt == layout.attempt) return true;
  layout.header_bytes = shape->header_bytes;
  layout.image_count = static_cast<uint32_t>(shape->headers.size());
  layout.header_crc = shape->header_crc;
  int file = shape->header_file.get();
  if (!Send(layout, MessageType::kLayout, {&file, 1})) return false;
  connection_.layout = shape;
  connection_.layout_attempt = layout.attempt;
  return true;
}

bool Session::SendDevices() {
  DevicesMessage devices;
  {
    MutexLock lock(state_.mutex);
    if (state_.claim.stage != Claim::Stage::kRunning || connection_.resuming) return true;
    if (!DescribeDevices(state_, &devices)) return true;
  }
  if (memcmp(&devices, &connection_.devices, sizeof devices) == 0) return true;
  DevicesMessage told = devices;
  if (!Send(told, MessageType::kDevices)) return false;
  connection_.devices = devices;
  return true;
}

bool Session::SendCopier() {
  CopierMessage copier = {};
  uint64_t requests = 0;
  {
    MutexLock lock(state_.mutex);
    requests = state_.pull.requests;
    bool asks = state_.pull.stage == Pull::Stage::kAsked && state_.claim.stage == Claim::Stage::kRunning;
    if (!asks || requests == connection_.copiers_asked) return true;
    memcpy(copier.gpu, state_.pull.gpu, sizeof copier.gpu);
  }
  if (!Send(copier, MessageType::kCopier)) return false;
  connection_.copiers_asked = requests;
  return true;
}

// In quarters of a second, so that it is not told anew behind each save.
bool Session::SendRescue() {
  RescueMessage rescue = {};
  {
    MutexLock lock(state_.mutex);
    if (!state_.rescue_wanted || state_.claim.stage != Claim::Stage::kRunning || connection_.resuming) return true;
    if (state_.Rescuer() == nullptr) {
      snprintf(rescue.why, sizeof rescue.why, "%s", state_.RescueWhy());
    } else {
      rescue.hold_ns = HoldFor(state_.pull.copy_ns);
    }
  }
  if (memcmp(&rescue, &connection_.rescue, sizeof rescue) == 0) return true;
  RescueMessage told = rescue;
  if (!Send(told, MessageType::kRescue)) return false;
  connection_.rescue = rescue;
  return true;
}

// Lost when the socket is full: the bell tells the same.
bool Session::SendHints() {
  CaptureMessage message;
  for (;;) {
    {
      MutexLock lock(state_.mutex);
      if (!state_.hints.Pop(&message)) return true;
    }
    Send(message, static_cast<MessageType>(message.head.type));
    connection_.blocked = false;
  }
}

void Session::SendBye() {
  if (!socket_.valid() || !connection_.greeted) return;
  SendHints();
  ByeMessage bye = {};
  Send(bye, MessageType::kBye);
}

}  // namespace ckptd
