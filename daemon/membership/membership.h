// The members of this node's cluster, whatever tells of them:
//
//   CKPTD_ASSIGN_OR_RETURN(auto source, MakeStaticSource(self, config.peers.members));  // or another source
//   Membership members(clock, std::move(source));
//   members.Watch([](const std::shared_ptr<const View>& view) { ... });
//   CKPTD_RETURN_IF_ERROR(members.Start());
//   ... a peer says who it is: CKPTD_RETURN_IF_ERROR(members.Admit(name, generation));
//
// Everything belongs to the loop's thread; a View may be kept and read by any.
#ifndef CKPTD_DAEMON_MEMBERSHIP_MEMBERSHIP_H_
#define CKPTD_DAEMON_MEMBERSHIP_MEMBERSHIP_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/membership/source.h"
#include "daemon/membership/view.h"

namespace ckptd::membership {

class Membership final : private SourceSink {
 public:
  // Told of each new view, and again with the view that is when this node's own standing changes.
  using Watcher = std::function<void(const std::shared_ptr<const View>& view)>;

  // `clock` outlives it.
  Membership(const Clock& clock, std::unique_ptr<Source> source) : clock_(clock), source_(std::move(source)) {}

  // Once. An error is one of the settings. Watchers may be told before it returns.
  [[nodiscard]] absl::Status Start() { return source_->Start(*this); }
  // For as long as this lives. A watcher must not add one.
  void Watch(Watcher watcher) { watchers_.push_back(std::move(watcher)); }

  // Never null.
  [[nodiscard]] const std::shared_ptr<const View>& view() const { return state_.view(); }
  // How this node itself stands now: ask before anything is written to a peer in its name.
  [[nodiscard]] Standing self() const { return source_->StandingAt(clock_.Monotonic()); }
  // May a peer that proved `name` and says this generation be believed? Errors: ViewState::Admit.
  [[nodiscard]] absl::Status Admit(const std::string& name, uint64_t generation) {
    return state_.Admit(name, generation);
  }
  // Where nothing proved the name: ViewState::WouldAdmit.
  [[nodiscard]] absl::Status WouldAdmit(const std::string& name, uint64_t generation) const {
    return state_.WouldAdmit(name, generation);
  }
  // Members that Admit() believed say their own failure domains: ViewState::Learn. Watchers are told once.
  void Learn(const std::map<std::string, Labels>& said) {
    if (state_.Learn(said)) Tell();
  }

 private:
  void Said(std::vector<Member> members) override;
  void Failed(const absl::Status& why) override;
  void StandingChanged() override;
  void Tell();

  const Clock& clock_;
  ViewState state_;
  std::vector<Watcher> watchers_;
  std::unique_ptr<Source> source_;  // the last one: it goes first
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_MEMBERSHIP_H_
