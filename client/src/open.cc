#include "client/src/open.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "client/src/failure.h"

namespace ckptd {
namespace {

constexpr uint64_t kDefaultGateNs = 30'000'000'000;
constexpr char kSystemSocket[] = "/run/ckptd/ckptd.sock";

bool IsJobName(std::string_view name) {
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= 128 && name.find_first_not_of(kAllowed) == name.npos && name != "." &&
         name != "..";
}

std::vector<std::string> Sockets(const char* chosen) {
  if (chosen == nullptr || *chosen == 0) chosen = getenv("CKPTD_SOCKET");
  if (chosen != nullptr && *chosen != 0) return {chosen};
  const char* system = getenv("CKPTD_SYSTEM_SOCKET");  // tests have a system agent of their own
  const bool has_system = system != nullptr && *system != 0;
  std::vector<std::string> sockets = {has_system ? system : kSystemSocket};
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  bool has_runtime = runtime != nullptr && *runtime != 0;
  std::string own = has_runtime ? std::string(runtime) + "/ckptd" : "/tmp/ckptd-" + std::to_string(geteuid());
  sockets.push_back(own + "/ckptd.sock");
  return sockets;
}

}  // namespace

int32_t TakeOptions(const ckpt_options& options, State* state) {
  if (options.job == nullptr || !IsJobName(options.job)) {
    return Fail(code::INVALID_ARGUMENT, "job must be 1 to 128 characters of [A-Za-z0-9._-]");
  }
  if (options.world == 0 || options.world > kMaxRanks || options.rank >= options.world) {
    return Fail(code::INVALID_ARGUMENT, "rank %u of world %u", options.rank, options.world);
  }
  state->job = options.job;
  state->rank = options.rank;
  state->world = options.world;
  state->every = options.every;
  if (options.gpu_path > CKPT_AUTO) return Fail(code::INVALID_ARGUMENT, "gpu_path %u is unknown", options.gpu_path);
  if ((options.flags & ~uint32_t{CKPT_POSTMORTEM | CKPT_RESTART}) != 0) {
    return Fail(code::INVALID_ARGUMENT, "flags 0x%x are unknown", options.flags);
  }
  state->restart = (options.flags & CKPT_RESTART) != 0;
  state->rescue_wanted = (options.flags & CKPT_POSTMORTEM) != 0;
  state->rescue_why = "a copier is being prepared";
  if (state->rescue_wanted) state->lanes.ShareCopies();
  if (options.gpu_path != CKPT_PUSH || state->rescue_wanted) {
    state->pull_wanted = true;
    state->pull.holds_only = options.gpu_path == CKPT_PUSH;
    state->pull.compares = options.gpu_path == CKPT_AUTO;
    state->pull.stage = Pull::Stage::kWaiting;
    if (!state->pull.holds_only) state->pull.why = "a copier is being prepared";
  }
  state->gate_timeout_ns = options.gate_timeout_ns != 0 ? options.gate_timeout_ns : kDefaultGateNs;
  state->sockets = Sockets(options.socket);
  state->wake = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state->wake.valid()) return Fail(code::INTERNAL, "eventfd: %s", strerror(errno));
  return 0;
}

}  // namespace ckptd
