// The memory that the fake agent lends: slots, bell and ctl file as an agent's region has them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "client/core/copy/crc32c.h"
#include "client/core/image/parser.h"
#include "client/src/fake_agent.h"

namespace ckptd {
namespace {

constexpr uint32_t kSlots = 2;
constexpr uint64_t kImages = sizeof(Superblock);
constexpr uint64_t kStates = 4096;
constexpr uint64_t kRecords = 8192;

UniqueFd Memfd(uint64_t bytes) {
  UniqueFd fd(memfd_create("fake", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

}  // namespace

void FakeAgent::Prepare(const LayoutMessage& message, int headers) {
  std::string text(message.header_bytes, 0);
  ASSERT_EQ(ReadExactly(headers, 0, text.data(), text.size()), 0);
  EXPECT_EQ(fcntl(headers, F_GET_SEALS) & F_SEAL_WRITE, F_SEAL_WRITE);
  EXPECT_EQ(Crc32c(0, text.data(), text.size()), message.header_crc);
  std::vector<ImageInfo> images;
  ImageError error = ParseHeaders(text, uint64_t{1} << 40, HeaderLimits(), &images);
  ASSERT_TRUE(error.ok()) << error.message;
  EXPECT_EQ(images.size(), message.image_count);
  uint64_t slot_bytes = 0;
  for (const ImageInfo& image : images) slot_bytes += image.total_bytes;
  bool same = has_layout_ && ready_.header_crc == message.header_crc;
  ready_.attempt = message.attempt;
  if (same) return SendReady();
  ready_.layout += 1;
  ready_.header_crc = message.header_crc;
  ready_.slot_count = kSlots;
  ready_.chunk_bytes = chunk_bytes;
  ready_.slot_bytes = slot_bytes;
  ready_.chunk_count = static_cast<uint32_t>((slot_bytes + chunk_bytes - 1) / chunk_bytes);
  ready_.region_id = 7;
  ready_.bell_id = 1000 + ready_.layout;
  slot_fds_.clear();
  for (uint32_t i = 0; i < kSlots; ++i) {
    slot_fds_.push_back(Memfd(slot_bytes));
    ready_.file_id[i] = next_file_++;
  }
  BuildCtl(message);
  BuildBell();
  has_layout_ = true;
  SendReady();
}

void FakeAgent::BuildCtl(const LayoutMessage& message) {
  Superblock& block = superblock_;
  block = Superblock{};
  block.magic = kSuperblockMagic;
  block.major = kRegionMajor;
  block.head_bytes = sizeof block;
  block.region_id = ready_.region_id;
  block.bell_id = ready_.bell_id;
  block.world = 1;
  block.layout = ready_.layout;
  block.slot_count = kSlots;
  block.image_count = message.image_count;
  block.chunk_count = ready_.chunk_count;
  block.header_crc = ready_.header_crc;
  block.chunk_bytes = ready_.chunk_bytes;
  block.slot_bytes = ready_.slot_bytes;
  block.images_offset = kImages;
  block.states_offset = kStates;
  block.records_offset = kRecords;
  block.record_stride = (sizeof(RecordHead) + ready_.chunk_count * sizeof(uint32_t) + 7) & ~uint64_t{7};
  block.file_bytes = kRecords + kSlots * block.record_stride;
  block.head_crc = Crc32c(0, &block, sizeof block);
  ctl_fd_ = Memfd(block.file_bytes);
  ASSERT_EQ(SharedMapping::Map(ctl_fd_.get(), block.file_bytes, Access::kReadWrite, &ctl_), 0);
  memcpy(ctl_.data(), &block, sizeof block);
  for (uint32_t i = 0; i < kSlots; ++i) slot_state(i).file_id = ready_.file_id[i];
}

void FakeAgent::BuildBell() {
  uint64_t slots = sizeof(BellHead);
  uint64_t chunks = slots + kSlots * sizeof(BellSlot);
  uint64_t bytes = chunks + kSlots * BellRow(ready_.chunk_count) * sizeof(uint64_t);
  bell_fd_ = Memfd(bytes);
  ASSERT_EQ(SharedMapping::Map(bell_fd_.get(), bytes, Access::kReadWrite, &bell_), 0);
  BellHead& head = bell();
  head.magic = kBellMagic;
  head.major = kRegionMajor;
  head.head_bytes = sizeof head;
  head.bell_id = ready_.bell_id;
  head.region_id = ready_.region_id;
  head.layout = ready_.layout;
  head.slot_count = kSlots;
  head.chunk_count = ready_.chunk_count;
  head.slots_offset = slots;
  head.chunks_offset = chunks;
  head.file_bytes = bytes;
}

void FakeAgent::SendReady() {
  if (!none_granted) grant().attempt = attempt_;
  hint_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::vector<int> fds = {ctl_fd_.get(), bell_fd_.get(), hint_.get()};
  for (const UniqueFd& fd : slot_fds_) fds.push_back(fd.get());
  Send(ready_, MessageType::kLayoutReady, fds);
}

void FakeAgent::WaitForLayout() {
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (has_layout_) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

BellHead& FakeAgent::bell() { return *reinterpret_cast<BellHead*>(bell_.data()); }

BellSlot& FakeAgent::bell_slot(uint32_t slot) {
  return reinterpret_cast<BellSlot*>(bell_.data() + sizeof(BellHead))[slot];
}

UniqueFd FakeAgent::hint() {
  std::lock_guard lock(mutex_);
  return UniqueFd(fcntl(hint_.get(), F_DUPFD_CLOEXEC, 0));
}

uint64_t FakeAgent::chunk_entry(uint32_t slot, uint32_t chunk) {
  auto* entries = reinterpret_cast<std::atomic<uint64_t>*>(bell_.data() + bell().chunks_offset);
  return entries[slot * BellRow(ready_.chunk_count) + chunk].load(std::memory_order_acquire);
}

struct Grant& FakeAgent::grant() {
  return *reinterpret_cast<struct Grant*>(ctl_.data() + kStates);
}

SlotState& FakeAgent::slot_state(uint32_t slot) {
  return reinterpret_cast<SlotState*>(ctl_.data() + kStates + sizeof(struct Grant))[slot];
}

std::string FakeAgent::SlotBytes(uint32_t slot) {
  std::lock_guard lock(mutex_);
  std::string bytes(ready_.slot_bytes, 0);
  EXPECT_EQ(ReadExactly(slot_fds_[slot].get(), 0, bytes.data(), bytes.size()), 0);
  return bytes;
}

void FakeAgent::DamageSlot(uint32_t slot, uint64_t offset) {
  std::lock_guard lock(mutex_);
  char byte = 0;
  ASSERT_EQ(ReadExactly(slot_fds_[slot].get(), offset, &byte, 1), 0);
  byte ^= 1;
  ASSERT_EQ(pwrite(slot_fds_[slot].get(), &byte, 1, static_cast<off_t>(offset)), 1);
}

uint64_t FakeAgent::Grant(uint32_t slot, uint64_t floor) {
  std::lock_guard lock(mutex_);
  uint64_t epoch = ++epoch_;
  bell_slot(slot).word = CaptureWord(epoch, CaptureState::kOpen);
  grant().floor = floor;
  grant().attempt = attempt_;
  grant().word = epoch << 8 | (slot + 1);
  GrantMessage message = {};
  message.attempt = attempt_;
  message.epoch = epoch;
  message.floor = floor;
  message.layout = ready_.layout;
  message.slot = slot;
  Send(message, MessageType::kGrant);
  return epoch;
}

void FakeAgent::Revoke() { grant().word = 0; }

void FakeAgent::Seal(uint32_t slot) {
  std::lock_guard lock(mutex_);
  uint64_t word = bell_slot(slot).word;
  ASSERT_EQ(CaptureStateOf(word), CaptureState::kComplete);
  RecordHead head = {};
  std::vector<uint32_t> crcs(ready_.chunk_count);
  for (uint32_t i = 0; i < ready_.chunk_count; ++i) {
    ASSERT_TRUE(ChunkDone(chunk_entry(slot, i), CaptureEpoch(word)));
    crcs[i] = static_cast<uint32_t>(chunk_entry(slot, i));
  }
  head.magic = kRecordMagic;
  head.bytes = static_cast<uint32_t>(sizeof head + crcs.size() * sizeof(uint32_t));
  head.epoch = CaptureEpoch(word);
  head.attempt = bell_slot(slot).attempt;
  head.step = bell_slot(slot).step;
  head.layout = ready_.layout;
  head.chunk_count = ready_.chunk_count;
  head.crc = Crc32c(Crc32c(0, &head, sizeof head), crcs.data(), crcs.size() * sizeof(uint32_t));
  char* record = ctl_.data() + kRecords + slot * superblock_.record_stride;
  memcpy(record, &head, sizeof head);
  memcpy(record + sizeof head, crcs.data(), crcs.size() * sizeof(uint32_t));
  sealed_ = head;
  sealed_slot_ = slot;
}

void FakeAgent::ReplaceSlot(uint32_t slot) {
  std::lock_guard lock(mutex_);
  slot_fds_[slot] = Memfd(ready_.slot_bytes);
  ready_.file_id[slot] = next_file_++;
  slot_state(slot).file_id = ready_.file_id[slot];
  SlotMessage message = {};
  message.layout = ready_.layout;
  message.slot = slot;
  message.file_id = ready_.file_id[slot];
  Send(message, MessageType::kSlot, {slot_fds_[slot].get()});
}

}  // namespace ckptd
