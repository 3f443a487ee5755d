// The bytes of one connection over a non-blocking socket: no call waits. plain_wire.h has them as they are, and
// tls/tls_wire.h encrypted.
//
// One thread at a time, but for CutOff.
#ifndef CKPTD_DAEMON_TRANSPORT_SOCKETS_WIRE_H_
#define CKPTD_DAEMON_TRANSPORT_SOCKETS_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/os/fd.h"
#include "daemon/transport/identity.h"

namespace ckptd::transport {

class Wire {
 public:
  enum class Side { kDialled, kCame };
  explicit Wire(UniqueFd fd) : fd_(std::move(fd)) {}
  virtual ~Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // First, until it says true. AGENT_UNREACHABLE: the two ends come to no agreement.
  [[nodiscard]] virtual absl::StatusOr<bool> Shake() = 0;
  // After that: of the other end's certificate, which was verified. Nothing: this way knows none.
  [[nodiscard]] virtual std::optional<CertificateNames> names() const = 0;
  // So many bytes as are there now; 0: none, or none any more (read_over).
  [[nodiscard]] virtual size_t Read(std::span<std::byte> into) = 0;
  // Takes as many as the kernel does, and maybe a little more: 0 when it takes none now, or none any more (mute).
  // `more`: others follow at once.
  [[nodiscard]] virtual size_t Write(std::span<const std::byte> from, bool more) = 0;
  // Whether SendFile is of use: the kernel takes the bytes of a file by itself, without a copy.
  [[nodiscard]] virtual bool sends_files() const { return false; }
  // As Write. CORRUPT: the file has none there any more; those of the call.
  [[nodiscard]] virtual absl::StatusOr<size_t> SendFile(int fd, uint64_t offset, size_t bytes);
  // True: the kernel has everything that was taken.
  virtual bool Flush() = 0;
  // After the last Write: the other end hears that nothing more comes.
  virtual void EndWrites() = 0;
  // EPOLLIN, EPOLLOUT: what it waits for, if somebody waits.
  [[nodiscard]] virtual uint32_t waits_for() const = 0;

  [[nodiscard]] bool read_over() const { return read_over_; }
  // "", or ": " and what is said of that end.
  [[nodiscard]] const std::string& why_over() const { return why_over_; }
  [[nodiscard]] bool mute() const { return mute_; }
  [[nodiscard]] int fd() const { return fd_.get(); }

  // Any thread: nothing comes or goes any more but what the kernel has.
  void CutOff() const;

 protected:
  // What was said of a call of the socket: true, it would have waited.
  [[nodiscard]] static bool WouldBlock(int error);
  void GiveUp();

  bool read_over_ = false;
  std::string why_over_;
  bool mute_ = false;

 private:
  const UniqueFd fd_;
};

// Makes the wires of a port. One thread.
class Wires {
 public:
  virtual ~Wires() = default;
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<Wire>> Make(UniqueFd fd, Wire::Side side, Nanos now) = 0;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_SOCKETS_WIRE_H_
