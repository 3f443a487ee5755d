// Pull: a copier (proto/local/copier.h), not this process, copies from the GPU. What of it the handle's threads share,
// guarded by the handle's mutex.
//
//   kOff      pushes: not asked for, or given up for good (`why`)
//   kWaiting  for a registration with tensors on one GPU and memory for it, or until `retry_ns`
//   kAsked    the session thread asks the agent for a copier
//   kBusy     the pull thread prepares it: slots, exports, plan. Saves are pushed meanwhile
//   kReady    the next save of `registration` into `attachment` is pulled
//
// The memory of every tensor that was ever exported stays the trainer's to keep until the copier has closed it:
// `exported` is told by ckpt_info.
#ifndef CKPTD_CLIENT_SRC_PULL_H_
#define CKPTD_CLIENT_SRC_PULL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/core/device/allocation.h"
#include "client/src/attachment.h"
#include "client/src/copier_link.h"
#include "client/src/layout.h"
#include "client/src/path_choice.h"
#include "proto/local/messages.h"

namespace ckptd {

// What training steps took, for the choice.
struct StepClock {
  uint64_t step_ns = 0;    // when the present step began; 0: none has
  bool captures = false;   // a save runs, or ran, beside the present step
  uint64_t beside = 0;     // steps of that save so far
  uint64_t beside_ns = 0;  // what they took
};

struct Pull {
  enum class Stage : uint8_t { kOff, kWaiting, kAsked, kBusy, kReady };

  Stage stage = Stage::kOff;
  std::string why = "pushing is the default";
  uint64_t requests = 0;  // COPIER messages wanted so far: the session thread sends the last
  uint8_t gpu[kGpuUuidBytes] = {};
  bool replied = false;
  CopierReplyMessage reply = {};
  UniqueFd socket;
  UniqueFd process;
  uint64_t retry_ns = 0;
  uint32_t failures = 0;  // since the last save that was pulled
  uint64_t pulled = 0;

  bool holds_only = false;  // saves are pushed; the copier is there for a rescue
  uint64_t copy_ns = 0;     // what the last pull took; 0: there was none
  bool compares = false;    // CKPT_AUTO
  PathChoice choice;
  StepClock clock;

  uint64_t exported = 0;  // number of the registration that may be open in a copier; 0 = none

  std::shared_ptr<CopierLink> link;
  std::shared_ptr<const Registration> registration;  // whose allocations are open in the copier; null: none
  std::shared_ptr<Attachment> attachment;            // whose slots it has mapped; null: none
  std::vector<uint64_t> file_ids;                    // of those slots
  std::vector<DeviceAllocation> allocations;         // that are open, by their number
  bool stale = false;                                // one of them is another allocation by now
  bool paused = false;                               // nothing is exported until the next registration
  bool in_use = false;                               // by the capture under way
  bool ended = false;                                // the process is gone: the session thread saw it
};

// A process that copied into a slot, could not be ended, and may still write.
struct Orphan {
  std::shared_ptr<CopierLink> link;
  std::shared_ptr<Attachment> attachment;
  uint32_t slot = 0;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_PULL_H_
