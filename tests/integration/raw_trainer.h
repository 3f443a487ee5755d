// A trainer that speaks the socket's protocol by hand.
#ifndef CKPTD_TESTS_INTEGRATION_RAW_TRAINER_H_
#define CKPTD_TESTS_INTEGRATION_RAW_TRAINER_H_

#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/core/wire/packet.h"
#include "gtest/gtest.h"
#include "proto/local/messages.h"
#include "tests/integration/process.h"

namespace ckptd::harness {

class RawTrainer {
 public:
  explicit RawTrainer(const std::string& socket);

  template <typename Message>
  void Say(MessageType type, Message message, const std::vector<int>& fds = {}) {
    message.head.magic = kMessageMagic;
    message.head.type = static_cast<uint16_t>(type);
    message.head.size = sizeof(message);
    Send({reinterpret_cast<const uint8_t*>(&message), sizeof(message)}, fds);
  }
  // As it is. 0 or an errno.
  [[nodiscard]] int Raw(std::span<const uint8_t> bytes, const std::vector<int>& fds = {}) {
    return SendPacket(fd_.get(), bytes, fds);
  }
  void Hello();
  // HELLO and JOIN: from here on it holds the rank, if the agent lets it.
  void Join(const std::string& job, uint32_t rank = 0, uint32_t world = 1, uint64_t ticket = 77);
  // JOIN alone, of one job after the other. For ranks but 0 nothing is written: they wait for that one.
  void Enter(const std::string& job, uint32_t rank, uint32_t world);
  // The same, and BYE.
  void Visit(const std::string& job, uint32_t rank, uint32_t world);
  // A layout of one small tensor.
  void Layout(uint64_t ticket = 77, uint64_t attempt = 0);
  void Devices(uint32_t count);

  // The next packet of this type as its struct, and a failure of the test when none comes.
  template <typename Message>
  Message Await(MessageType type, std::vector<UniqueFd>* fds = nullptr) {
    Message message{};
    auto packet = Next(type);
    EXPECT_TRUE(packet && packet->bytes.size() >= sizeof message) << "type " << static_cast<int>(type);
    if (packet && packet->bytes.size() >= sizeof message) std::memcpy(&message, packet->bytes.data(), sizeof message);
    if (packet && fds != nullptr) *fds = std::move(packet->fds);
    return message;
  }
  using OnOther = std::function<void(MessageType type, Packet& packet)>;
  // The next packet of this type; what comes before it is told to `other`. nullopt: none came in time.
  std::optional<Packet> Next(MessageType type, Millis timeout = kLong, const OnOther& other = nullptr);
  // The sentence of the next ERROR; "" when none came.
  std::string NextError(Millis timeout = kLong);
  // The agent has closed the connection; what came before is dropped.
  bool Closed(Millis timeout = kLong);
  [[nodiscard]] int fd() const { return fd_.get(); }

  struct Copier {
    CopierReplyMessage reply;
    UniqueFd socket;
    UniqueFd pidfd;
  };
  Copier AskCopier(uint8_t gpu);

 private:
  void Send(std::span<const uint8_t> bytes, const std::vector<int>& fds);
  void SendWhenItMay(std::span<const uint8_t> bytes);

  UniqueFd fd_;
};

// What a copier tells of itself (stand_in_copier.cc); "" when it tells nothing.
std::string Told(int socket);
// The number in its line "pid N".
pid_t PidIn(const std::string& told);
// Whether the descriptor (a pidfd, a socket) becomes readable.
bool Readable(int fd, Millis timeout = kLong);

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_RAW_TRAINER_H_
