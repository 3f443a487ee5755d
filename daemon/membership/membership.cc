#include "daemon/membership/membership.h"

#include <utility>

#include "daemon/base/log.h"

namespace ckptd::membership {

void Membership::Said(std::vector<Member> members) {
  const std::shared_ptr<const View> last = state_.view();
  if (!state_.Said(std::move(members), clock_.Monotonic())) return;
  const View& view = *state_.view();
  if (view.number != last->number)
    Log(kInfo, "membership.view").Field("view", view.number).Field("members", uint64_t{view.members.size()});
  if (!last->source.ok() && view.source.ok()) Log(kInfo, "membership.source").Field("state", "ok");
  if (view.refused != last->refused) {
    for (const absl::Status& why : view.refused) Log(kWarning, "membership.refused").Error(why);
  }
  Tell();
}

void Membership::Failed(const absl::Status& why) {
  if (!state_.Failed(why, clock_.Monotonic())) return;
  Log(kWarning, "membership.source").Field("view", state_.view()->number).Error(why);
  Tell();
}

void Membership::StandingChanged() {
  const Standing self = source_->StandingAt(clock_.Monotonic());
  Log line(self.status.ok() ? kInfo : kWarning, "membership.self");
  line.Field("node", self.name).Field("generation", self.generation);
  if (!self.status.ok()) line.Error(self.status);
  Tell();
}

void Membership::Tell() {
  const std::shared_ptr<const View> view = state_.view();
  for (const Watcher& watcher : watchers_) watcher(view);
}

}  // namespace ckptd::membership
