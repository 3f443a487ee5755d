// Both ends of a bulk connection between two ports inside this process, with the faults of fake_bulk.h.
#ifndef CKPTD_DAEMON_TRANSPORT_TESTING_PORT_PAIR_H_
#define CKPTD_DAEMON_TRANSPORT_TESTING_PORT_PAIR_H_

#include <string>

#include "daemon/transport/bulk_port.h"
#include "daemon/transport/testing/fake_bulk.h"

namespace ckptd::transport {

// Over 127.0.0.1; the end that dialled comes first. Takes `serves` for itself. Ends the process when they cannot be
// connected.
[[nodiscard]] FakeBulk::Ends ConnectPorts(BulkPort& dials, BulkPort& serves, const std::string& peer,
                                          FakeBulkFaults faults = {});

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TESTING_PORT_PAIR_H_
