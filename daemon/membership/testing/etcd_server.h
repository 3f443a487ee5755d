// The distribution's etcd as a process of a test: alone, on loopback, in a folder of its own.
#ifndef CKPTD_DAEMON_MEMBERSHIP_TESTING_ETCD_SERVER_H_
#define CKPTD_DAEMON_MEMBERSHIP_TESTING_ETCD_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/membership/testing/process.h"

namespace ckptd::membership {

// /usr/bin/etcd, or what tools/test unpacked into ~/.cache/ckptd; "" where there is none: then a test is skipped, as
// kNoEtcd says.
[[nodiscard]] std::string EtcdProgram();
inline constexpr char kNoEtcd[] =
    "skipped: no etcd: neither /usr/bin/etcd nor unpacked by tools/test (package etcd-server)";

class EtcdServer {
 public:
  // `tls`: further arguments, with certificates; the endpoint is https then.
  explicit EtcdServer(std::vector<std::string> tls = {});
  ~EtcdServer();  // and its data

  void Kill();   // SIGKILL
  void Start();  // with the same data and ports
  void Stop();   // SIGSTOP: what a cut in the network looks like to a client
  void Continue();

  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }  // "http://127.0.0.1:PORT"

 private:
  const std::vector<std::string> tls_;
  std::string dir_;
  std::string endpoint_;
  std::string peer_;
  std::unique_ptr<Process> process_;
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_TESTING_ETCD_SERVER_H_
