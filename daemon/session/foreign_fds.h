// Descriptors that trainers sent. close() of a file on FUSE or NFS asks the file's server and sleeps until that
// answers, which it may never do; so only memory, which nobody has to be asked about, is closed on the loop's thread.
// All else is refused anyway, and closed on a thread of its own.
//
// When that thread sleeps, the others' wait behind it. From a user with some that wait no descriptor is taken any more:
// the kernel drops those without asking anybody.
#ifndef CKPTD_DAEMON_SESSION_FOREIGN_FDS_H_
#define CKPTD_DAEMON_SESSION_FOREIGN_FDS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "daemon/base/executor.h"
#include "daemon/base/mutex.h"
#include "daemon/os/fd.h"

namespace ckptd {

class ForeignFds {
 public:
  static constexpr size_t kMostUnclosed = 4;  // of a user; a packet may bring a few more

  explicit ForeignFds(Executor& closer) : closer_(closer) {}

  // Takes away what is not memory. False: there was such.
  [[nodiscard]] bool KeepMemory(uint32_t uid, std::vector<UniqueFd>* fds);
  [[nodiscard]] bool MayTake(uint32_t uid) const;

 private:
  struct Unclosed {
    Mutex mutex;
    std::map<uint32_t, size_t> of_user CKPTD_GUARDED_BY(mutex);
  };
  void CloseElsewhere(uint32_t uid, UniqueFd fd);

  Executor& closer_;
  const std::shared_ptr<Unclosed> unclosed_ = std::make_shared<Unclosed>();
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_SESSION_FOREIGN_FDS_H_
