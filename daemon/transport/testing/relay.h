// A cable between a client and a server on this machine that a test can cut: whoever connects to it is connected to
// `target`. Frozen, it passes nothing on and closes nothing, as a network does that loses every packet.
#ifndef CKPTD_DAEMON_TRANSPORT_TESTING_RELAY_H_
#define CKPTD_DAEMON_TRANSPORT_TESTING_RELAY_H_

#include <atomic>
#include <optional>
#include <string>

#include "daemon/os/fd.h"
#include "daemon/os/thread.h"

namespace ckptd::transport {

class Relay {
 public:
  explicit Relay(int target_port);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  [[nodiscard]] std::string address() const;
  void Freeze(bool frozen) { frozen_ = frozen; }
  // Everything that stands now; who connects again is connected.
  void Cut() { cut_ = true; }
  // Bytes, both ways.
  [[nodiscard]] uint64_t passed() const { return passed_; }

 private:
  void Run();
  [[nodiscard]] bool Pass(int from, int to);

  const int target_port_;
  int port_ = 0;
  UniqueFd listener_;
  std::atomic<bool> frozen_{false};
  std::atomic<bool> stop_{false};
  std::atomic<bool> cut_{false};
  std::atomic<uint64_t> passed_{0};
  std::optional<Thread> thread_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TESTING_RELAY_H_
