// What threads of the transport may be the last to hold.
#ifndef CKPTD_DAEMON_PROTECT_ON_LOOP_H_
#define CKPTD_DAEMON_PROTECT_ON_LOOP_H_

#include <memory>
#include <utility>

#include "daemon/os/loop.h"

namespace ckptd::protect {

// Whoever lets go of it last, on any thread: `held` goes home first. `loop` outlives it.
inline std::shared_ptr<void> OnLoop(Loop& loop, std::shared_ptr<void> held) {
  auto box = std::make_shared<std::shared_ptr<void>>(std::move(held));
  return {box.get(), [&loop, box](void*) mutable { (void)loop.Post([box] { box->reset(); }); }};
}

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_ON_LOOP_H_
