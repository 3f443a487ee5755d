// The shared memory of one layout as the agent handed it over: ctl file (read-only), bell, hint eventfd, slot files.
//
// Nothing in it is believed. Geometry is copied out and checked against this process's own layout and the sizes of the
// files; later only the atomics of Grant, SlotState and BellSlot are read, each checked where it is used.
#ifndef CKPTD_CLIENT_SRC_ATTACHMENT_H_
#define CKPTD_CLIENT_SRC_ATTACHMENT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "client/core/device/pinned_memory.h"
#include "client/core/wire/fds.h"
#include "client/core/wire/mapping.h"
#include "client/src/layout.h"
#include "proto/local/bell.h"
#include "proto/local/messages.h"
#include "proto/local/region.h"

namespace ckptd {

// A slot file, mapped and populated. piece_copier.h tells how it is filled.
struct SlotFile {
  UniqueFd fd;
  SharedMapping mapping;
  uint64_t file_id = 0;
  std::unique_ptr<PinnedMemory> pinned;  // null: no GPU copies into it, or `pin_error` says why not
  std::string pin_error;
  uint64_t pin_ns = 0;  // what it took
};

class Attachment {
 public:
  // Positions of the descriptors of LAYOUT_READY.
  static constexpr size_t kCtl = 0;
  static constexpr size_t kBell = 1;
  static constexpr size_t kHint = 2;
  static constexpr size_t kFirstSlot = 3;

  // Takes the descriptors it uses. 0 or a negative code with its sentence. Populates the slots, and pins them for GPUs
  // where the registration has some: takes a while.
  static int32_t Create(const LayoutReadyMessage& ready, const Registration& registration, std::span<UniqueFd> fds,
                        std::shared_ptr<Attachment>* out);

  // The agent hands over this attachment again (it restarted, or answered twice): same bell file, same geometry. Only
  // the hint eventfd, the attempt and single slot files may be new then.
  [[nodiscard]] bool IsSame(const LayoutReadyMessage& ready, std::span<const UniqueFd> fds) const;
  void ReplaceHint(const UniqueFd& hint);  // also for a capture under way
  void SetAttempt(uint64_t attempt) { ready_.attempt = attempt; }

  [[nodiscard]] const LayoutReadyMessage& ready() const { return ready_; }
  [[nodiscard]] uint32_t slot_count() const { return ready_.slot_count; }
  [[nodiscard]] int bell_fd() const { return bell_fd_.get(); }

  [[nodiscard]] BellHead& bell() const { return *reinterpret_cast<BellHead*>(bell_.data()); }
  [[nodiscard]] BellSlot& bell_slot(uint32_t slot) const;
  [[nodiscard]] std::atomic<uint64_t>& chunk(uint32_t slot, uint64_t chunk) const;
  [[nodiscard]] const Grant& grant() const;
  [[nodiscard]] const SlotState& slot_state(uint32_t slot) const;

  // The bell is the truth; this only wakes the agent.
  void Hint() const;

  // Guarded by the handle's mutex, like SetAttempt; a capture keeps its own pointer.
  std::array<std::shared_ptr<const SlotFile>, kMaxSlots> slots;

 private:
  int32_t Check(const Shape& shape) const;
  int32_t MapCtl(UniqueFd fd);
  int32_t MapBell(UniqueFd fd);

  LayoutReadyMessage ready_ = {};
  Superblock superblock_ = {};
  uint64_t bell_slots_offset_ = 0;
  uint64_t bell_chunks_offset_ = 0;
  SharedMapping ctl_;
  SharedMapping bell_;
  UniqueFd bell_fd_;
  UniqueFd hint_;
};

// Maps a slot file of at least `bytes`, makes it present, and pins it for `device`, if there is one. Memory that cannot
// be pinned is used as it is. 0 or a negative code with its sentence.
int32_t OpenSlotFile(UniqueFd fd, uint64_t bytes, uint64_t file_id, std::shared_ptr<Device> device,
                     std::shared_ptr<const SlotFile>* out);

// The immutable superblock of a ctl file, checked by its CRC and against the size of the file.
int32_t ReadSuperblock(int fd, Superblock* out);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_ATTACHMENT_H_
