// The longest time between two gates while memory is pinned: pinning may hold up every GPU of the node, and training
// must not notice. Guarded by the handle's mutex.
#ifndef CKPTD_CLIENT_SRC_PIN_WATCH_H_
#define CKPTD_CLIENT_SRC_PIN_WATCH_H_

#include <algorithm>
#include <cstdint>

namespace ckptd {

class PinWatch {
 public:
  void Begin() {
    pinning_ = watching_ = true;
    longest_ns_ = 0;
  }
  void End() { pinning_ = false; }

  // The step that was under way when pinning ended counts too.
  void Gate(uint64_t now_ns) {
    if (watching_ && last_gate_ns_ != 0) longest_ns_ = std::max(longest_ns_, now_ns - last_gate_ns_);
    if (!pinning_) watching_ = false;
    last_gate_ns_ = now_ns;
  }

  [[nodiscard]] uint64_t longest_ns() const { return longest_ns_; }  // 0: there were no two gates

 private:
  bool pinning_ = false;
  bool watching_ = false;
  uint64_t last_gate_ns_ = 0;
  uint64_t longest_ns_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_PIN_WATCH_H_
