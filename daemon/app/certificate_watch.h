// Until when this node's certificates last, read out of the files once a minute: status, metrics and, from 30 days
// before the end, the log tell it. gRPC and TLS take new files by themselves (transport/credentials.h).
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
  // Those that could be read last.
  [[nodiscard]] const std::vector<End>& ends() const { return ends_; }
  [[nodiscard]] int64_t SecondsLeft(const End& end) const;
  void Fill(v1::PeersStatus* out) const;
  // Of those that end within 7 days.
  [[nodiscard]] std::vector<Peers::Problem> Problems() const;

 private:
  void Look();
  void Take(std::vector<End> ends);
  [[nodiscard]] absl::Status Told(const End& end) const;

  Loop& loop_;
  const Clock& clock_;
  Files& files_;
  Executor& reading_;
  std::vector<End> asked_;  // without their ends
  std::vector<End> ends_;
  std::map<std::string, EndingAlarm> alarms_;  // by key
  std::optional<Loop::TimerId> timer_;
  CallbackScope scope_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_CERTIFICATE_WATCH_H_
