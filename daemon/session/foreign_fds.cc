#include "daemon/session/foreign_fds.h"

#include <fcntl.h>

#include <utility>

#include "daemon/base/log.h"

namespace ckptd {
namespace {

// Only memory has seals; asking for them asks no file system.
bool IsMemory(const UniqueFd& fd) { return fcntl(fd.get(), F_GET_SEALS) >= 0; }

}  // namespace

bool ForeignFds::KeepMemory(uint32_t uid, std::vector<UniqueFd>* fds) {
  std::vector<UniqueFd> memory;
  for (UniqueFd& fd : *fds) {
    if (IsMemory(fd)) {
      memory.push_back(std::move(fd));
    } else {
      CloseElsewhere(uid, std::move(fd));
    }
  }
  const bool all = memory.size() == fds->size();
  *fds = std::move(memory);
  return all;
}

void ForeignFds::CloseElsewhere(uint32_t uid, UniqueFd fd) {
  {
    MutexLock lock(unclosed_->mutex);
    ++unclosed_->of_user[uid];
  }
  // A worker that never wakes outlives everything but this.
  const int number = fd.Release();
  const bool taken = closer_.Run([unclosed = unclosed_, uid, number] {
    UniqueFd(number).Reset();
    MutexLock lock(unclosed->mutex);
    if (--unclosed->of_user[uid] == 0) unclosed->of_user.erase(uid);
  });
  if (!taken) Log(kError, "session.fd_lost").Field("uid", uint64_t{uid});  // counted for ever, so it happens seldom
}

bool ForeignFds::MayTake(uint32_t uid) const {
  MutexLock lock(unclosed_->mutex);
  const auto found = unclosed_->of_user.find(uid);
  return found == unclosed_->of_user.end() || found->second < kMostUnclosed;
}

}  // namespace ckptd
