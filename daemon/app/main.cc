// ckptd: reads its configuration, starts the agent, and turns signals into calls.
#include <sys/epoll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/app/agent.h"
#include "daemon/app/config_file.h"
#include "daemon/app/health.h"
#include "daemon/app/notify.h"
#include "daemon/app/surface.h"
#include "daemon/base/status_macros.h"
#include "daemon/config/load.h"
#include "daemon/config/reload.h"
#include "daemon/os/file_limit.h"
#include "daemon/os/heap.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/signal.h"

namespace ckptd {
namespace {

constexpr char kHelp[] =
    R"(ckptd: keeps the checkpoints of training jobs on this node, in memory and on storage

  ckptd [--config FILE]        as a system service (default file: /etc/ckptd/ckptd.toml)
  ckptd --user [--config FILE] for one user, without root
  ckptd --check-config         checks the configuration, prints the effective settings
  ckptd --version

SIGTERM flushes (at most agent.drain_timeout) and ends. SIGHUP re-reads the configuration.
Logs go to stderr (journalctl -u ckptd); ckptctl status tells how it is.
)";

struct Flags {
  ConfigFile config;
  bool check = false;
  bool help = false;
  bool version = false;
};

absl::StatusOr<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if (arg == "--user") {
      flags.config.user = true;
    } else if (arg == "--check-config") {
      flags.check = true;
    } else if (arg == "--help" || arg == "-h") {
      flags.help = true;
    } else if (arg == "--version") {
      flags.version = true;
    } else if (arg == "--config" && i + 1 < argc) {
      flags.config.named = argv[++i];
    } else {
      return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("unknown argument ", arg, "; ckptd --help"));
    }
  }
  return flags;
}

Surroundings RealSurroundings() {
  Surroundings out;
  out.environment = [](absl::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  out.uid = std::to_string(geteuid());
  return out;
}

absl::StatusOr<Config> Load(const ConfigFile& file, const Config& defaults) {
  CKPTD_ASSIGN_OR_RETURN(const std::string text, ReadConfigFile(PosixFiles(), file));
  return LoadConfig(text, file.path(), defaults);
}

void Reload(Agent& agent, const ConfigFile& file, const Config& defaults) {
  NotifyReloading();
  auto text = ReadConfigFile(PosixFiles(), file);
  auto reloaded = text.ok() ? ReloadConfig(agent.config(), *text, file.path(), defaults) : text.status();
  if (!reloaded.ok()) {
    Log(kError, "config.reload").Error(reloaded.status());
  } else {
    agent.ApplyConfig(reloaded->config);
    for (const std::string& key : reloaded->applied) Log(kInfo, "config.applied").Field("key", key);
    for (const std::string& key : reloaded->need_restart) Log(kWarning, "config.needs_restart").Field("key", key);
  }
  NotifyReady(StatusLine(agent));
}

absl::Status WatchSignals(Agent& agent, SignalFd& signals, const ConfigFile& file, const Config& defaults) {
  return agent.loop().Watch(signals.fd(), EPOLLIN, [&agent, &signals, &file, &defaults](uint32_t) {
    while (auto signal = signals.Read()) {
      Log(kInfo, "agent.signal").Field("signal", uint64_t(*signal));
      if (*signal == SIGHUP) {
        Reload(agent, file, defaults);
      } else {
        agent.BeginShutdown();
      }
    }
  });
}

int Fail(const absl::Status& status) {
  const ErrorInfo& info = InfoOf(CodeOf(status));
  std::fprintf(stderr, "ckptd: %s\n  next: %s\n", std::string(status.message()).c_str(), info.next_step);
  return info.exit_code;
}

// A worker that hangs in the storage cannot be joined: then the process goes without it, and the region holds what it
// was writing.
int End(Agent& agent, Surface* surface, const absl::Status& status) {
  const int code = status.ok() ? 0 : Fail(status);
  const bool answered = surface == nullptr || surface->Stop();
  if (agent.StopWorkers() && answered) return code;
  agent.LetGo();
  _exit(code);
}

absl::Status Serve(Agent& agent) {
  CKPTD_RETURN_IF_ERROR(agent.Open());
  NotifyReady(StatusLine(agent));
  StartWatchdog(agent.loop(), [&agent] { return StatusLine(agent); });
  Log(kInfo, "agent.ready").Field("socket", agent.config().agent.socket).Field("storage", agent.config().storage.root);
  ReserveHeap();
  CKPTD_RETURN_IF_ERROR(agent.Run());
  bool all = agent.flushed_all();
  Log(all ? kInfo : kWarning, "agent.end").Field("flushed", all ? "all" : "not all: memory still holds the rest");
  return absl::OkStatus();
}

absl::StatusOr<int> RunAgent(const ConfigFile& file, Config config, const Config& defaults) {
  SetLogLevel(config.agent.log_level);
  RaiseFileLimit();
  CKPTD_ASSIGN_OR_RETURN(auto signals, SignalFd::Create({SIGTERM, SIGINT, SIGHUP}));
  CKPTD_ASSIGN_OR_RETURN(auto agent, Agent::Start(std::move(config), PosixFiles(), SystemClock()));
  absl::Status watched = WatchSignals(*agent, signals, file, defaults);
  if (!watched.ok()) return End(*agent, nullptr, watched);
  auto surface = Surface::Start(*agent);
  if (!surface.ok()) return End(*agent, nullptr, surface.status());
  return End(*agent, surface->get(), Serve(*agent));
}

int Check(const Config& config) {
  absl::Status peers = Peers::Check(SystemClock(), PosixFiles(), config.peers, NodeName(config));
  if (!peers.ok()) return Fail(peers);
  return std::fputs(PrintConfig(config).c_str(), stdout), 0;
}

int Main(int argc, char** argv) {
  ShareHeap();
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // it has lines of its own for each handshake of a peer
  auto flags = ParseFlags(argc, argv);
  if (!flags.ok()) return Fail(flags.status());
  if (flags->help) return std::fputs(kHelp, stdout), 0;
  if (flags->version) return std::printf("ckptd %s\n", kVersion), 0;
  Defaults defaults = DefaultConfig(flags->config.user ? ConfigMode::kUser : ConfigMode::kSystem, RealSurroundings());
  auto config = Load(flags->config, defaults.config);
  if (!config.ok()) return Fail(config.status());
  if (flags->check) return Check(*config);
  for (const std::string& note : defaults.notes) Log(kWarning, "config.note").Field("text", note);
  auto ran = RunAgent(flags->config, *std::move(config), defaults.config);
  return ran.ok() ? *ran : Fail(ran.status());
}

}  // namespace
}  // namespace ckptd

int main(int argc, char** argv) { return ckptd::Main(argc, argv); }
