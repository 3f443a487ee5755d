// The bells of one rank: one for each trainer process and layout. Watches their hints.
#ifndef CKPTD_DAEMON_APP_BELLS_H_
#define CKPTD_DAEMON_APP_BELLS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/loop.h"
#include "daemon/region/bell.h"
#include "daemon/snapshot/events.h"

namespace ckptd {

// On the control thread.
class Bells {
 public:
  // A completed fill, copied out and checked. What the bell says afterwards does not matter any more.
  struct Fill {
    region::BellSlotView view;
    std::vector<uint32_t> crcs;
  };

  using OnHint = std::function<void(snapshot::ProcessId process)>;

  Bells(Loop& loop, OnHint on_hint) : loop_(loop), on_hint_(std::move(on_hint)) {}
  ~Bells();

  // The bell of this process for a layout; made where there is none.
  [[nodiscard]] absl::StatusOr<region::Bell*> Obtain(snapshot::ProcessId process, const region::CtlHead& head);
  // A bell that the process hands back. Replaces the one that is there.
  [[nodiscard]] absl::StatusOr<region::Bell*> Attach(snapshot::ProcessId process, const region::CtlHead& head,
                                                     UniqueFd fd);
  [[nodiscard]] region::Bell* Find(snapshot::ProcessId process, uint32_t layout);
  void Forget(snapshot::ProcessId process);
  void ForgetLayout(uint32_t layout);

  // All bells of the process as one event.
  [[nodiscard]] snapshot::BellRead Read(snapshot::ProcessId process);
  // A fill that Read() told with crcs_valid, once. NOT_FOUND otherwise.
  [[nodiscard]] absl::StatusOr<Fill> TakeFill(snapshot::ProcessId process, const snapshot::SlotId& slot, Epoch epoch);

 private:
  using Key = std::pair<snapshot::ProcessId, uint32_t>;
  using FillKey = std::tuple<snapshot::ProcessId, uint32_t, uint32_t>;  // process, layout, slot

  snapshot::BellWord ToWord(const Key& key, const region::Bell& bell, uint32_t slot, const region::BellSlotView& view);
  const Fill* WholeFill(const FillKey& key, const region::Bell& bell, const region::BellSlotView& view);
  absl::StatusOr<region::Bell*> Add(const Key& key, std::unique_ptr<region::Bell> bell);
  void MarkRescued(snapshot::BellRead& read);
  void Drop(std::map<Key, std::unique_ptr<region::Bell>>::iterator bell);

  Loop& loop_;
  const OnHint on_hint_;
  std::map<Key, std::unique_ptr<region::Bell>> bells_;
  std::map<FillKey, Fill> fills_;  // newest of each slot; without its list once taken
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_BELLS_H_
