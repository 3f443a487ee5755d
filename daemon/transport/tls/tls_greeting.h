// A connection until its first frame came: connected, both certificates shown and believed, MoveHello said by whoever
// dialled. Everything on the port's thread; the port bounds how many there are, and for how long.
#ifndef CKPTD_DAEMON_TRANSPORT_TLS_TLS_GREETING_H_
#define CKPTD_DAEMON_TRANSPORT_TLS_TLS_GREETING_H_

#include <functional>
#include <memory>
#include <string>

#include "daemon/transport/tls/frame_reader.h"
#include "daemon/transport/tls/ready_set.h"
#include "daemon/transport/tls/tls_wire.h"

namespace ckptd::transport {

// What a greeting brought.
struct TlsGreeted {
  std::unique_ptr<TlsWire> wire;
  std::string hello;  // the body of the first frame
};

// Whom the dialling end means.
struct TlsMeant {
  std::string cluster;
  std::string peer;
  std::string hello;  // to say to it
};

class TlsGreeting final : public Ready {
 public:
  // Once, on the port's thread. AGENT_UNREACHABLE; PROTOCOL; what the other end's Stop says; what GiveUp says.
  using Over = std::function<void(absl::StatusOr<TlsGreeted>)>;

  [[nodiscard]] static absl::StatusOr<std::shared_ptr<TlsGreeting>> Dialled(std::shared_ptr<ReadySet> set,
                                                                            std::unique_ptr<TlsWire> wire,
                                                                            TlsMeant meant, Over over);
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<TlsGreeting>> Came(std::shared_ptr<ReadySet> set,
                                                                         std::unique_ptr<TlsWire> wire, Over over);
  TlsGreeting(std::unique_ptr<TlsWire> wire, std::unique_ptr<TlsMeant> meant, Over over);

  void GiveUp(const absl::Status& why) { End(why); }

  // Ready.
  void OnReady() override;
  void CutOff() override;

 private:
  enum class Phase { kConnecting, kShaking, kHearing, kOver };

  [[nodiscard]] static absl::StatusOr<std::shared_ptr<TlsGreeting>> Begin(std::shared_ptr<ReadySet> set,
                                                                          std::shared_ptr<TlsGreeting> made);
  [[nodiscard]] absl::Status Step();
  [[nodiscard]] absl::Status Shaken();
  [[nodiscard]] absl::Status Hear();
  [[nodiscard]] absl::StatusOr<std::string> HelloIn(FrameReader::Whole frame) const;
  void End(const absl::Status& why);

  std::unique_ptr<TlsWire> wire_;
  const std::unique_ptr<TlsMeant> meant_;  // null: it came
  Over over_;
  FrameReader reader_;
  std::unique_ptr<ReadyPlace> place_;
  Phase phase_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TLS_TLS_GREETING_H_
