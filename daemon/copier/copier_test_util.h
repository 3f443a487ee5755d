// A trainer for tests of the copier: tensors on the host device, a bell, slots, a gate page, and the built ckptd-copier
// at the other end of a socket.
#ifndef CKPTD_DAEMON_COPIER_COPIER_TEST_UTIL_H_
#define CKPTD_DAEMON_COPIER_COPIER_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/core/device/allocation.h"
#include "client/core/wire/fds.h"
#include "client/core/wire/mapping.h"
#include "proto/local/bell.h"
#include "proto/local/copier.h"

namespace ckptd {

inline constexpr uint64_t kAllocationBytes = 2 << 20;
inline constexpr uint64_t kChunkBytes = kMinChunkBytes;
inline constexpr uint64_t kSlotBytes = 16 * kChunkBytes - 4096;  // the last chunk is short
inline constexpr uint32_t kChunks = 16;
inline constexpr uint32_t kSlots = 2;
inline constexpr uint64_t kEpoch = 5;
inline constexpr uint64_t kStep = 1234;
inline constexpr uint64_t kAttempt = 2;
inline constexpr char kUntouched = 'u';
inline constexpr char kHostByte = 'h';

// Until it is true, at most 20 s.
[[nodiscard]] bool Eventually(const std::function<bool()>& check);

template <typename Message>
Message MakeMessage(CopierMessageType type, uint64_t serial) {
  Message message = {};
  message.head.magic = kMessageMagic;
  message.head.type = static_cast<uint16_t>(type);
  message.head.major = kProtocolMajorMax;
  message.head.size = sizeof message;
  message.head.trace = serial + 1000;
  message.serial = serial;
  return message;
}

struct SharedFile {
  UniqueFd fd;
  SharedMapping mapping;
};
[[nodiscard]] SharedFile MakeFile(uint64_t bytes, bool sealed);

class CopierProcess {
 public:
  // With these settings in its environment besides ours.
  explicit CopierProcess(const std::vector<std::string>& environment);
  CopierProcess(const CopierProcess&) = delete;
  CopierProcess& operator=(const CopierProcess&) = delete;
  ~CopierProcess();

  [[nodiscard]] int socket() const { return socket_.get(); }
  void Close() { socket_.Reset(); }

  // Its exit status; -1 when it still runs after 20 s or died of a signal.
  [[nodiscard]] int Exit();
  [[nodiscard]] bool IsRunning();

  // GPU memory that it maps, in regions.
  [[nodiscard]] int Imported() const;

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
  int status_ = 0;
};

class CopierTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  void Launch(const std::vector<std::string>& environment = {});

  template <typename Message>
  void Send(const Message& message, const std::vector<int>& fds = {}) {
    SendBytes(&message, sizeof message, fds);
  }
  void SendBytes(const void* bytes, size_t size, const std::vector<int>& fds);

  // The next packet is COPYING of this COPY.
  void ExpectCopying(uint64_t serial);
  // The next packet is the answer to this serial. `sentence_` keeps its text.
  CopierOutcome Answer(uint64_t serial);
  [[nodiscard]] bool IsQuiet();  // nothing has come

  // Each sends and answers its request.
  CopierOutcome Start(uint8_t uuid_byte = 0);
  CopierOutcome Slots();
  CopierOutcome Import();  // of both allocations
  CopierOutcome Plan(const std::vector<CopierPiece>& pieces, bool sealed = true);
  CopierOutcome Release();
  void Prepare();  // up to PLAN

  // Opens the word of the slot and sends COPY. The serial.
  uint64_t Copy(uint32_t slot = 0, uint32_t line = 0, uint32_t complete = 1);
  void Ready(uint64_t serial, uint32_t line = 0);
  void HostDone(uint64_t serial);  // and writes the host's bytes
  uint64_t Released(uint32_t line = 0) { return gate().lines[line].released.load(std::memory_order_acquire); }

  [[nodiscard]] GatePage& gate() { return *reinterpret_cast<GatePage*>(gate_.mapping.data()); }
  [[nodiscard]] char* slot(uint32_t slot) { return slots_[slot].mapping.data(); }
  [[nodiscard]] BellSlot& word(uint32_t slot);
  [[nodiscard]] std::atomic<uint64_t>& entry(uint32_t slot, uint64_t chunk);
  [[nodiscard]] CaptureState State(uint32_t slot = 0) { return CaptureStateOf(word(slot).word.load()); }
  [[nodiscard]] uint64_t Published(uint32_t slot = 0);  // entries of this epoch, the check among them
  void ExpectCaptured(uint32_t slot, uint64_t epoch);   // bytes, entries and check
  [[nodiscard]] bool IsUntouched(uint32_t slot);
  void MakeSlots();

  uint64_t serial_ = 0;
  uint64_t epoch_ = kEpoch;
  std::string sentence_;
  CopierAnswer answer_ = {};
  uint64_t chunks_told_ = 0;  // before answers
  std::unique_ptr<Device> device_;
  std::unique_ptr<ContextScope> scope_;
  DeviceAddress legacy_ = 0;
  DeviceAddress chunked_ = 0;
  std::vector<CopierPiece> pieces_;
  std::unique_ptr<CopierProcess> process_;
  SharedFile gate_;
  SharedFile bell_;
  std::vector<SharedFile> slots_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_COPIER_COPIER_TEST_UTIL_H_
