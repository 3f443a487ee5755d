#include "daemon/app/registrar.h"

#include <utility>

#include "daemon/base/log.h"

namespace ckptd {

Registrar::~Registrar() {
  if (timer_ != 0) loop_.CancelTimer(timer_);
}

void Registrar::WhenFree(const Who& who, std::function<void()> go) {
  if (turns_.Ask(who)) return go();
  waiting_[who] = std::move(go);
  Advance();
}

void Registrar::EndTurn(const Who& who) {
  turns_.EndTurn(who);
  Later();
}

void Registrar::Leave(const Who& who) {
  turns_.Leave(who);
  waiting_.erase(who);
  Later();
}

void Registrar::ProcessEnded(uint64_t process) {
  turns_.ProcessEnded(process);
  std::erase_if(waiting_, [process](const auto& each) { return each.first.process == process; });
  Later();
}

// From the loop: who leaves may be in the middle of effects that others' LAYOUT_READY would get into.
void Registrar::Later() {
  if (waiting_.empty()) return;
  if (timer_ != 0) loop_.CancelTimer(timer_);
  timer_ = loop_.After(Nanos(0), [this] { Advance(); });
}

void Registrar::Advance() {
  if (timer_ != 0) loop_.CancelTimer(std::exchange(timer_, 0));
  if (auto next = turns_.Next(clock_.Monotonic())) {
    auto waiter = waiting_.extract(*next);
    Log(kDebug, "gpu.pin_turn").Job(next->job).Rank(next->rank);
    if (waiter) waiter.mapped()();
  }
  if (waiting_.empty()) return;
  if (auto deadline = turns_.deadline()) {
    if (timer_ == 0) timer_ = loop_.At(*deadline, [this] { Advance(); });
  } else {
    Later();
  }
}

}  // namespace ckptd
