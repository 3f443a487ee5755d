// An agent's links as a test has them: GrpcLinks on 127.0.0.1 with a loop and a thread of their own, and a membership
// that the test writes.
#ifndef CKPTD_DAEMON_TRANSPORT_TESTING_TEST_NODE_H_
#define CKPTD_DAEMON_TRANSPORT_TESTING_TEST_NODE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/mutex.h"
#include "daemon/os/loop.h"
#include "daemon/os/thread.h"
#include "daemon/transport/grpc_links.h"

namespace ckptd::transport {

inline constexpr char kTestCluster[] = "ml";
inline constexpr std::chrono::seconds kLong{30};

class TestNode final : private LinkSink {
 public:
  struct Options {
    std::string name;
    TlsOptions tls{TlsMode::kPlaintextOnLoopback, "", "", ""};
    uint64_t generation = 1;
    std::string host = "127.0.0.1";
    int port = 0;
    Nanos hello_patience = std::chrono::seconds(5);
    std::chrono::milliseconds longest_connection = std::chrono::hours(1);
    CopyHost* copy_host = nullptr;
    BulkPort* bulk = nullptr;  // outlives it
    bool measures = false;
    size_t moves_out = 4;
    size_t moves_in = 4;
    // A membership's instead of `fence` (SetPeers), on the node's loop.
    std::function<absl::Status(const std::string& name, uint64_t generation)> admit = nullptr;
    std::function<absl::Status(const std::string& name, uint64_t generation)> would_admit = nullptr;
  };
  explicit TestNode(Options options);
  ~TestNode() override;

  [[nodiscard]] const std::string& name() const { return options_.name; }
  [[nodiscard]] std::string agent() const { return options_.name + "-agent"; }
  [[nodiscard]] std::string address() const;
  [[nodiscard]] PeerNode node() const { return {name(), address()}; }

  // Its membership: who else there is, and from which generation on they are believed.
  void SetPeers(std::vector<PeerNode> peers, std::map<std::string, uint64_t> fence = {});
  void SetSelf(uint64_t generation, const absl::Status& status);
  [[nodiscard]] absl::Status Send(const std::string& peer, const LinkMessage& message);
  [[nodiscard]] absl::Status SendFloor(const std::string& peer, const std::string& job, uint64_t floor,
                                       size_t padding = 0);

  [[nodiscard]] PeerCondition Condition(const std::string& peer);
  [[nodiscard]] bool UntilCondition(const std::string& peer, const std::function<bool(const PeerCondition&)>& fits,
                                    Nanos patience = kLong);
  [[nodiscard]] bool UntilConnected(const std::string& peer);
  // "PEER JOB FLOOR" of each message that came, in order.
  [[nodiscard]] std::vector<std::string> Received();
  [[nodiscard]] bool UntilReceived(const std::string& message, Nanos patience = kLong);
  // Its loop does nothing until it is let go on.
  void Hold();
  void LetGo();
  // Within Do.
  [[nodiscard]] CopyCalls& copies() { return links_->copies(); }
  // On its loop's thread; returns when it has run.
  void Do(const std::function<void()>& work);

 private:
  void Received(const std::string& peer, const LinkMessage& message) override;
  [[nodiscard]] absl::Status Admit(const std::string& name, uint64_t generation) const;

  Options options_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<GrpcLinks> links_;
  SelfStanding self_;                      // the loop's thread
  std::map<std::string, uint64_t> fence_;  // the loop's thread
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> received_ CKPTD_GUARDED_BY(mutex_);
  bool held_ CKPTD_GUARDED_BY(mutex_) = false;
  std::optional<Thread> thread_;
};

[[nodiscard]] LinkMessage StateOf(const std::string& job, const std::string& coordinator, uint64_t floor,
                                  size_t padding = 0);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TESTING_TEST_NODE_H_
