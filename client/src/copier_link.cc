#include "client/src/copier_link.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ckptd {
namespace {

// What poll waits, in whole milliseconds and never too short.
int PollMs(uint64_t deadline_ns) {
  uint64_t now = MonotonicNs();
  if (deadline_ns <= now) return 0;
  return static_cast<int>(std::min<uint64_t>((deadline_ns - now) / 1'000'000 + 1, 3'600'000));
}

bool Say(std::string* why, const char* what, const char* error) {
  *why = std::string(what) + ": " + error;
  return false;
}

}  // namespace

CopierLink::CopierLink(UniqueFd socket, UniqueFd process)
    : socket_(std::move(socket)),
      process_(std::make_shared<const UniqueFd>(std::move(process))),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

bool CopierLink::Open(std::shared_ptr<Device> device, uint64_t timeout_ns, std::string* why) {
  if (!page_.Make(std::move(device), "gate page", sizeof(GatePage), why)) return false;
  CopierStart start = {};
  start.version = kCopierVersion;
  memcpy(start.gpu, page_.device()->facts().uuid.data(), sizeof start.gpu);
  int fd = page_.file();
  CopierAnswer answer;
  return Ask(start, CopierMessageType::kStart, {&fd, 1}, timeout_ns, &answer, why);
}

bool CopierLink::SendBytes(std::span<const uint8_t> bytes, std::span<const int> fds, std::string* why) {
  int error = SendPacket(socket_.get(), bytes, fds);
  return error == 0 || Say(why, "the copier's socket", strerror(error));
}

bool CopierLink::AwaitAnswer(uint64_t serial, uint64_t timeout_ns, CopierAnswer* answer, std::string* why) {
  const uint64_t deadline = DeadlineAfter(timeout_ns);
  for (;;) {
    CopierEvent event = Await(deadline);
    if (shut_.load(std::memory_order_relaxed)) return Say(why, "the copier", "not needed any more");
    if (event.kind == CopierEvent::Kind::kTimeout) return Say(why, "the copier", "no answer in time");
    if (event.kind == CopierEvent::Kind::kClosed) return Say(why, "the copier", "ended");
    if (event.kind != CopierEvent::Kind::kAnswer) continue;
    if (event.answer.serial != serial) return Say(why, "the copier", "answers what it was not asked");
    *answer = event.answer;
    return answer->outcome == static_cast<uint32_t>(CopierOutcome::kDone) || Say(why, "the copier", answer->sentence);
  }
}

CopierEvent CopierLink::Await(uint64_t deadline_ns) {
  CopierEvent event;
  pollfd fds[] = {{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  int ready = poll(fds, 2, PollMs(deadline_ns));
  if (ready <= 0) return event;
  if (fds[1].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] ssize_t ignored = read(wake_.get(), &count, sizeof count);
    event.kind = CopierEvent::Kind::kWoken;
  }
  if (fds[0].revents == 0) return event;
  int error = ReceivePacket(socket_.get(), Wait::kNo, &packet_);
  if (error == EAGAIN) return event;
  if (error != 0 || !Take(packet_, &event)) event.kind = CopierEvent::Kind::kClosed;
  return event;
}

// False: it breaks the protocol.
bool CopierLink::Take(const Packet& packet, CopierEvent* event) {
  MessageHead head;
  if (packet.bytes.size() < sizeof head) return false;
  memcpy(&head, packet.bytes.data(), sizeof head);
  if (head.magic != kMessageMagic || head.size != packet.bytes.size()) return false;
  event->kind = CopierEvent::Kind::kProgress;
  if (head.type != static_cast<uint16_t>(CopierMessageType::kAnswer)) return true;
  if (packet.bytes.size() < sizeof event->answer) return false;
  memcpy(&event->answer, packet.bytes.data(), sizeof event->answer);
  event->answer.sentence[sizeof event->answer.sentence - 1] = 0;
  event->kind = CopierEvent::Kind::kAnswer;
  return true;
}

void CopierLink::Wake() const {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t ignored = write(wake_.get(), &one, sizeof one);  // a full counter wakes as well
}

void CopierLink::Shut() {
  shut_.store(true, std::memory_order_relaxed);
  Wake();
}

CopierLink::Line CopierLink::NextLine() { return {lines_++ % kGateLines, NextSerial()}; }

DeviceError CopierLink::TellReady(DeviceStream stream, const Line& line) {
  return page_.Write(stream, lines()[line.index].ready, line.serial);
}

DeviceError CopierLink::Hold(DeviceStream stream, const Line& line) {
  return page_.Wait(stream, lines()[line.index].released, line.serial);
}

void CopierLink::Release(const Line& line) const {
  lines()[line.index].released.store(line.serial, std::memory_order_release);
}

bool CopierLink::IsReleased(const Line& line) const {
  return lines()[line.index].released.load(std::memory_order_acquire) == line.serial;
}

bool CopierLink::End() const {
  Kill();
  return EndsWithin(kEndMs);
}

void CopierLink::Kill() const { (void)syscall(SYS_pidfd_send_signal, process_->get(), SIGKILL, nullptr, 0); }

bool CopierLink::EndsWithin(int milliseconds) const {
  pollfd fd = {process_->get(), POLLIN, 0};
  return poll(&fd, 1, milliseconds) > 0;
}

}  // namespace ckptd
