#include "daemon/transport/testing/authority.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ckptd::transport {
namespace {

constexpr char kNewKey[] = " -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes ";

void Openssl(const std::string& dir, const std::string& arguments) {
  const std::string command = absl::StrCat("cd ", dir, " && ", kOpenssl, " ", arguments, " 2>> openssl.log");
  if (std::system(command.c_str()) == 0) return;  // NOLINT(cert-env33-c): of constants
  std::abort();
}

}  // namespace

Authority::Authority(std::string dir, std::string name) : dir_(std::move(dir)), name_(std::move(name)) {
  Openssl(dir_, absl::StrCat("req -x509 ", kNewKey, " -days 2 -subj /CN=", name_, " -keyout ", name_, ".key -out ",
                             name_, ".pem"));
}

// The key first, as credentials.h asks for.
void Authority::Issue(const std::string& file, const std::string& names, int days) const {
  const std::string made = absl::StrCat("new-", file);
  Openssl(dir_, absl::StrCat("req ", kNewKey, " -subj /CN=", file, " -keyout ", made, ".key -out ", made, ".csr"));
  std::ofstream(absl::StrCat(dir_, "/", made, ".ext"))
      << (names.empty() ? "basicConstraints=CA:FALSE" : "subjectAltName=" + names) << "\n";
  Openssl(dir_, absl::StrCat("x509 -req -in ", made, ".csr -CA ", name_, ".pem -CAkey ", name_,
                             ".key -CAcreateserial -days ", days, " -extfile ", made, ".ext -out ", made, ".pem"));
  std::filesystem::rename(key(made), key(file));
  std::filesystem::rename(cert(made), cert(file));
}

TlsOptions Authority::Tls(const std::string& file) const {
  return {TlsMode::kMutual, ca(), cert(file), key(file), std::chrono::seconds(1)};
}

bool HaveOpenssl() { return access(kOpenssl, X_OK) == 0; }

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace ckptd::transport
