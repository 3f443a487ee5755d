// Who the other nodes are: the membership that [peers] asks for, and what is told of it.
//
// On the loop's thread. Nothing waits for it: an agent that cannot ask its source works on with what it heard last.
#ifndef CKPTD_DAEMON_APP_PEERS_H_
#define CKPTD_DAEMON_APP_PEERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/config/config.h"
#include "daemon/membership/fixed_sources.h"
#include "daemon/membership/membership.h"
#include "daemon/os/files.h"
#include "daemon/os/loop.h"
#include "daemon/os/resolver.h"
#include "daemon/os/thread.h"
#include "proto/ckptd/v1/status.pb.h"

namespace ckptd {

class Peers {
 public:
  // `loop` and `clock` outlive it. `incarnation` is this process' (membership/incarnation.h); 0 = it speaks to nobody.
  // An error is one of the settings: which key, and what it must be.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Peers>> Start(Loop& loop, const Clock& clock, Files& files,
                                                                    const PeersConfig& config, const std::string& node,
                                                                    uint64_t incarnation = 0);
  // The same settings without asking anybody: what --check-config can know.
  [[nodiscard]] static absl::Status Check(const Clock& clock, Files& files, const PeersConfig& config,
                                          const std::string& node);
  ~Peers();  // waits for an open question, seconds where DNS does not answer
  // Says and knows nothing any more. False: a question is still open, and so would the destructor wait.
  [[nodiscard]] bool StopWithin(Nanos patience);

  [[nodiscard]] const membership::Membership& membership() const { return *membership_; }
  [[nodiscard]] membership::Membership& membership() { return *membership_; }
  void Fill(v1::PeersStatus* out) const;
  struct Problem {
    absl::Status what;
    const char* next;
  };
  // A source that does not answer, members that are refused, this node's own standing.
  [[nodiscard]] std::vector<Problem> Problems() const;

 private:
  Peers(const Clock& clock, const PeersConfig& config, uint64_t incarnation)
      : clock_(clock), config_(config), incarnation_(incarnation) {}

  [[nodiscard]] absl::StatusOr<std::unique_ptr<membership::Source>> MakeSource(Loop& loop, Files& files,
                                                                               const std::string& node);
  [[nodiscard]] absl::StatusOr<std::unique_ptr<membership::Source>> MakeDnsSource(Loop& loop,
                                                                                  const membership::Self& self);
  [[nodiscard]] absl::StatusOr<std::unique_ptr<membership::Source>> MakeEtcdSource(Loop& loop, Files& files,
                                                                                   const membership::Self& self);

  const Clock& clock_;
  const PeersConfig config_;
  const uint64_t incarnation_;
  std::unique_ptr<Resolver> resolver_;
  std::unique_ptr<ThreadPool> questions_;  // to DNS servers
  std::unique_ptr<membership::Membership> membership_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_PEERS_H_
