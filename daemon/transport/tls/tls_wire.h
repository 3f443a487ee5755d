// The bytes of one TLS connection: what is written is encrypted record by record into a buffer and given to the kernel
// many records at a time; what is read is decrypted from as many records as one read of the socket brought. The end of
// what is sent is TLS's close_notify; an end without it counts as a cut.
#ifndef CKPTD_DAEMON_TRANSPORT_TLS_TLS_WIRE_H_
#define CKPTD_DAEMON_TRANSPORT_TLS_TLS_WIRE_H_

#include <openssl/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/os/fd.h"
#include "daemon/transport/identity.h"
#include "daemon/transport/sockets/wire.h"

namespace ckptd::transport {

class TlsWire final : public Wire {
 public:
  // A key is good for 2^24.5 full records (RFC 8446, 5.5): long before that a new one is taken.
  static constexpr uint64_t kRekeyBytes = uint64_t{64} << 30;

  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Wire>> Make(UniqueFd fd, const std::shared_ptr<SSL_CTX>& context,
                                                                  Side side, uint64_t rekey_bytes = kRekeyBytes);
  TlsWire(UniqueFd fd, uint64_t rekey_bytes) : Wire(std::move(fd)), rekey_bytes_(rekey_bytes) {}
  ~TlsWire() override;

  // AGENT_UNREACHABLE: the other end speaks no TLS 1.3, or one does not believe the other.
  [[nodiscard]] absl::StatusOr<bool> Shake() override;
  [[nodiscard]] std::optional<CertificateNames> names() const override;
  [[nodiscard]] size_t Read(std::span<std::byte> into) override;
  [[nodiscard]] size_t Write(std::span<const std::byte> from, bool more) override;
  bool Flush() override;
  void EndWrites() override;
  [[nodiscard]] uint32_t waits_for() const override;

 private:
  friend struct TlsWireBio;
  [[nodiscard]] size_t Unsent() const { return out_.size() - sent_; }

  const uint64_t rekey_bytes_;
  SSL* ssl_ = nullptr;
  std::vector<std::byte> out_;  // encrypted
  size_t sent_ = 0;             // of out_
  uint64_t under_key_ = 0;      // bytes
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TLS_TLS_WIRE_H_
