// Pinning memory holds up every GPU of the node, so trainers do it one after the other: a turn begins with LAYOUT_READY
// and ends with DEVICES, with the trainer, or when it took too long. Pure bookkeeping, one thread; time is given.
#ifndef CKPTD_DAEMON_SESSION_PIN_TURNS_H_
#define CKPTD_DAEMON_SESSION_PIN_TURNS_H_

#include <compare>
#include <cstdint>
#include <list>
#include <optional>
#include <string>

#include "daemon/base/clock.h"
#include "daemon/base/ids.h"

namespace ckptd {

class PinTurns {
 public:
  // One rank in one process.
  struct Who {
    uint64_t process = 0;
    std::string job;
    Rank rank = 0;
    auto operator<=>(const Who&) const = default;
  };

  static constexpr Nanos kLongest = std::chrono::seconds(60);

  // Takes a place at the end, unless it has one. True: it is its turn already, which does not become longer by this.
  [[nodiscard]] bool Ask(const Who& who);
  // It has pinned. A place that it has in the queue stays its own.
  void EndTurn(const Who& who);
  // It needs no turn (any more).
  void Leave(const Who& who);
  void ProcessEnded(uint64_t process);
  // Whose turn begins now; nullopt when it is somebody's still, or nobody waits.
  [[nodiscard]] std::optional<Who> Next(Nanos now);

  // When the present turn ends at the latest; nullopt when there is none.
  [[nodiscard]] std::optional<Nanos> deadline() const;
  [[nodiscard]] bool Waits(const Who& who) const;

 private:
  struct Turn {
    Who who;
    Nanos deadline;
  };

  std::list<Who> waiting_;
  std::optional<Turn> turn_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_SESSION_PIN_TURNS_H_
