// A little DNS server on loopback, UDP and TCP, for tests: it answers from a table that the test changes as it goes,
// and in all the wrong ways that a test asks for.
#ifndef CKPTD_DAEMON_MEMBERSHIP_TESTING_DNS_SERVER_H_
#define CKPTD_DAEMON_MEMBERSHIP_TESTING_DNS_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/mutex.h"
#include "daemon/os/fd.h"
#include "daemon/os/thread.h"

namespace ckptd::membership {

inline constexpr uint16_t kDnsA = 1;
inline constexpr uint16_t kDnsAaaa = 28;
inline constexpr uint16_t kDnsSrv = 33;

// The data of a record.
[[nodiscard]] std::string AddressData(const std::string& ip);  // 4 or 16 bytes
[[nodiscard]] std::string SrvData(const std::string& target, uint16_t port);

class DnsServer {
 public:
  enum Manner {
    kProper,   // over UDP cut and marked so when it is longer than 512 bytes, over TCP whole
    kSilent,   // takes questions, answers nothing
    kFailing,  // SERVFAIL
    kCut,      // says that it is cut, and closes TCP without an answer
    kAlias,    // an alias without what it stands for
    kGarbage,  // an answer whose counts promise more records than it has
    kStrange,  // another question's answer, with another id
  };

  DnsServer();
  ~DnsServer();

  [[nodiscard]] std::string address() const;  // "127.0.0.1:PORT"
  // Names in lower case. A name that has no records of any type does not exist.
  void Set(const std::string& name, uint16_t type, std::vector<std::string> data) CKPTD_EXCLUDES(mutex_);
  void Behave(Manner manner) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] int questions() CKPTD_EXCLUDES(mutex_);

 private:
  void Serve() CKPTD_EXCLUDES(mutex_);
  void ServeUdp() CKPTD_EXCLUDES(mutex_);
  void ServeTcp() CKPTD_EXCLUDES(mutex_);
  // Empty: says nothing.
  std::string AnswerTo(const std::string& question, bool tcp) CKPTD_EXCLUDES(mutex_);

  Mutex mutex_;
  std::map<std::string, std::map<uint16_t, std::vector<std::string>>> records_ CKPTD_GUARDED_BY(mutex_);
  Manner manner_ CKPTD_GUARDED_BY(mutex_) = kProper;
  int questions_ CKPTD_GUARDED_BY(mutex_) = 0;
  UniqueFd udp_;
  UniqueFd tcp_;
  UniqueFd stop_;
  uint16_t port_ = 0;
  std::unique_ptr<Thread> thread_;
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_TESTING_DNS_SERVER_H_
