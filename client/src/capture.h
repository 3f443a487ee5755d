// One save on its way into a slot.
//
//   kIdle -> kSaving    ckpt_save owns it: eager bytes are copied into the slot
//         -> kCopying   the copy thread owns it
//         -> kHeld      all bytes are in the slot, but no gate was ever seen: COMPLETE waits for ckpt_gate or
//         ckpt_close
//         -> kIdle      COMPLETE, or ABANDONED and acknowledged
//
// The phase is guarded by the handle's mutex. In kSaving and kCopying the other fields belong to the thread that owns
// the phase; everybody else only reads them, or sets `stop`.
#ifndef CKPTD_CLIENT_SRC_CAPTURE_H_
#define CKPTD_CLIENT_SRC_CAPTURE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/core/threads/sum_team.h"
#include "client/src/attachment.h"
#include "client/src/copier_link.h"
#include "client/src/layout.h"

namespace ckptd {

struct Capture {
  enum class Phase : uint8_t { kIdle, kSaving, kCopying, kHeld };

  Phase phase = Phase::kIdle;
  bool gate_seen = true;    // since this save began
  bool needs_gate = false;  // it has lazy tensors and no self-check proves it
  bool given_up = false;    // ABANDONED by this process; the copy thread is still on its way out
  bool submitted = false;   // host memory is copied and GPUs have all their copies: a stream may wait for the rest
  bool selfcheck = false;
  bool pulled = false;    // the copier has it, and streams wait at `line`
  bool armed = false;     // one does: what has not been pulled then cannot be pushed any more
  bool orphaned = false;  // the copier could not be ended: the slot is not given back
  uint32_t slot = 0;
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t attempt = 0;
  uint64_t trace = 0;
  std::shared_ptr<Attachment> attachment;
  std::shared_ptr<const SlotFile> file;
  std::shared_ptr<const Registration> registration;
  std::shared_ptr<CopierLink> link;  // null: pushed
  CopierLink::Line line;
  uint64_t gate_deadline_ns = 0;  // of the first gate that armed
  std::atomic<bool> stop{false};
  std::vector<uint32_t> digests;  // of the lazy tensors, taken inside ckpt_save
  std::vector<uint64_t> torn;     // of the last self-check

  [[nodiscard]] BellSlot& bell_slot() const { return attachment->bell_slot(slot); }
  [[nodiscard]] bool busy() const { return phase == Phase::kSaving || phase == Phase::kCopying; }
};

struct CopyResult {
  enum class Kind : uint8_t { kDone, kStopped, kFault, kDevice, kCopier };
  Kind kind = Kind::kDone;
  uint64_t slot_offset = 0;  // kFault: of the bytes that could not be copied
  int error = 0;             // kFault: errno
  int ordinal = 0;           // kDevice: which GPU
  DeviceError device = {};   // kDevice: what it answered
  std::string sentence;      // kCopier
};

// Copies every piece that is not in the slot yet, and publishes each chunk's CRC in the bell. Stops early when the
// capture was given up by anybody.
[[nodiscard]] CopyResult CopyPieces(const Capture& capture);

// Digests of the lazy tensors in host memory where they are now; `digests` has the room already.
void DigestSources(const Registration& registration, std::vector<uint32_t>* digests);

// The lazy tensors whose captured bytes differ from `digests`.
void FindTorn(const Capture& capture, SumTeam& team, std::vector<uint64_t>* torn);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_CAPTURE_H_
