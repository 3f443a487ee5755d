#include "daemon/transport/ucx/ucx_pair.h"

#include <cstdlib>
#include <iostream>
#include <utility>

#include "daemon/transport/testing/port_pair.h"

namespace ckptd::transport {

std::string TestUcx() {
  const char* const path = std::getenv("CKPTD_TEST_UCX");
  return path == nullptr ? "" : path;
}

std::string WhyNoUcx() {
  static const std::string why = [] {
    UcxPortOptions options;
    options.library = TestUcx();
    options.only_loopback = true;
    const absl::StatusOr<std::unique_ptr<UcxPort>> port = UcxPort::Open(options);
    return port.ok() ? "" : std::string(port.status().message());
  }();
  return why;
}

std::unique_ptr<UcxPort> MustOpenUcx(Nanos hello_patience) {
  UcxPortOptions options;
  options.library = TestUcx();
  options.only_loopback = true;
  options.hello_patience = hello_patience;
  absl::StatusOr<std::unique_ptr<UcxPort>> port = UcxPort::Open(options);
  if (port.ok()) return *std::move(port);
  std::cerr << port.status() << "\n";
  std::abort();
}

FakeBulk::Ends ConnectByUcx(FakeBulkFaults faults) {
  // Gone before UCX's library is, which was there before them.
  static const std::unique_ptr<UcxPort> dials = MustOpenUcx();
  static const std::unique_ptr<UcxPort> serves = MustOpenUcx();
  return ConnectPorts(*dials, *serves, "b", std::move(faults));
}

}  // namespace ckptd::transport
