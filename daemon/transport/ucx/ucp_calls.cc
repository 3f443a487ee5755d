#include "daemon/transport/ucx/ucp_calls.h"

#include <dlfcn.h>
#include <signal.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::transport {
namespace {

constexpr char kLibrary[] = "libucp.so.0";
// 1.13.1 ends the process when a connection over TCP is cut in the middle of a transfer ("tcp_ep.c:939 Assertion
// `ep->flags & UCT_TCP_EP_FLAG_PUT_TX_WAITING_ACK' failed", seen in 4 of 12 runs of transport_copies_test under ASan),
// with TCP_PUT_ENABLE=n too: a peer that dies would take this agent with it.
constexpr unsigned kOldestMinor = 14;  // of 1
constexpr std::array kSignals = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};

absl::Status Missing(absl::string_view what) {
  const char* const why = dlerror();
  return Error(ErrorCode::REFUSED,
               absl::StrCat("UCX cannot be used: ", what, ": ", why == nullptr ? "?" : why,
                            "; install it (package libucx0), name it (peers.ucx_library), or set peers.bulk to grpc"));
}

absl::Status CheckVersion(const UcpCalls& ucp) {
  unsigned major = 0, minor = 0, release = 0;
  ucp.ucp_get_version(&major, &minor, &release);
  if (major > 1 || (major == 1 && minor >= kOldestMinor)) return absl::OkStatus();
  return Error(ErrorCode::REFUSED,
               absl::StrCat("UCX cannot be used: version ", major, ".", minor, ".", release,
                            " ends the whole process when a peer's connection is cut; install 1.", kOldestMinor,
                            " or newer and name it (peers.ucx_library), or set peers.bulk to grpc"));
}

// UCX's own would print a trace and freeze the process; ours, or the system's, do what this agent's owner expects.
class SignalsKept {
 public:
  SignalsKept() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &before_[i]);
  }
  ~SignalsKept() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  SignalsKept(const SignalsKept&) = delete;
  SignalsKept& operator=(const SignalsKept&) = delete;

 private:
  std::array<struct sigaction, kSignals.size()> before_{};
};

absl::StatusOr<UcpCalls> Load(const std::string& path) {
  const SignalsKept kept;
  // Never closed: its exit handlers and hooks outlive every handle.
  const char* const name = path.empty() ? kLibrary : path.c_str();
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Missing(name);
  UcpCalls calls;
#define CKPTD_FIND(name)                                                   \
  calls.name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name)); \
  if (calls.name == nullptr) return Missing(#name);
  CKPTD_UCP_CALLS(CKPTD_FIND)
#undef CKPTD_FIND
  const absl::Status usable = CheckVersion(calls);
  return usable.ok() ? absl::StatusOr<UcpCalls>(calls) : usable;
}

}  // namespace

absl::StatusOr<const UcpCalls*> LoadUcp(const std::string& path) {
  static const absl::StatusOr<UcpCalls>* const loaded = new absl::StatusOr<UcpCalls>(Load(path));
  if (!loaded->ok()) return loaded->status();
  return &**loaded;
}

absl::Status UcxError(const UcpCalls& ucp, ucs_status_t status, absl::string_view what) {
  return Error(ErrorCode::AGENT_UNREACHABLE, absl::StrCat("UCX: ", what, ": ", ucp.ucs_status_string(status)));
}

}  // namespace ckptd::transport
