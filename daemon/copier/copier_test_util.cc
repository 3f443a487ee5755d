#include "daemon/copier/copier_test_util.h"

#include <cuda.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "client/core/copy/crc32c.h"
#include "client/core/copy/fill_check.h"
#include "client/core/wire/packet.h"

extern char** environ;

namespace ckptd {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr uint64_t kSlotsOffset = 128;
constexpr uint64_t kChunksOffset = kSlotsOffset + kSlots * sizeof(BellSlot);
constexpr uint64_t kBellBytes = 4096;
static_assert(kChunksOffset + kSlots * (kChunks + 1) * 8 <= kBellBytes);

// The name under which the host device's memory shows in /proc.
std::string SharedName() { return "copier-test-" + std::to_string(getpid()); }

std::vector<std::string> EnvironmentWith(const std::vector<std::string>& extra) {
  std::vector<std::string> all = extra;
  for (char** one = environ; *one != nullptr; ++one) all.emplace_back(*one);
  all.insert(all.begin(), std::string("LD_LIBRARY_PATH=") + CKPTD_HOST_DEVICE);
  all.insert(all.begin(), "TSAN_OPTIONS=atexit_sleep_ms=0");  // else an end under this sanitizer takes a second
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// What the trainer's tensors hold: no two places alike.
char DeviceByte(uint32_t allocation, uint64_t offset) {
  return static_cast<char>((offset * 2654435761u >> 13) ^ (offset >> 8) ^ (allocation * 91));
}

}  // namespace

bool Eventually(const std::function<bool()>& check) {
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!check()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

SharedFile MakeFile(uint64_t bytes, bool sealed) {
  SharedFile file;
  file.fd.Reset(memfd_create("copier-test-file", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(file.fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(SharedMapping::Map(file.fd.get(), bytes, Access::kReadWrite, &file.mapping), 0);
  if (sealed) {
    EXPECT_EQ(fcntl(file.fd.get(), F_ADD_SEALS, kSeals), 0);
  }
  return file;
}

CopierProcess::CopierProcess(const std::vector<std::string>& environment) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  socket_.Reset(ends[0]);
  UniqueFd theirs(ends[1]);
  timeval limit = {20, 0};
  setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  std::vector<std::string> arguments = {CKPTD_COPIER, "--socket", "99", "--region", "0123"};
  std::vector<std::string> all = EnvironmentWith(environment);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 99);
  int error = posix_spawn(&pid_, CKPTD_COPIER, &actions, nullptr, Pointers(arguments).data(), Pointers(all).data());
  EXPECT_EQ(error, 0);
  posix_spawn_file_actions_destroy(&actions);
}

CopierProcess::~CopierProcess() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool CopierProcess::IsRunning() {
  if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = 0;
  return pid_ > 0;
}

int CopierProcess::Exit() {
  if (!Eventually([&] { return !IsRunning(); })) return -1;
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
}

int CopierProcess::Imported() const {
  std::ifstream lines("/proc/" + std::to_string(pid_) + "/maps");
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    count += line.find("memfd:fakecuda-" + SharedName()) != std::string::npos ? 1 : 0;
  }
  return count;
}

void CopierTest::SetUp() {
  setenv("FAKECUDA_SHARED", SharedName().c_str(), 1);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_TRUE(Device::Create(0, &device_).ok());
  scope_ = std::make_unique<ContextScope>(*device_);
  ASSERT_TRUE(device_->Allocate(kAllocationBytes, &legacy_).ok());
  CUdeviceptr range = 0;
  ASSERT_EQ(cuMemAddressReserve(&range, kAllocationBytes, 0, 0, 0), CUDA_SUCCESS);
  CUmemAllocationProp prop = {};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle memory = 0;
  ASSERT_EQ(cuMemCreate(&memory, kAllocationBytes, &prop, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(range, kAllocationBytes, 0, memory, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(memory), CUDA_SUCCESS);
  chunked_ = range;
  for (uint64_t i = 0; i < kAllocationBytes; ++i) {
    reinterpret_cast<char*>(legacy_)[i] = DeviceByte(0, i);
    reinterpret_cast<char*>(chunked_)[i] = DeviceByte(1, i);
  }
  // A header of the host's, a piece over several chunks, a hole inside a chunk, small ones, a hole of whole chunks.
  pieces_ = {{4096, 5 * kChunkBytes, 8192, 0, 0},
             {4096 + 5 * kChunkBytes + 100, 3000, 77, 1, 0},
             {4096 + 5 * kChunkBytes + 3100, 50, 1, 0, 0},
             {4096 + 6 * kChunkBytes, 3 * kChunkBytes, kAllocationBytes - 3 * kChunkBytes, 1, 0},
             {12 * kChunkBytes, kSlotBytes - 12 * kChunkBytes, 0, 0, 0}};
  gate_ = MakeFile(36864, true);
  MakeSlots();
}

void CopierTest::MakeSlots() {
  bell_ = MakeFile(kBellBytes, true);
  auto& head = *reinterpret_cast<BellHead*>(bell_.mapping.data());
  head.magic = kBellMagic;
  head.major = kRegionMajor;
  head.head_bytes = sizeof head;
  head.slot_count = kSlots;
  head.chunk_count = kChunks;
  head.slots_offset = kSlotsOffset;
  head.chunks_offset = kChunksOffset;
  head.file_bytes = kBellBytes;
  slots_.clear();
  for (uint32_t i = 0; i < kSlots; ++i) {
    slots_.push_back(MakeFile(kSlotBytes, false));
    memset(slot(i), kUntouched, kSlotBytes);
  }
}

void CopierTest::TearDown() {
  process_.reset();
  EXPECT_TRUE(device_->Free(legacy_).ok());
  EXPECT_EQ(cuMemUnmap(chunked_, kAllocationBytes), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(chunked_, kAllocationBytes), CUDA_SUCCESS);
  scope_.reset();
  device_.reset();
}

void CopierTest::Launch(const std::vector<std::string>& environment) {
  process_ = std::make_unique<CopierProcess>(environment);
}

void CopierTest::SendBytes(const void* bytes, size_t size, const std::vector<int>& fds) {
  EXPECT_EQ(SendPacket(process_->socket(), {static_cast<const uint8_t*>(bytes), size}, fds), 0);
}

void CopierTest::ExpectCopying(uint64_t serial) {
  Packet packet;
  ASSERT_EQ(ReceivePacket(process_->socket(), Wait::kYes, &packet), 0);
  CopierSerial copying = {};
  ASSERT_EQ(packet.bytes.size(), sizeof copying);
  memcpy(&copying, packet.bytes.data(), sizeof copying);
  EXPECT_EQ(copying.head.magic, kMessageMagic);
  EXPECT_EQ(copying.head.type, static_cast<uint16_t>(CopierMessageType::kCopying));
  EXPECT_EQ(copying.head.size, sizeof copying);
  EXPECT_EQ(copying.serial, serial);
}

// COPYING behind a chunk.
static bool IsChunk(const Packet& packet, uint64_t serial) {
  CopierSerial copying = {};
  if (packet.bytes.size() != sizeof copying) return false;
  memcpy(&copying, packet.bytes.data(), sizeof copying);
  return copying.head.type == static_cast<uint16_t>(CopierMessageType::kCopying) && copying.serial == serial;
}

CopierOutcome CopierTest::Answer(uint64_t serial) {
  Packet packet;
  int error = ReceivePacket(process_->socket(), Wait::kYes, &packet);
  for (; error == 0 && IsChunk(packet, serial); ++chunks_told_) {
    error = ReceivePacket(process_->socket(), Wait::kYes, &packet);
  }
  EXPECT_EQ(error, 0) << "instead of the answer to " << serial;
  EXPECT_EQ(packet.bytes.size(), sizeof answer_);
  if (packet.bytes.size() != sizeof answer_) return CopierOutcome{99};
  memcpy(&answer_, packet.bytes.data(), sizeof answer_);
  EXPECT_EQ(answer_.head.magic, kMessageMagic);
  EXPECT_EQ(answer_.head.type, static_cast<uint16_t>(CopierMessageType::kAnswer));
  EXPECT_EQ(answer_.serial, serial);
  sentence_ = answer_.sentence;
  auto outcome = static_cast<CopierOutcome>(answer_.outcome);
  if (outcome != CopierOutcome::kDone) {
    EXPECT_NE(sentence_, "");
  }
  return outcome;
}

bool CopierTest::IsQuiet() {
  pollfd one = {process_->socket(), POLLIN, 0};
  return poll(&one, 1, 100) == 0;
}

CopierOutcome CopierTest::Start(uint8_t uuid_byte) {
  auto start = MakeMessage<CopierStart>(CopierMessageType::kStart, ++serial_);
  start.version = kCopierVersion;
  memset(start.gpu, uuid_byte, sizeof start.gpu);
  Send(start, {gate_.fd.get()});
  return Answer(serial_);
}

CopierOutcome CopierTest::Slots() {
  auto message = MakeMessage<CopierSlots>(CopierMessageType::kSlots, ++serial_);
  message.slot_bytes = kSlotBytes;
  message.chunk_bytes = kChunkBytes;
  message.slot_count = kSlots;
  message.chunk_count = kChunks;
  Send(message, {bell_.fd.get(), slots_[0].fd.get(), slots_[1].fd.get()});
  return Answer(serial_);
}

CopierOutcome CopierTest::Import() {
  auto message = MakeMessage<CopierImport>(CopierMessageType::kImport, ++serial_);
  message.count = 2;
  std::vector<int> fds;
  for (uint32_t i = 0; i < 2; ++i) {
    DeviceAllocation found;
    EXPECT_TRUE(FindAllocation(i == 0 ? legacy_ : chunked_, &found).ok());
    DeviceHandle handle;
    EXPECT_TRUE(Export(found, &handle).ok());
    message.allocations[i].bytes = found.bytes;
    message.allocations[i].kind = static_cast<uint32_t>(handle.kind);
    memcpy(message.allocations[i].handle, handle.bytes.data(), handle.bytes.size());
    if (handle.fd >= 0) fds.push_back(handle.fd);
  }
  EXPECT_EQ(fds.size(), 1u);
  Send(message, fds);
  for (int fd : fds) close(fd);
  return Answer(serial_);
}

CopierOutcome CopierTest::Plan(const std::vector<CopierPiece>& pieces, bool sealed) {
  auto message = MakeMessage<CopierPlan>(CopierMessageType::kPlan, ++serial_);
  message.count = pieces.size();
  UniqueFd fd(memfd_create("plan", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  auto bytes = static_cast<ssize_t>(pieces.size() * sizeof(CopierPiece));
  EXPECT_EQ(write(fd.get(), pieces.data(), static_cast<size_t>(bytes)), bytes);
  if (sealed) {
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, kSeals | F_SEAL_WRITE), 0);
  }
  Send(message, {fd.get()});
  return Answer(serial_);
}

CopierOutcome CopierTest::Release() {
  Send(MakeMessage<CopierSerial>(CopierMessageType::kRelease, ++serial_));
  return Answer(serial_);
}

void CopierTest::Prepare() {
  ASSERT_EQ(Start(), CopierOutcome::kDone) << sentence_;
  ASSERT_EQ(Slots(), CopierOutcome::kDone) << sentence_;
  ASSERT_EQ(Import(), CopierOutcome::kDone) << sentence_;
  ASSERT_EQ(Plan(pieces_), CopierOutcome::kDone) << sentence_;
}

uint64_t CopierTest::Copy(uint32_t slot, uint32_t line, uint32_t complete) {
  word(slot).word.store(CaptureWord(++epoch_, CaptureState::kOpen));
  auto copy = MakeMessage<CopierCopy>(CopierMessageType::kCopy, ++serial_);
  copy.epoch = epoch_;
  copy.step = kStep;
  copy.attempt = kAttempt;
  copy.slot = slot;
  copy.line = line;
  copy.complete = complete;
  Send(copy);
  return serial_;
}

void CopierTest::Ready(uint64_t serial, uint32_t line) {
  gate().lines[line].ready.store(serial, std::memory_order_release);
}

void CopierTest::HostDone(uint64_t serial) {
  for (uint32_t i = 0; i < kSlots; ++i) {
    if (word(i).word.load() != CaptureWord(epoch_, CaptureState::kOpen)) continue;
    uint64_t at = 0;
    for (const CopierPiece& piece : pieces_) {
      memset(slot(i) + at, kHostByte, piece.slot_offset - at);
      at = piece.slot_offset + piece.bytes;
    }
    memset(slot(i) + at, kHostByte, kSlotBytes - at);
  }
  Send(MakeMessage<CopierSerial>(CopierMessageType::kHostDone, serial));
}

BellSlot& CopierTest::word(uint32_t slot) {
  return reinterpret_cast<BellSlot*>(bell_.mapping.data() + kSlotsOffset)[slot];
}

std::atomic<uint64_t>& CopierTest::entry(uint32_t slot, uint64_t chunk) {
  auto* entries = reinterpret_cast<std::atomic<uint64_t>*>(bell_.mapping.data() + kChunksOffset);
  return entries[slot * BellRow(kChunks) + chunk];
}

uint64_t CopierTest::Published(uint32_t slot) {
  uint64_t count = 0;
  for (uint64_t i = 0; i <= kChunks; ++i) count += ChunkDone(entry(slot, i).load(), epoch_) ? 1 : 0;
  return count;
}

void CopierTest::ExpectCaptured(uint32_t slot_number, uint64_t epoch) {
  std::string expected(kSlotBytes, kHostByte);
  for (const CopierPiece& piece : pieces_) {
    for (uint64_t i = 0; i < piece.bytes; ++i) {
      expected[piece.slot_offset + i] = DeviceByte(piece.allocation, piece.offset + i);
    }
  }
  EXPECT_TRUE(memcmp(slot(slot_number), expected.data(), kSlotBytes) == 0) << "slot " << slot_number;
  FillCheck check(epoch, kStep, kAttempt);
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    uint64_t at = chunk * kChunkBytes;
    uint32_t crc = Crc32c(0, expected.data() + at, std::min(kChunkBytes, kSlotBytes - at));
    EXPECT_EQ(entry(slot_number, chunk).load(), ChunkEntry(epoch, crc)) << "chunk " << chunk;
    check.Add(crc);
  }
  EXPECT_EQ(entry(slot_number, kChunks).load(), ChunkEntry(epoch, check.value()));
}

bool CopierTest::IsUntouched(uint32_t number) {
  return std::all_of(slot(number), slot(number) + kSlotBytes, [](char byte) { return byte == kUntouched; });
}

}  // namespace ckptd
