// The trainer's side of a restore: ckpt_restore_begin and ckpt_restore_end.
#ifndef CKPTD_CLIENT_SRC_RESTORE_H_
#define CKPTD_CLIENT_SRC_RESTORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/include/ckpt/ckpt.h"
#include "client/src/snapshot.h"
#include "client/src/state.h"

namespace ckptd {

// Used by the thread that restores, but for Cancel. What is offered and turns out damaged is refused here, and the
// agent's next offer awaited, until the deadline of the wish.
class Restore {
 public:
  explicit Restore(State& state) : state_(state) {}

  int32_t Begin(const ckpt_want& want, ckpt_restored* out);
  int32_t End(int32_t result, const char* reason, ckpt_restored* out);

  // Any thread: a restore that is under way ends with CANCELLED.
  void Cancel();

  // Something was offered, and End has not told what became of it.
  [[nodiscard]] bool loading() const { return loading_; }

  // Of skipped[index] of what was described last; never null.
  [[nodiscard]] const char* Why(uint32_t index) const { return index < why_.size() ? why_[index].c_str() : ""; }

  [[nodiscard]] Snapshot* snapshot() const { return snapshot_.get(); }  // null: none is open

  // What the extra tensor of the snapshot opened last has room for. A document that fits keeps the layout: another one
  // would need memory of its own beside what was restored.
  [[nodiscard]] uint64_t extra_bytes() const { return extra_bytes_; }

 private:
  // Waits for the next offer that can be used. 0 or a negative code.
  int32_t AwaitOffer(ckpt_restored* out);
  int32_t WaitForOffer();
  void TakeWhy(const LoadMessage& load, const WhySkipped& why);
  void Report(int32_t number, const char* reason);
  int32_t WaitForGo();

  State& state_;
  std::unique_ptr<Snapshot> snapshot_;
  std::vector<std::string> why_;
  uint64_t extra_bytes_ = 0;
  bool begun_ = false;
  bool loading_ = false;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_RESTORE_H_
