// One copier as the trainer sees it: its socket, its process, and the gate page (proto/local/copier.h).
//
// Threads: one at a time, as Pull says: the pull thread while it prepares the copier, the copy thread while a save is
// pulled. Release, Hold, Wake and Shut: any thread.
#ifndef CKPTD_CLIENT_SRC_COPIER_LINK_H_
#define CKPTD_CLIENT_SRC_COPIER_LINK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/core/wire/fds.h"
#include "client/core/wire/packet.h"
#include "client/src/stream_page.h"
#include "proto/local/copier.h"

namespace ckptd {

struct CopierEvent {
  enum class Kind : uint8_t { kTimeout, kWoken, kProgress, kAnswer, kClosed };
  Kind kind = Kind::kTimeout;
  CopierAnswer answer = {};  // kAnswer
};

class CopierLink {
 public:
  // Where a gate of one save waits.
  struct Line {
    uint32_t index = 0;
    uint64_t serial = 0;  // never used twice
  };

  CopierLink(UniqueFd socket, UniqueFd process);
  CopierLink(const CopierLink&) = delete;
  CopierLink& operator=(const CopierLink&) = delete;

  // Makes the gate page and pins it for the device, whose GPU the copier is for, and sends START. False: `why`.
  bool Open(std::shared_ptr<Device> device, uint64_t timeout_ns, std::string* why);

  // Sends a request and waits for its answer. False: it was refused, or nobody answers; `why`. Sets head and serial.
  template <typename Message>
  bool Ask(Message& message, CopierMessageType type, std::span<const int> fds, uint64_t timeout_ns,
           CopierAnswer* answer, std::string* why) {
    message.serial = NextSerial();
    return Send(message, type, fds, why) && AwaitAnswer(message.serial, timeout_ns, answer, why);
  }

  template <typename Message>
  bool Send(Message& message, CopierMessageType type, std::span<const int> fds, std::string* why) {
    message.head.magic = kMessageMagic;
    message.head.type = static_cast<uint16_t>(type);
    message.head.size = sizeof message;
    return SendBytes({reinterpret_cast<const uint8_t*>(&message), sizeof message}, fds, why);
  }

  // The next packet, or Wake(), or the end of the connection.
  CopierEvent Await(uint64_t deadline_ns);
  void Wake() const;
  void Shut();  // whoever waits for an answer stops waiting

  [[nodiscard]] Line NextLine();
  // Behind what is enqueued on the stream the copier begins; the stream goes on when `line` is released. With a
  // ContextScope.
  DeviceError TellReady(DeviceStream stream, const Line& line);
  DeviceError Hold(DeviceStream stream, const Line& line);
  void Release(const Line& line) const;
  [[nodiscard]] bool IsReleased(const Line& line) const;  // nothing was written over it

  static constexpr int kEndMs = 2000;  // a killed process needs this long at most, unless its GPU hangs
  void Kill() const;
  // True: nothing of it writes any more, and nothing of ours is open in it.
  [[nodiscard]] bool EndsWithin(int milliseconds) const;
  // Kills it, and waits.
  bool End() const;
  // A pidfd: readable when it has ended.
  [[nodiscard]] std::shared_ptr<const UniqueFd> process() const { return process_; }

 private:
  [[nodiscard]] uint64_t NextSerial() { return ++serials_; }
  [[nodiscard]] GateLine* lines() const { return reinterpret_cast<GatePage*>(page_.data())->lines; }
  bool SendBytes(std::span<const uint8_t> bytes, std::span<const int> fds, std::string* why);
  bool AwaitAnswer(uint64_t serial, uint64_t timeout_ns, CopierAnswer* answer, std::string* why);
  bool Take(const Packet& packet, CopierEvent* event);

  UniqueFd socket_;
  const std::shared_ptr<const UniqueFd> process_;
  UniqueFd wake_;
  std::atomic<bool> shut_{false};
  StreamPage page_;
  uint64_t serials_ = 0;
  uint32_t lines_ = 0;
  Packet packet_;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_COPIER_LINK_H_
