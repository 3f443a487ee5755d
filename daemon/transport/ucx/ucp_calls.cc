#include "daemon/transport/ucx/ucp_calls.h"

#include <dlfcn.h>
#include <signal.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::transport {
namespace {

constexpr char kLibrary[] = "libucp.so.0";
constexpr std::array kSignals = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};

absl::Status Missing(absl::string_view what) {
  const char* const why = dlerror();
  return Error(ErrorCode::REFUSED, absl::StrCat("UCX cannot be used: ", what, ": ", why == nullptr ? "?" : why,
                                                "; install it (package libucx0), or set peers.bulk to grpc"));
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

absl::StatusOr<UcpCalls> Load() {
  const SignalsKept kept;
  // Never closed: its exit handlers and hooks outlive every handle.
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Missing(kLibrary);
  UcpCalls calls;
#define CKPTD_FIND(name)                                                   \
  calls.name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name)); \
  if (calls.name == nullptr) return Missing(#name);
  CKPTD_UCP_CALLS(CKPTD_FIND)
#undef CKPTD_FIND
  return calls;
}

}  // namespace

absl::StatusOr<const UcpCalls*> LoadUcp() {
  static const absl::StatusOr<UcpCalls>* const loaded = new absl::StatusOr<UcpCalls>(Load());
  if (!loaded->ok()) return loaded->status();
  return &**loaded;
}

absl::Status UcxError(const UcpCalls& ucp, ucs_status_t status, absl::string_view what) {
  return Error(ErrorCode::AGENT_UNREACHABLE, absl::StrCat("UCX: ", what, ": ", ucp.ucs_status_string(status)));
}

}  // namespace ckptd::transport
