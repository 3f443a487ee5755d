#include "tests/integration/raw_trainer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "client/core/copy/crc32c.h"
#include "gtest/gtest.h"
#include "tests/integration/fill.h"

namespace ckptd::harness {

RawTrainer::RawTrainer(const std::string& socket) : fd_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket.copy(address.sun_path, sizeof address.sun_path - 1);
  EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << strerror(errno);
}

void RawTrainer::Send(std::span<const uint8_t> bytes, const std::vector<int>& fds) {
  EXPECT_EQ(SendPacket(fd_.get(), bytes, fds), 0);
}

void RawTrainer::Hello() {
  HelloMessage hello{};
  hello.min_major = hello.max_major = 1;
  Say(MessageType::kHello, hello);
}

void RawTrainer::Join(const std::string& job, uint32_t rank, uint32_t world, uint64_t ticket) {
  Hello();
  JoinMessage join{};
  job.copy(join.job, sizeof join.job - 1);
  join.rank = rank;
  join.world = world;
  join.ticket = ticket;
  join.timeout_ms = 30'000;
  Say(MessageType::kJoin, join);
}

// Waits for room in the socket.
void RawTrainer::SendWhenItMay(std::span<const uint8_t> bytes) {
  int error = Raw(bytes);
  for (pollfd room{fd_.get(), POLLOUT, 0}; error == EAGAIN; error = Raw(bytes)) poll(&room, 1, 1000);
  EXPECT_EQ(error, 0) << strerror(error);
}

void RawTrainer::Enter(const std::string& job, uint32_t rank, uint32_t world) {
  JoinMessage join{};
  job.copy(join.job, sizeof join.job);
  join.rank = rank;
  join.world = world;
  join.ticket = 77;
  join.timeout_ms = 600'000;
  join.head = {kMessageMagic, static_cast<uint16_t>(MessageType::kJoin), 1, sizeof join, 0, 0};
  SendWhenItMay({reinterpret_cast<const uint8_t*>(&join), sizeof join});
}

void RawTrainer::Visit(const std::string& job, uint32_t rank, uint32_t world) {
  Enter(job, rank, world);
  ByeMessage bye{};
  bye.head = {kMessageMagic, static_cast<uint16_t>(MessageType::kBye), 1, sizeof bye, 0, 0};
  SendWhenItMay({reinterpret_cast<const uint8_t*>(&bye), sizeof bye});
}

void RawTrainer::Layout(uint64_t ticket, uint64_t attempt) {
  const std::string header = ImageHeader();
  const UniqueFd memory(memfd_create("headers", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(write(memory.get(), header.data(), header.size()), static_cast<ssize_t>(header.size()));
  ASSERT_EQ(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL), 0);
  LayoutMessage layout{};
  layout.ticket = ticket;
  layout.attempt = attempt;
  layout.header_bytes = header.size();
  layout.image_count = 1;
  layout.header_crc = Crc32c(0, header.data(), header.size());
  Say(MessageType::kLayout, layout, {memory.get()});
}

void RawTrainer::Devices(uint32_t count) {
  DevicesMessage devices{};
  devices.device_count = count;
  Say(MessageType::kDevices, devices);
}

std::optional<Packet> RawTrainer::Next(MessageType type, Millis timeout, const OnOther& other) {
  const TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  Packet packet;
  for (Millis left = timeout; left > Millis(0) && Readable(fd_.get(), left);
       left = std::chrono::duration_cast<Millis>(deadline - std::chrono::steady_clock::now())) {
    if (ReceivePacket(fd_.get(), Wait::kNo, &packet) != 0) return std::nullopt;
    MessageHead head{};
    std::memcpy(&head, packet.bytes.data(), std::min(sizeof head, packet.bytes.size()));
    if (head.type == static_cast<uint16_t>(type)) return packet;
    if (other) other(static_cast<MessageType>(head.type), packet);
  }
  return std::nullopt;
}

std::string RawTrainer::NextError(Millis timeout) {
  ErrorMessage error{};
  const auto packet = Next(MessageType::kError, timeout);
  if (packet && packet->bytes.size() >= sizeof error) std::memcpy(&error, packet->bytes.data(), sizeof error);
  return error.sentence;
}

bool RawTrainer::Closed(Millis timeout) {
  const TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  for (Packet packet; std::chrono::steady_clock::now() < deadline;) {
    if (Readable(fd_.get(), Millis(50)) && ReceivePacket(fd_.get(), Wait::kNo, &packet) != 0) return true;
  }
  return false;
}

RawTrainer::Copier RawTrainer::AskCopier(uint8_t gpu) {
  CopierMessage ask{};
  ask.gpu[0] = gpu;
  Say(MessageType::kCopier, ask);
  Copier copier{};
  auto packet = Next(MessageType::kCopierReply);
  if (!packet || packet->bytes.size() < sizeof copier.reply) {
    ADD_FAILURE() << "no COPIER_REPLY";
    return copier;
  }
  std::memcpy(&copier.reply, packet->bytes.data(), sizeof copier.reply);
  EXPECT_EQ(copier.reply.gpu[0], gpu);
  EXPECT_EQ(packet->fds.size(), copier.reply.code == 0 ? 2u : 0u);
  if (packet->fds.size() == 2) copier.socket = std::move(packet->fds[0]);
  if (packet->fds.size() == 2) copier.pidfd = std::move(packet->fds[1]);
  return copier;
}

std::string Told(int socket) {
  std::string text(64u << 10, '\0');
  const ssize_t got = Readable(socket) ? recv(socket, text.data(), text.size(), 0) : -1;
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

pid_t PidIn(const std::string& told) {
  return told.rfind("pid ", 0) == 0 ? static_cast<pid_t>(strtol(told.c_str() + 4, nullptr, 10)) : 0;
}

bool Readable(int fd, Millis timeout) {
  pollfd wait{fd, POLLIN, 0};
  return poll(&wait, 1, static_cast<int>(timeout.count())) == 1;
}

}  // namespace ckptd::harness
