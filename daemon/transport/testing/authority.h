// Certificates for a test, made by the openssl program: an authority, and what it signs.
#ifndef CKPTD_DAEMON_TRANSPORT_TESTING_AUTHORITY_H_
#define CKPTD_DAEMON_TRANSPORT_TESTING_AUTHORITY_H_

#include <string>

#include "daemon/transport/tls_options.h"

namespace ckptd::transport {

inline constexpr char kOpenssl[] = "/usr/bin/openssl";

class Authority {
 public:
  // Files in `dir`, which is there and stays.
  Authority(std::string dir, std::string name);

  // A certificate with these names ("URI:spiffe://ml/ckptd/n1", "DNS:n1"; "" = none) and its key, in `file`.pem and
  // `file`.key; over those that are there, by rename. A negative number of days: it was over before it began.
  void Issue(const std::string& file, const std::string& names, int days = 2) const;

  [[nodiscard]] std::string ca() const { return dir_ + "/" + name_ + ".pem"; }
  [[nodiscard]] std::string cert(const std::string& file) const { return dir_ + "/" + file + ".pem"; }
  [[nodiscard]] std::string key(const std::string& file) const { return dir_ + "/" + file + ".key"; }
  [[nodiscard]] TlsOptions Tls(const std::string& file) const;

 private:
  const std::string dir_;
  const std::string name_;
};

[[nodiscard]] bool HaveOpenssl();
[[nodiscard]] std::string TextOf(const std::string& path);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TESTING_AUTHORITY_H_
