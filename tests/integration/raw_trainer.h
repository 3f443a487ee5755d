// A trainer that speaks the socket's protocol by hand.
#ifndef CKPTD_TESTS_INTEGRATION_RAW_TRAINER_H_
#define CKPTD_TESTS_INTEGRATION_RAW_TRAINER_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/core/wire/packet.h"
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
  // HELLO and JOIN: from here on it holds the rank, if the agent lets it.
  void Join(const std::string& job);
  // A layout of one small tensor.
  void Layout();
  void Devices(uint32_t count);

  // The next packet of this type; what comes before it is dropped. nullopt: none came in time.
  std::optional<Packet> Next(MessageType type, Millis timeout = kLong);

  struct Copier {
    CopierReplyMessage reply;
    UniqueFd socket;
    UniqueFd pidfd;
  };
  Copier AskCopier(uint8_t gpu);

 private:
  void Send(std::span<const uint8_t> bytes, const std::vector<int>& fds);

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
