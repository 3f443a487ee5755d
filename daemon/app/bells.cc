#include "daemon/app/bells.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd {

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
  // Each write tells once. It is never read: the trainer, which has the same file, can make reading it block.
  CKPTD_RETURN_IF_ERROR(
      loop_.Watch(hint, EPOLLIN | EPOLLET, [this, process = key.first](uint32_t) { on_hint_(process); }));
  return (bells_[key] = std::move(bell)).get();
}

region::Bell* Bells::Find(snapshot::ProcessId process, uint32_t layout) {
  auto found = bells_.find({process, layout});
  return found == bells_.end() ? nullptr : found->second.get();
}

void Bells::Drop(std::map<Key, std::unique_ptr<region::Bell>>::iterator bell) {
  const auto& [process, layout] = bell->first;
  fills_.erase(fills_.lower_bound({process, layout, 0}), fills_.upper_bound({process, layout, UINT32_MAX}));
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
    const region::BellView view = it->second->Read();
    if (std::pair(view.pos_attempt, view.pos) > std::pair(read.pos_attempt, read.pos)) {
      read.pos_attempt = view.pos_attempt;
      read.pos = view.pos;
    }
    if (std::pair(view.wanted_attempt, view.wanted) > std::pair(read.wanted_attempt, read.wanted)) {
      read.wanted_attempt = view.wanted_attempt;
      read.wanted = view.wanted;
    }
    for (uint32_t slot = 0; slot < view.slots.size(); ++slot) {
      if (view.slots[slot].epoch == 0) continue;
      read.words.push_back(ToWord(it->first, *it->second, slot, view.slots[slot]));
    }
  }
  MarkRescued(read);
  return read;
}

// save() stores `pos` before anything can complete its fill: what is COMPLETE and above a `pos` that is read now was
// completed by a copier for a trainer that is dead.
void Bells::MarkRescued(snapshot::BellRead& read) {
  region::BellPosition newest;
  for (auto it = bells_.lower_bound({read.process, 0}); it != bells_.end() && it->first.first == read.process; ++it) {
    newest = std::max(newest, it->second->ReadPosition());
  }
  for (snapshot::BellWord& word : read.words) {
    const Fill* fill = nullptr;
    if (auto known = fills_.find({read.process, word.slot.layout, word.slot.index}); known != fills_.end())
      fill = &known->second;
    if (!word.crcs_valid || fill == nullptr) continue;
    word.rescued = region::BellPosition{fill->view.attempt, fill->view.step} > newest;
  }
}

snapshot::BellWord Bells::ToWord(const Key& key, const region::Bell& bell, uint32_t slot,
                                 const region::BellSlotView& view) {
  snapshot::BellWord word;
  word.slot = {key.second, slot};
  word.epoch = view.epoch;
  word.state = view.state;
  word.step = view.step;
  word.ack = view.ack;
  if (view.state != CaptureState::kComplete) return word;
  const Fill* fill = WholeFill({key.first, key.second, slot}, bell, view);
  word.crcs_valid = fill != nullptr;
  if (fill != nullptr) word.step = fill->view.step;
  return word;
}

const Bells::Fill* Bells::WholeFill(const FillKey& key, const region::Bell& bell, const region::BellSlotView& view) {
  auto known = fills_.find(key);
  if (known != fills_.end() && known->second.view.epoch == view.epoch) return &known->second;
  auto crcs = bell.ReadChunks(std::get<2>(key), view);
  if (!crcs.ok()) return nullptr;
  return &(fills_[key] = {view, *std::move(crcs)});
}

absl::StatusOr<Bells::Fill> Bells::TakeFill(snapshot::ProcessId process, const snapshot::SlotId& slot, Epoch epoch) {
  auto found = fills_.find({process, slot.layout, slot.index});
  if (found == fills_.end() || found->second.view.epoch != epoch || found->second.crcs.empty())
    return Error(ErrorCode::NOT_FOUND, absl::StrCat(snapshot::ToString(slot), " epoch ", epoch, ": no fill was told"));
  Fill fill{found->second.view, std::move(found->second.crcs)};
  found->second.crcs.clear();
  return fill;
}

}  // namespace ckptd
