// The bytes of one TLS connection over a non-blocking socket: no call waits. What is written is encrypted record by
// record into a buffer and given to the kernel many records at a time; what is read is decrypted from as many records
// as one read of the socket brought.
//
// One thread at a time, but for CutOff.
#ifndef CKPTD_DAEMON_TRANSPORT_TLS_TLS_WIRE_H_
#define CKPTD_DAEMON_TRANSPORT_TLS_TLS_WIRE_H_

#include <openssl/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/os/fd.h"
#include "daemon/transport/identity.h"

namespace ckptd::transport {

class TlsWire {
 public:
  enum class Side { kDialled, kCame };
  // A key is good for 2^24.5 full records (RFC 8446, 5.5): long before that a new one is taken.
  static constexpr uint64_t kRekeyBytes = uint64_t{64} << 30;

  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TlsWire>> Make(UniqueFd fd,
                                                                     const std::shared_ptr<SSL_CTX>& context, Side side,
                                                                     uint64_t rekey_bytes = kRekeyBytes);
  TlsWire(UniqueFd fd, uint64_t rekey_bytes) : fd_(std::move(fd)), rekey_bytes_(rekey_bytes) {}
  ~TlsWire();
  TlsWire(const TlsWire&) = delete;
  TlsWire& operator=(const TlsWire&) = delete;

  // First, until it says true. AGENT_UNREACHABLE: the other end speaks no TLS 1.3, or one does not believe the other.
  [[nodiscard]] absl::StatusOr<bool> Shake();
  // After that.
  [[nodiscard]] CertificateNames names() const;
  // So many bytes as are there now; 0: none, or none any more (read_over).
  [[nodiscard]] size_t Read(std::span<std::byte> into);
  // Takes as many as the kernel does, and a little more: 0 when it takes none now, or none any more (mute).
  [[nodiscard]] size_t Write(std::span<const std::byte> from);
  // True: the kernel has everything that was taken.
  bool Flush();
  // After the last Write: the other end hears that nothing more comes.
  void EndWrites();

  [[nodiscard]] bool read_over() const { return read_over_; }
  // "", or ": " and what TLS says of that end.
  [[nodiscard]] const std::string& why_over() const { return why_over_; }
  [[nodiscard]] bool mute() const { return mute_; }
  // EPOLLIN, EPOLLOUT: what it waits for, if somebody waits.
  [[nodiscard]] uint32_t waits_for() const;
  [[nodiscard]] int fd() const { return fd_.get(); }

  // Any thread: nothing comes or goes any more but what the kernel has.
  void CutOff() const;

 private:
  friend struct TlsWireBio;
  void GiveUp();
  [[nodiscard]] size_t Unsent() const { return out_.size() - sent_; }

  const UniqueFd fd_;
  const uint64_t rekey_bytes_;
  SSL* ssl_ = nullptr;
  std::vector<std::byte> out_;  // encrypted
  size_t sent_ = 0;             // of out_
  uint64_t under_key_ = 0;      // bytes
  bool read_over_ = false;
  std::string why_over_;
  bool mute_ = false;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TLS_TLS_WIRE_H_
