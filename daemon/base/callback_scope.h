// Callbacks that come back after their owner may be gone: what an owner bound runs as long as it lives, and does
// nothing afterwards. One thread makes, runs and ends them; copies may pass through others.
#ifndef CKPTD_DAEMON_BASE_CALLBACK_SCOPE_H_
#define CKPTD_DAEMON_BASE_CALLBACK_SCOPE_H_

#include <memory>
#include <utility>

namespace ckptd {

// A member of the owner, the last one: it goes first.
class CallbackScope {
 public:
  template <typename Callback>
  [[nodiscard]] auto Bind(Callback callback) const {
    return [alive = std::weak_ptr<const char>(alive_), callback = std::move(callback)](auto&&... arguments) mutable {
      if (!alive.expired()) callback(std::forward<decltype(arguments)>(arguments)...);
    };
  }

 private:
  std::shared_ptr<const char> alive_ = std::make_shared<const char>();
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_CALLBACK_SCOPE_H_
