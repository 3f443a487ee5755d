#include "tests/crash/wrong_packets.h"

#include <cstring>

#include "proto/local/copier.h"

namespace ckptd::harness {
namespace {

template <typename Message>
std::string Bytes(Message message, CopierMessageType type) {
  message.head.magic = kMessageMagic;
  message.head.type = static_cast<uint16_t>(type);
  message.head.size = sizeof message;
  return {reinterpret_cast<const char*>(&message), sizeof message};
}

}  // namespace

std::vector<std::string> Garbage() {
  std::vector<std::string> packets;
  uint64_t seed = 7;
  for (size_t length = 1; length < 400; length += 23) {
    std::string packet(length, '\0');
    for (char& byte : packet) byte = static_cast<char>((seed = seed * 6364136223846793005 + 1) >> 56);
    MessageHead head = {};
    head.magic = kMessageMagic;
    head.type = static_cast<uint16_t>(100 + length % 12);
    head.size = static_cast<uint32_t>(length);
    if (length % 2 == 0 && length >= sizeof head) memcpy(packet.data(), &head, sizeof head);
    packets.push_back(packet);
  }
  return packets;
}

std::vector<std::string> WrongAnswers(uint64_t awaited) {
  std::vector<std::string> packets = {Bytes(CopierSerial{{}, 77}, CopierMessageType::kCopying)};
  for (const uint64_t serial : {awaited, awaited + 1, awaited + 2, awaited + 3, uint64_t{0}, UINT64_MAX}) {
    CopierAnswer answer = {};
    answer.serial = serial;
    answer.outcome = serial == awaited + 2 ? 99 : 0;
    answer.pinned_bytes = UINT64_MAX;
    memset(answer.sentence, 'x', sizeof answer.sentence);
    packets.push_back(Bytes(answer, CopierMessageType::kAnswer));
  }
  return packets;
}

}  // namespace ckptd::harness
