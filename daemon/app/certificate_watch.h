// Until when this node's certificates last, read out of the files every 10 s: status, metrics and, from 30 days before
// the end, the log tell it. gRPC and TLS take new files by themselves (transport/credentials.h), and silently go on
// with those from before, or make no connection, where they cannot: a file that is no good is a problem here, and until
// it is mended the end that was read last holds.
//
// Control thread only.
#ifndef CKPTD_DAEMON_APP_CERTIFICATE_WATCH_H_
#define CKPTD_DAEMON_APP_CERTIFICATE_WATCH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/app/peers.h"
#include "daemon/base/callback_scope.h"
#include "daemon/base/clock.h"
#include "daemon/base/executor.h"
#include "daemon/config/config.h"
#include "daemon/os/files.h"
#include "daemon/os/loop.h"
#include "proto/ckptd/v1/status.pb.h"

namespace ckptd {

// When to say that something ends. Pure.
class EndingAlarm {
 public:
  // True: now. From 30 days before the end once a day; at once, too, when 7 days, 1 day or nothing is left.
  [[nodiscard]] bool Due(int64_t seconds_left, Nanos now);

 private:
  int stage_ = 0;
  Nanos said_{0};
};

class CertificateWatch {
 public:
  struct End {
    std::string key;  // of the configuration
    std::string file;
    int64_t unix_seconds = 0;  // the last one
  };

  // All outlive it. `reading` carries away what blocks.
  CertificateWatch(Loop& loop, const Clock& clock, Files& files, Executor& reading, const PeersConfig& config);
  ~CertificateWatch();

  // Once.
  void Start();
  // Each as it was when all was good with it last.
  [[nodiscard]] const std::vector<End>& ends() const { return ends_; }
  [[nodiscard]] int64_t SecondsLeft(const End& end) const;
  void Fill(v1::PeersStatus* out) const;
  // Of those that end within 7 days, and of those that are no good.
  [[nodiscard]] std::vector<Peers::Problem> Problems() const;

 private:
  // What the configuration names.
  struct Asked {
    std::string key;
    std::string file;
    std::string key_of_private;  // of its private key; empty for authorities
    std::string private_file;
  };
  struct Seen {
    std::string key;
    std::string file;
    absl::StatusOr<int64_t> end;
  };
  struct Trouble {
    absl::Status why;
    bool certain = false;
    Nanos said{0};
  };

  [[nodiscard]] static absl::StatusOr<int64_t> ReadEnd(Files& files, const Asked& asked);
  void Look();
  void Take(const std::vector<Seen>& all);
  void TakeGood(const End& end);
  void TakeBad(const std::string& key, const absl::Status& why);
  [[nodiscard]] absl::Status Told(const End& end) const;

  Loop& loop_;
  const Clock& clock_;
  Files& files_;
  Executor& reading_;
  std::vector<Asked> asked_;
  std::vector<End> ends_;
  std::map<std::string, EndingAlarm> alarms_;  // by key
  std::map<std::string, Trouble> troubles_;    // by key
  std::optional<Loop::TimerId> timer_;
  CallbackScope scope_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_CERTIFICATE_WATCH_H_
