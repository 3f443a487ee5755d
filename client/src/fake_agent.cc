#include "client/src/fake_agent.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "client/core/copy/crc32c.h"
#include "client/core/image/parser.h"

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

template <typename Message>
Message Parse(const Packet& packet) {
  Message message;
  EXPECT_GE(packet.bytes.size(), sizeof message);
  memcpy(&message, packet.bytes.data(), sizeof message);
  return message;
}

}  // namespace

FakeAgent::FakeAgent() {
  char directory[] = "/tmp/ckpt-fake-XXXXXX";
  directory_ = mkdtemp(directory);
  path_ = directory_ + "/sock";
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

FakeAgent::~FakeAgent() {
  Kill();
  rmdir(directory_.c_str());
}

void FakeAgent::Start() {
  if (!listener_.valid()) {
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path_.data(), path_.size());
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(listen(listener_.get(), 4), 0);
  }
  stop_ = false;
  thread_ = std::thread([this] { Serve(); });
}

void FakeAgent::Freeze() {
  stop_ = true;
  uint64_t one = 1;
  ASSERT_EQ(write(wake_.get(), &one, sizeof one), 8);
  thread_.join();
  ASSERT_EQ(read(wake_.get(), &one, sizeof one), 8);
}

void FakeAgent::Kill() {
  if (thread_.joinable()) Freeze();
  std::lock_guard lock(mutex_);
  connection_.Reset();
  listener_.Reset();
  unlink(path_.c_str());
}

void FakeAgent::Serve() {
  Packet packet;
  while (!stop_) {
    pollfd fds[] = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}, {connection_.get(), POLLIN, 0}};
    poll(fds, 3, -1);
    if (fds[1].revents != 0) {
      std::lock_guard lock(mutex_);
      connection_ = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      continue;
    }
    if (fds[2].revents == 0) continue;
    std::lock_guard lock(mutex_);
    if (ReceivePacket(connection_.get(), Wait::kNo, &packet) != 0) {
      connection_.Reset();
    } else {
      Handle(packet);
    }
  }
}

template <typename Message>
void FakeAgent::Send(Message message, MessageType type, std::vector<int> fds) {
  message.head.magic = kMessageMagic;
  message.head.type = static_cast<uint16_t>(type);
  message.head.major = kProtocolMajorMax;
  message.head.size = sizeof message;
  // A trainer that has just closed is no error of the test.
  (void)SendPacket(connection_.get(), {reinterpret_cast<const uint8_t*>(&message), sizeof message}, fds);
}

void FakeAgent::Handle(Packet& packet) {
  auto type = static_cast<MessageType>(Parse<MessageHead>(packet).type);
  counts_[static_cast<size_t>(type)] += 1;
  if (type == MessageType::kHello) {
    HelloReplyMessage reply = {};
    reply.major = kProtocolMajorMax;
    reply.back_pressure = static_cast<uint16_t>(back_pressure.load());
    Send(reply, MessageType::kHelloReply);
  } else if (type == MessageType::kJoin) {
    auto join = Parse<JoinMessage>(packet);
    if (join.ticket != ticket_) attempt_ += 1;
    ticket_ = join.ticket;
    Load();
  } else if (type == MessageType::kLoaded) {
    loaded_ = Parse<LoadedMessage>(packet);
    GoMessage go = {};
    go.attempt = loaded_.attempt;
    go.start_step = sealed_ ? sealed_->step : 0;
    if (loaded_.code == 0 && !hold_go) Send(go, MessageType::kGo);
  } else if (type == MessageType::kLayout) {
    if (!hold_layout) Prepare(Parse<LayoutMessage>(packet), packet.fds.at(0).get());
  } else if (type == MessageType::kResume) {
    ResumeRefusedMessage refused = {};
    refused.code = 5;
    if (refuse_resume) return Send(refused, MessageType::kResumeRefused);
    EXPECT_EQ(Parse<ResumeMessage>(packet).bell_id, ready_.bell_id);
    bell_fd_ = std::move(packet.fds.at(0));
    SendReady();
  } else if (type == MessageType::kCopier) {
    AnswerCopier(Parse<CopierMessage>(packet));
  } else if (type == MessageType::kDrop) {
    drop_ = Parse<CaptureMessage>(packet);
  }
}

void FakeAgent::AnswerCopier(const CopierMessage& message) {
  CopierReplyMessage reply = {};
  memcpy(reply.gpu, message.gpu, sizeof reply.gpu);
  UniqueFd socket;
  UniqueFd process;
  if (start_copier && start_copier(&socket, &process)) {
    return Send(reply, MessageType::kCopierReply, {socket.get(), process.get()});
  }
  reply.code = 1;
  snprintf(reply.sentence, sizeof reply.sentence, "no copiers on this node");
  Send(reply, MessageType::kCopierReply);
}

void FakeAgent::Load() {
  LoadMessage load = {};
  load.attempt = attempt_;
  if (!sealed_) return Send(load, MessageType::kLoad);
  load.snapshot_attempt = sealed_->attempt;
  load.snapshot_step = sealed_->step;
  load.source = static_cast<uint32_t>(Source::kRegion);
  load.verified = offer_verified ? 1 : 0;
  load.slot = sealed_slot_;
  load.layout = ready_.layout;
  load.slot_bytes = ready_.slot_bytes;
  load.skipped_count = 1;
  load.skipped[0] = {1, 999, 4, 0};
  Send(load, MessageType::kLoad, {slot_fds_[sealed_slot_].get(), ctl_fd_.get()});
}

void FakeAgent::OfferAgain() {
  std::lock_guard lock(mutex_);
  attempt_ += 1;
  Load();
}

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

void FakeAgent::SendNews(const NewsMessage& news) {
  std::lock_guard lock(mutex_);
  Send(news, MessageType::kNews);
}

void FakeAgent::SendError(MessageType answers, uint32_t code, const std::string& sentence) {
  std::lock_guard lock(mutex_);
  ErrorMessage message = {};
  message.code = code;
  message.answers = static_cast<uint32_t>(answers);
  memcpy(message.sentence, sentence.data(), sentence.size());
  Send(message, MessageType::kError);
}

int FakeAgent::Count(MessageType type) {
  std::lock_guard lock(mutex_);
  return counts_[static_cast<size_t>(type)];
}

void FakeAgent::WaitForCount(MessageType type, int count) {
  while (Count(type) < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

LoadedMessage FakeAgent::last_loaded() {
  std::lock_guard lock(mutex_);
  return loaded_;
}

CaptureMessage FakeAgent::last_drop() {
  std::lock_guard lock(mutex_);
  return drop_;
}

}  // namespace ckptd
