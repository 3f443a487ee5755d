// A connection of plain TCP: nothing is encrypted, nobody is asked who he is. What is sent of a file is taken by the
// kernel out of the page cache (sendfile(2)), so it is copied once, by whoever receives it.
#ifndef CKPTD_DAEMON_TRANSPORT_SOCKETS_PLAIN_WIRE_H_
#define CKPTD_DAEMON_TRANSPORT_SOCKETS_PLAIN_WIRE_H_

#include <sys/types.h>

#include "daemon/transport/sockets/wire.h"

namespace ckptd::transport {

class PlainWire final : public Wire {
 public:
  using Wire::Wire;

  [[nodiscard]] absl::StatusOr<bool> Shake() override { return true; }
  [[nodiscard]] std::optional<CertificateNames> names() const override { return std::nullopt; }
  [[nodiscard]] size_t Read(std::span<std::byte> into) override;
  [[nodiscard]] size_t Write(std::span<const std::byte> from, bool more) override;
  [[nodiscard]] bool sends_files() const override { return true; }
  [[nodiscard]] absl::StatusOr<size_t> SendFile(int fd, uint64_t offset, size_t bytes) override;
  bool Flush() override { return true; }
  void EndWrites() override;
  [[nodiscard]] uint32_t waits_for() const override;

 private:
  bool full_ = false;  // the kernel took less than there was
};

class PlainWires final : public Wires {
 public:
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Wire>> Make(UniqueFd fd, Wire::Side, Nanos) override {
    return std::make_unique<PlainWire>(std::move(fd));
  }
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_SOCKETS_PLAIN_WIRE_H_
