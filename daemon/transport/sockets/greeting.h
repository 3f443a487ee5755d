// A connection until its first frame came: connected, both ends agreed (Wire::Shake), MoveHello said by whoever
// dialled. Everything on the port's thread; the port bounds how many there are, and for how long.
#ifndef CKPTD_DAEMON_TRANSPORT_SOCKETS_GREETING_H_
#define CKPTD_DAEMON_TRANSPORT_SOCKETS_GREETING_H_

#include <functional>
#include <memory>
#include <string>

#include "daemon/transport/sockets/frame_reader.h"
#include "daemon/transport/sockets/ready_set.h"
#include "daemon/transport/sockets/wire.h"

namespace ckptd::transport {

// What a greeting brought.
struct SocketGreeted {
  std::unique_ptr<Wire> wire;
  std::string hello;  // the body of the first frame
};

// Whom the dialling end means.
struct SocketMeant {
  std::string cluster;
  std::string peer;
  std::string hello;  // to say to it
};

class SocketGreeting final : public Ready {
 public:
  // Once, on the port's thread. AGENT_UNREACHABLE; PROTOCOL; what the other end's Stop says; what GiveUp says.
  using Over = std::function<void(absl::StatusOr<SocketGreeted>)>;

  [[nodiscard]] static absl::StatusOr<std::shared_ptr<SocketGreeting>> Dialled(std::shared_ptr<ReadySet> set,
                                                                               std::unique_ptr<Wire> wire,
                                                                               SocketMeant meant, Over over);
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<SocketGreeting>> Came(std::shared_ptr<ReadySet> set,
                                                                            std::unique_ptr<Wire> wire, Over over);
  SocketGreeting(std::unique_ptr<Wire> wire, std::unique_ptr<SocketMeant> meant, Over over);

  void GiveUp(const absl::Status& why) { End(why); }

  // Ready.
  void OnReady() override;
  void CutOff() override;

 private:
  enum class Phase { kConnecting, kShaking, kHearing, kOver };

  [[nodiscard]] static absl::StatusOr<std::shared_ptr<SocketGreeting>> Begin(std::shared_ptr<ReadySet> set,
                                                                             std::shared_ptr<SocketGreeting> made);
  [[nodiscard]] absl::Status Step();
  [[nodiscard]] absl::Status Shaken();
  [[nodiscard]] absl::Status Hear();
  [[nodiscard]] absl::StatusOr<std::string> HelloIn(FrameReader::Whole frame) const;
  void End(const absl::Status& why);

  std::unique_ptr<Wire> wire_;
  const std::unique_ptr<SocketMeant> meant_;  // null: it came
  Over over_;
  FrameReader reader_;
  std::unique_ptr<ReadyPlace> place_;
  Phase phase_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_SOCKETS_GREETING_H_
