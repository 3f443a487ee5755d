// Lets one trainer of this node at a time have LAYOUT_READY for tensors on GPUs: it pins its memory then, which holds
// up every GPU of the node. Whose turn it is decides daemon/session/pin_turns.h. Control thread only.
#ifndef CKPTD_DAEMON_APP_REGISTRAR_H_
#define CKPTD_DAEMON_APP_REGISTRAR_H_

#include <functional>
#include <map>

#include "daemon/base/clock.h"
#include "daemon/os/loop.h"
#include "daemon/session/pin_turns.h"

namespace ckptd {

class Registrar {
 public:
  using Who = PinTurns::Who;

  Registrar(Loop& loop, const Clock& clock) : loop_(loop), clock_(clock) {}
  ~Registrar();

  // Calls `go` when it is this one's turn, perhaps at once; of several only the last. The turn lasts until EndTurn or
  // Leave, at most PinTurns::kLongest.
  void WhenFree(const Who& who, std::function<void()> go);
  void EndTurn(const Who& who);
  // It gives up its turn and its place.
  void Leave(const Who& who);
  void ProcessEnded(uint64_t process);

  [[nodiscard]] bool Waits(const Who& who) const { return turns_.Waits(who); }

 private:
  void Later();
  void Advance();

  Loop& loop_;
  const Clock& clock_;
  PinTurns turns_;
  std::map<Who, std::function<void()>> waiting_;
  Loop::TimerId timer_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_REGISTRAR_H_
