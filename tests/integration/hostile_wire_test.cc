// Packets of another user that are cut, too long, in the wrong order, repeated, or noise.
#include <sys/socket.h>

#include <cstring>
#include <random>

#include "proto/local/rescue.h"
#include "tests/integration/hostile.h"

namespace ckptd::harness {
namespace {

using Bytes = std::vector<uint8_t>;

// Every kind of packet a trainer sends, well-formed.
template <typename Message>
Bytes PacketOf(MessageType type, Message message = {}) {
  message.head = {kMessageMagic, static_cast<uint16_t>(type), 1, sizeof message, 0, 0};
  const auto* raw = reinterpret_cast<const uint8_t*>(&message);
  return {raw, raw + sizeof message};
}

JoinMessage JoinOf(const std::string& job) {
  JoinMessage join{};
  job.copy(join.job, sizeof join.job);
  join.world = 1;
  join.ticket = 77;
  join.timeout_ms = 30'000;
  return join;
}

Bytes HelloPacket() {
  HelloMessage hello{};
  hello.min_major = hello.max_major = 1;
  return PacketOf(MessageType::kHello, hello);
}

std::vector<Bytes> AllPackets() {
  ResumeMessage resume{};
  std::string("enemy").copy(resume.job, sizeof resume.job);
  resume.world = resume.layout = 1;
  resume.ticket = 77;
  LayoutMessage layout{};
  layout.image_count = 1;
  return {HelloPacket(),
          PacketOf(MessageType::kJoin, JoinOf("enemy")),
          PacketOf(MessageType::kResume, resume),
          PacketOf<LoadedMessage>(MessageType::kLoaded),
          PacketOf<LoadingMessage>(MessageType::kLoading),
          PacketOf(MessageType::kLayout, layout),
          PacketOf<CaptureMessage>(MessageType::kSave),
          PacketOf<CaptureMessage>(MessageType::kDone),
          PacketOf<CaptureMessage>(MessageType::kDrop),
          PacketOf<CopierMessage>(MessageType::kCopier),
          PacketOf<DevicesMessage>(MessageType::kDevices),
          PacketOf<RescueMessage>(MessageType::kRescue),
          PacketOf<ByeMessage>(MessageType::kBye)};
}

void SetSize(Bytes* packet) {
  const auto size = static_cast<uint32_t>(packet->size());
  std::memcpy(packet->data() + offsetof(MessageHead, size), &size, sizeof size);
}

// A connection of its own for each packet. How many were answered with the end of the connection.
std::string EndsOf(const std::string& socket, const std::vector<Bytes>& packets) {
  size_t ended = 0;
  for (const Bytes& packet : packets) {
    RawTrainer trainer(socket);
    trainer.Hello();
    ended += trainer.Raw(packet) != 0 || trainer.Closed() ? 1 : 0;
  }
  return std::to_string(ended) + " ended";
}

// More than a trainer's own library sends.
void SendWithFds(int socket, const Bytes& packet, size_t count) {
  iovec part{const_cast<uint8_t*>(packet.data()), packet.size()};
  std::vector<char> control(CMSG_SPACE(count * sizeof(int)));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = count == 0 ? nullptr : control.data();
  message.msg_controllen = count == 0 ? 0 : control.size();
  if (cmsghdr* rights = CMSG_FIRSTHDR(&message); rights != nullptr) {
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    for (size_t i = 0; i < count; ++i) std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &socket, sizeof(int));
  }
  (void)sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

class WireOfOthers : public Hostile {
 protected:
  // One act for each packet; all of them have to end their connection.
  void ExpectAllEnd(const std::string& name, const std::vector<Bytes>& packets) {
    ExpectHears(name, std::to_string(packets.size()) + " ended",
                [socket = socket_, packets] { return EndsOf(socket, packets); });
    tried_ += packets.size() - 1;
  }
  // All of them on one connection, one after the other, whatever is answered.
  void SendAll(const std::string& name, const std::vector<Bytes>& packets) {
    Try(name, [socket = socket_, packets] {
      auto trainer = std::make_unique<RawTrainer>(socket);
      for (const Bytes& packet : packets) {
        if (trainer->Raw(packet) == 0) continue;
        trainer = std::make_unique<RawTrainer>(socket);  // it was ended, or its socket is full
      }
      return std::string();
    });
    tried_ += packets.size() - 1;
  }
};

TEST_F(WireOfOthers, CutPacketsEndTheirConnection) {
  for (const Bytes& whole : AllPackets()) {
    std::vector<Bytes> cut;
    for (size_t size = 1; size < whole.size(); size += 1 + size / 40) {
      for (const bool lies : {false, true}) {
        cut.emplace_back(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
        if (!lies && size >= sizeof(MessageHead)) SetSize(&cut.back());
      }
    }
    ExpectAllEnd("cut type " + std::to_string(whole[offsetof(MessageHead, type)]), cut);
  }
  EndAndCount(nullptr);
}

TEST_F(WireOfOthers, LengthAtTheLimitAboveItAndFarAbove) {
  Bytes longest = PacketOf(MessageType::kJoin, JoinOf("enemy"));  // of a newer trainer, with fields we do not know
  longest.resize(kMaxPacketBytes);
  SetSize(&longest);
  ExpectHears("64 KiB", "taken", [this, longest] {
    RawTrainer trainer(socket_);
    trainer.Hello();
    if (trainer.Raw(longest) != 0) return std::string("not sent");
    return std::string(trainer.Next(MessageType::kLoad) ? "taken" : "refused");
  });
  const auto longer = [this](size_t bytes) {
    return [socket = socket_, bytes] {
      RawTrainer trainer(socket);
      Bytes packet = HelloPacket();
      packet.resize(bytes);
      SetSize(&packet);
      if (send(trainer.fd(), packet.data(), packet.size(), MSG_NOSIGNAL) < 0)
        return std::string("refused by the kernel");
      return "refused: " + trainer.NextError();
    };
  };
  ExpectHears("64 KiB and 1", "packet too large", longer(kMaxPacketBytes + 1));
  ExpectHears("64 MiB", "refused", longer(1000 * kMaxPacketBytes));
  EndAndCount(nullptr);
}

TEST_F(WireOfOthers, DescriptorsUpToTheLimitAndAbove) {
  for (const size_t count : {0U, 1U, 2U, 16U, 17U, 253U}) {
    Try(std::to_string(count) + " descriptors", [socket = socket_, count] {
      const RawTrainer trainer(socket);
      for (const Bytes& packet : AllPackets()) SendWithFds(trainer.fd(), packet, count);
      return std::string();
    });
  }
  EndAndCount(nullptr);
}

TEST_F(WireOfOthers, HeadsThatMakeNoSenseEndTheirConnection) {
  std::vector<Bytes> bad;
  for (const Bytes& whole : AllPackets()) {
    for (const size_t byte : {0, 3, 8, 11}) {  // magic and size
      bad.push_back(whole);
      bad.back()[byte] ^= 0x80;
    }
  }
  for (const uint16_t type : {0, 2, 4, 6, 7, 9, 10, 11, 15, 17, 19, 21, 24, 1000, 65535}) {
    bad.push_back(PacketOf<DevicesMessage>(static_cast<MessageType>(type)));
  }
  ExpectAllEnd("heads", bad);
  EndAndCount(nullptr);
}

TEST_F(WireOfOthers, AnyOrderAndAThousandTimesEach) {
  const std::vector<Bytes> all = AllPackets();
  std::vector<Bytes> before_hello(all.begin() + 1, all.end());
  for (const Bytes& packet : before_hello) {
    ExpectHears("before HELLO", "the first message must be HELLO", [socket = socket_, packet] {
      RawTrainer trainer(socket);
      return trainer.Raw(packet) == 0 ? trainer.NextError() : "not sent";
    });
  }
  std::mt19937_64 random(1);
  std::vector<Bytes> shuffled = {HelloPacket()};
  for (int i = 0; i < 3000; ++i) shuffled.push_back(all[random() % all.size()]);
  SendAll("shuffled", shuffled);
  for (const Bytes& packet : all) {
    std::vector<Bytes> repeated = {HelloPacket()};
    repeated.insert(repeated.end(), 1000, packet);
    SendAll("a thousand of type " + std::to_string(packet[offsetof(MessageHead, type)]), repeated);
  }
  EndAndCount(nullptr);
}

TEST_F(WireOfOthers, Noise) {
  std::mt19937_64 random(2);
  std::vector<Bytes> noise = {HelloPacket(), PacketOf(MessageType::kJoin, JoinOf("enemy"))};
  const std::vector<Bytes> all = AllPackets();
  for (int i = 0; i < 4000; ++i) {
    noise.push_back(all[random() % all.size()]);
    Bytes& packet = noise.back();
    const size_t body = packet.size() - sizeof(MessageHead);  // the head stays, or it would never get far
    for (int n = 0; n < 4 && body > 0; ++n)
      packet[sizeof(MessageHead) + random() % body] = static_cast<uint8_t>(random());
  }
  SendAll("noise", noise);
  EndAndCount(nullptr);
}

}  // namespace
}  // namespace ckptd::harness
