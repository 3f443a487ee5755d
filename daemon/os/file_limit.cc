#include "daemon/os/file_limit.h"

#include <sys/resource.h>

namespace ckptd {

void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // it can go on with less
}

}  // namespace ckptd
