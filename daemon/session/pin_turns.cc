#include "daemon/session/pin_turns.h"

#include <algorithm>
#include <utility>

namespace ckptd {

bool PinTurns::Ask(const Who& who) {
  if (turn_ && turn_->who == who) return true;
  if (!Waits(who)) waiting_.push_back(who);
  return false;
}

void PinTurns::EndTurn(const Who& who) {
  if (turn_ && turn_->who == who) turn_.reset();
}

void PinTurns::Leave(const Who& who) {
  waiting_.remove(who);
  EndTurn(who);
}

void PinTurns::ProcessEnded(uint64_t process) {
  std::erase_if(waiting_, [process](const Who& who) { return who.process == process; });
  if (turn_ && turn_->who.process == process) turn_.reset();
}

std::optional<PinTurns::Who> PinTurns::Next(Nanos now) {
  if (turn_ && now >= turn_->deadline) turn_.reset();
  if (turn_ || waiting_.empty()) return std::nullopt;
  turn_ = Turn{std::move(waiting_.front()), now + kLongest};
  waiting_.pop_front();
  return turn_->who;
}

std::optional<Nanos> PinTurns::deadline() const { return turn_ ? std::optional<Nanos>(turn_->deadline) : std::nullopt; }

bool PinTurns::Waits(const Who& who) const {
  return std::find(waiting_.begin(), waiting_.end(), who) != waiting_.end();
}

}  // namespace ckptd
