#include "daemon/app/bells.h"

#include <sys/epoll.h>

#include <utility>

#include "daemon/base/status_macros.h"
#include "daemon/os/event_fd.h"

namespace ckptd {
namespace {

snapshot::BellWord ToWord(const region::Bell& bell, uint32_t layout, uint32_t slot, const region::BellSlotView& view) {
  snapshot::BellWord word;
  word.slot = {layout, slot};
  word.epoch = view.epoch;
  word.state = view.state;
  word.step = view.step;
  word.ack = view.ack;
  word.crcs_valid = view.state == CaptureState::kComplete && bell.ReadChunks(slot, view.epoch).ok();
  return word;
}

}  // namespace

Bells::~Bells() {
  for (const auto& [key, bell] : bells_) loop_.Unwatch(bell->hint_fd());
}

absl::StatusOr<region::Bell*> Bells::Obtain(snapshot::ProcessId process, const region::CtlHead& head) {
  if (region::Bell* known = Find(process, head.block.layout)) return known;
  CKPTD_ASSIGN_OR_RETURN(auto bell, region::Bell::Create(head));
  return Add({process, head.block.layout}, std::move(bell));
}

absl::StatusOr<region::Bell*> Bells::Attach(snapshot::ProcessId process, const region::CtlHead& head, UniqueFd fd) {
  CKPTD_ASSIGN_OR_RETURN(auto bell, region::Bell::Attach(std::move(fd), head));
  return Add({process, head.block.layout}, std::move(bell));
}

absl::StatusOr<region::Bell*> Bells::Add(const Key& key, std::unique_ptr<region::Bell> bell) {
  if (auto old = bells_.find(key); old != bells_.end()) Drop(old);
  int hint = bell->hint_fd();
  CKPTD_RETURN_IF_ERROR(loop_.Watch(hint, EPOLLIN, [this, hint, process = key.first](uint32_t) {
    DrainEventFd(hint);
    on_hint_(process);
  }));
  return (bells_[key] = std::move(bell)).get();
}

region::Bell* Bells::Find(snapshot::ProcessId process, uint32_t layout) {
  auto found = bells_.find({process, layout});
  return found == bells_.end() ? nullptr : found->second.get();
}

void Bells::Drop(std::map<Key, std::unique_ptr<region::Bell>>::iterator bell) {
  loop_.Unwatch(bell->second->hint_fd());
  bells_.erase(bell);
}

void Bells::Forget(snapshot::ProcessId process) {
  for (auto it = bells_.lower_bound({process, 0}); it != bells_.end() && it->first.first == process;) Drop(it++);
}

void Bells::ForgetLayout(uint32_t layout) {
  for (auto it = bells_.begin(); it != bells_.end();) {
    auto next = std::next(it);
    if (it->first.second == layout) Drop(it);
    it = next;
  }
}

// Newest layout first: its `pos` is read before the words of older bells, so that no step is covered by `pos` whose
// fill is not seen.
snapshot::BellRead Bells::Read(snapshot::ProcessId process) {
  snapshot::BellRead read;
  read.process = process;
  for (auto it = bells_.rbegin(); it != bells_.rend(); ++it) {
    if (it->first.first != process) continue;
    region::BellView view = it->second->Read();
    if (std::pair(view.pos_attempt, view.pos) > std::pair(read.pos_attempt, read.pos)) {
      read.pos_attempt = view.pos_attempt;
      read.pos = view.pos;
    }
    for (uint32_t slot = 0; slot < view.slots.size(); ++slot) {
      if (view.slots[slot].epoch == 0) continue;
      read.words.push_back(ToWord(*it->second, it->first.second, slot, view.slots[slot]));
    }
  }
  return read;
}

}  // namespace ckptd
