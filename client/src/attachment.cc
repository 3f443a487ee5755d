#include "client/src/attachment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstring>

#include "client/core/threads/sync.h"
#include "client/src/failure.h"
#include "client/src/populate.h"

namespace ckptd {
namespace {

int32_t FileFails(const char* what, int error) {
  return Fail(code::INTERNAL, "%s handed over by the agent: %s", what, strerror(error));
}

}  // namespace

BellSlot& Attachment::bell_slot(uint32_t slot) const {
  return reinterpret_cast<BellSlot*>(bell_.data() + bell_slots_offset_)[slot];
}

std::atomic<uint64_t>& Attachment::chunk(uint32_t slot, uint64_t chunk) const {
  auto* entries = reinterpret_cast<std::atomic<uint64_t>*>(bell_.data() + bell_chunks_offset_);
  return entries[slot * BellRow(ready_.chunk_count) + chunk];
}

const Grant& Attachment::grant() const {
  return *reinterpret_cast<const Grant*>(ctl_.data() + superblock_.states_offset);
}

const SlotState& Attachment::slot_state(uint32_t slot) const {
  const char* states = ctl_.data() + superblock_.states_offset + sizeof(Grant);
  return reinterpret_cast<const SlotState*>(states)[slot];
}

void Attachment::Hint() const {
  uint64_t one = 1;
  // A full counter means that the agent is told already; nothing else can be done about an error here.
  [[maybe_unused]] ssize_t ignored = write(hint_.get(), &one, sizeof one);
}

// The id in the message is the ctl file's; each process has a bell of its own, so the file itself must be the same.
bool Attachment::IsSame(const LayoutReadyMessage& ready, std::span<const UniqueFd> fds) const {
  struct stat ours = {};
  struct stat theirs = {};
  if (fds.size() != kFirstSlot + ready.slot_count || fstat(bell_fd_.get(), &ours) != 0 ||
      fstat(fds[kBell].get(), &theirs) != 0) {
    return false;
  }
  return ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino && ready.region_id == ready_.region_id &&
         ready.layout == ready_.layout && ready.header_crc == ready_.header_crc &&
         ready.slot_count == ready_.slot_count && ready.chunk_count == ready_.chunk_count &&
         ready.chunk_bytes == ready_.chunk_bytes && ready.slot_bytes == ready_.slot_bytes;
}

void Attachment::ReplaceHint(const UniqueFd& hint) {
  // Atomic for the copy thread, which goes on using the old number.
  fcntl(hint.get(), F_SETFL, O_NONBLOCK);
  dup3(hint.get(), hint_.get(), O_CLOEXEC);
}

int32_t OpenSlotFile(UniqueFd fd, uint64_t bytes, uint64_t file_id, std::shared_ptr<Device> device,
                     std::shared_ptr<const SlotFile>* out) {
  uint64_t size = 0;
  if (int error = FileBytes(fd.get(), &size)) return FileFails("slot file", error);
  if (size < bytes) {
    return Fail(code::INTERNAL, "slot file holds %" PRIu64 " bytes, %" PRIu64 " are needed", size, bytes);
  }
  auto slot = std::make_shared<SlotFile>();
  if (int error = SharedMapping::Map(fd.get(), bytes, Access::kReadWrite, &slot->mapping))
    return FileFails("slot file", error);
  if (int error = PopulateTogether(slot->mapping)) return FileFails("slot file", error);
  slot->fd = std::move(fd);
  slot->file_id = file_id;
  if (device != nullptr) {
    uint64_t begin = MonotonicNs();
    DeviceError error = PinnedMemory::Pin(std::move(device), slot->mapping.data(), bytes, &slot->pinned);
    slot->pin_ns = MonotonicNs() - begin;
    if (!error.ok()) slot->pin_error = Sentence(error);
  }
  *out = std::move(slot);
  return 0;
}

int32_t Attachment::Check(const Shape& shape) const {
  const Superblock& block = superblock_;
  if (ready_.header_crc != shape.header_crc || block.header_crc != shape.header_crc ||
      ready_.slot_bytes != shape.slot_bytes || block.slot_bytes != shape.slot_bytes) {
    return Fail(code::LAYOUT_MISMATCH, "the agent prepared another layout (%" PRIu64 " bytes, ours has %" PRIu64 ")",
                ready_.slot_bytes, shape.slot_bytes);
  }
  if (ready_.layout != block.layout || ready_.slot_count != block.slot_count || ready_.bell_id != block.bell_id ||
      ready_.chunk_count != block.chunk_count || ready_.chunk_bytes != block.chunk_bytes ||
      ready_.region_id != block.region_id) {
    return Fail(code::PROTOCOL, "LAYOUT_READY and its control file contradict each other");
  }
  return 0;
}

int32_t Attachment::MapCtl(UniqueFd fd) {
  if (int32_t rc = ReadSuperblock(fd.get(), &superblock_)) return rc;
  int error = SharedMapping::Map(fd.get(), superblock_.file_bytes, Access::kRead, &ctl_);
  if (error == 0) error = ctl_.Populate(Access::kRead);
  return error == 0 ? 0 : FileFails("control file", error);
}

int32_t Attachment::MapBell(UniqueFd fd) {
  uint64_t bytes = 0;
  if (int error = FileBytes(fd.get(), &bytes)) return FileFails("bell", error);
  uint64_t entries = ready_.slot_count * BellRow(ready_.chunk_count);
  uint64_t need = sizeof(BellHead) + ready_.slot_count * sizeof(BellSlot) + entries * sizeof(uint64_t);
  if (bytes < need) return Fail(code::PROTOCOL, "bell: %" PRIu64 " bytes, at least %" PRIu64 " needed", bytes, need);
  int error = SharedMapping::Map(fd.get(), bytes, Access::kReadWrite, &bell_);
  if (error == 0) error = bell_.Populate(Access::kReadWrite);
  if (error != 0) return FileFails("bell", error);
  const BellHead& head = bell();
  bell_slots_offset_ = head.slots_offset;
  bell_chunks_offset_ = head.chunks_offset;
  bool identity = head.magic == kBellMagic && head.major == kRegionMajor && head.bell_id == ready_.bell_id &&
                  head.slot_count == ready_.slot_count && head.chunk_count == ready_.chunk_count;
  bool placed = bell_slots_offset_ % 8 == 0 && bell_slots_offset_ >= sizeof(BellHead) && bell_slots_offset_ <= bytes &&
                ready_.slot_count * sizeof(BellSlot) <= bytes - bell_slots_offset_ && bell_chunks_offset_ % 8 == 0 &&
                bell_chunks_offset_ >= sizeof(BellHead) && bell_chunks_offset_ <= bytes &&
                entries * sizeof(uint64_t) <= bytes - bell_chunks_offset_;
  if (!identity || !placed) return Fail(code::PROTOCOL, "bell: its head contradicts LAYOUT_READY");
  bell_fd_ = std::move(fd);
  return 0;
}

int32_t Attachment::Create(const LayoutReadyMessage& ready, const Registration& registration, std::span<UniqueFd> fds,
                           std::shared_ptr<Attachment>* out) {
  const Shape& shape = *registration.shape;
  if (ready.slot_count == 0 || ready.slot_count > kMaxSlots || fds.size() != kFirstSlot + ready.slot_count) {
    return Fail(code::PROTOCOL, "LAYOUT_READY: %u slots with %zu descriptors", ready.slot_count, fds.size());
  }
  auto attachment = std::make_shared<Attachment>();
  attachment->ready_ = ready;
  if (int32_t rc = attachment->MapCtl(std::move(fds[kCtl]))) return rc;
  if (int32_t rc = attachment->Check(shape)) return rc;
  if (int32_t rc = attachment->MapBell(std::move(fds[kBell]))) return rc;
  attachment->hint_ = std::move(fds[kHint]);
  // A hint must never wait, whatever the agent made of its counter.
  fcntl(attachment->hint_.get(), F_SETFL, O_NONBLOCK);
  for (uint32_t i = 0; i < ready.slot_count; ++i) {
    int32_t rc = OpenSlotFile(std::move(fds[kFirstSlot + i]), shape.slot_bytes, ready.file_id[i],
                              registration.devices.first_device(), &attachment->slots[i]);
    if (rc != 0) return rc;
  }
  *out = std::move(attachment);
  return 0;
}

}  // namespace ckptd
