// The calls of UCX's libucp that are used here. The library is loaded when it is asked for and never before: it puts
// handlers on signals, hooks into the allocator, and costs memory, which an agent that moves by gRPC is spared.
#ifndef CKPTD_DAEMON_TRANSPORT_UCX_UCP_CALLS_H_
#define CKPTD_DAEMON_TRANSPORT_UCX_UCP_CALLS_H_

#include <ucp/api/ucp.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ckptd::transport {

#define CKPTD_UCP_CALLS(X)          \
  X(ucp_get_version)                \
  X(ucp_config_read)                \
  X(ucp_config_modify)              \
  X(ucp_config_release)             \
  X(ucp_init_version)               \
  X(ucp_cleanup)                    \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_flush_nbx)           \
  X(ucp_worker_progress)            \
  X(ucp_worker_get_efd)             \
  X(ucp_worker_arm)                 \
  X(ucp_worker_set_am_recv_handler) \
  X(ucp_listener_create)            \
  X(ucp_listener_destroy)           \
  X(ucp_listener_query)             \
  X(ucp_listener_reject)            \
  X(ucp_conn_request_query)         \
  X(ucp_ep_create)                  \
  X(ucp_ep_close_nbx)               \
  X(ucp_ep_flush_nbx)               \
  X(ucp_am_send_nbx)                \
  X(ucp_am_recv_data_nbx)           \
  X(ucp_am_data_release)            \
  X(ucp_request_free)               \
  X(ucs_status_string)

struct UcpCalls {
#define CKPTD_UCP_MEMBER(name) decltype(&::name) name = nullptr;
  CKPTD_UCP_CALLS(CKPTD_UCP_MEMBER)
#undef CKPTD_UCP_MEMBER
};

// Loads the library of that path, or the system's where it is empty: once, what was loaded first stays. The handlers of
// signals stay as they were. REFUSED with what is missing.
[[nodiscard]] absl::StatusOr<const UcpCalls*> LoadUcp(const std::string& path);

// AGENT_UNREACHABLE with what UCX says.
[[nodiscard]] absl::Status UcxError(const UcpCalls& ucp, ucs_status_t status, absl::string_view what);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_UCX_UCP_CALLS_H_
