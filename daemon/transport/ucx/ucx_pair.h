// Both ends of a bulk connection over UCX inside this process, with the faults of fake_bulk.h.
#ifndef CKPTD_DAEMON_TRANSPORT_UCX_UCX_PAIR_H_
#define CKPTD_DAEMON_TRANSPORT_UCX_UCX_PAIR_H_

#include <memory>
#include <string>

#include "daemon/transport/testing/fake_bulk.h"
#include "daemon/transport/ucx/ucx_port.h"

namespace ckptd::transport {

// $CKPTD_TEST_UCX: a library newer than the system's, which tools/test fetches where that one is refused. Or empty.
[[nodiscard]] std::string TestUcx();

// Empty: UCX is installed and works here. Else why not, to skip a test with.
[[nodiscard]] std::string WhyNoUcx();

// Of loopback alone. Ends the process when there is none: ask WhyNoUcx first.
[[nodiscard]] std::unique_ptr<UcxPort> MustOpenUcx(Nanos hello_patience = std::chrono::seconds(5));

// Between two ports that live as long as the process.
[[nodiscard]] FakeBulk::Ends ConnectByUcx(FakeBulkFaults faults = {});

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_UCX_UCX_PAIR_H_
