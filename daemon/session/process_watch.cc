#include "daemon/session/process_watch.h"

#include <sys/epoll.h>

#include <utility>

#include "daemon/base/errors.h"

namespace ckptd {

ProcessWatch::~ProcessWatch() {
  for (const auto& [process, pidfd] : watched_) loop_.Unwatch(pidfd.get());
}

absl::Status ProcessWatch::Watch(const ProcessId& process, UniqueFd pidfd) {
  if (watched_.contains(process)) return absl::OkStatus();
  if (!pidfd.valid()) {
    auto opened = OpenProcess(process);
    if (CodeOf(opened.status()) == ErrorCode::NOT_FOUND) {
      loop_.After(Nanos(0), [this, process] { on_dead_(process); });
      return absl::OkStatus();
    }
    if (!opened.ok()) return opened.status();
    pidfd = *std::move(opened);
  }
  absl::Status status = loop_.Watch(pidfd.get(), EPOLLIN, [this, process](uint32_t) { Report(process); });
  if (status.ok()) watched_.emplace(process, std::move(pidfd));
  return status;
}

void ProcessWatch::Report(const ProcessId& process) {
  auto found = watched_.find(process);
  if (found == watched_.end()) return;
  loop_.Unwatch(found->second.get());
  watched_.erase(found);
  on_dead_(ProcessId(process));
}

}  // namespace ckptd
