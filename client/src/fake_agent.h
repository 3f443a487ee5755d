// An agent for the unit tests: one job, one rank, in a thread of the test. It speaks the real messages over a real
// socket and keeps the real structs in memfds, but never acts by itself: the test grants, seals, restarts and
// misbehaves.
#ifndef CKPTD_CLIENT_SRC_FAKE_AGENT_H_
#define CKPTD_CLIENT_SRC_FAKE_AGENT_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "client/core/wire/fds.h"
#include "client/core/wire/mapping.h"
#include "client/core/wire/packet.h"
#include "proto/local/bell.h"
#include "proto/local/messages.h"
#include "proto/local/region.h"

namespace ckptd {

class FakeAgent {
 public:
  FakeAgent();
  ~FakeAgent();

  [[nodiscard]] const std::string& socket() const { return path_; }

  void Start();   // listens and serves
  void Freeze();  // like SIGSTOP: connections stay open, nothing is read
  void Kill();    // like SIGKILL: connections close, what is in memfds stays

  // Shared memory of the newest layout; only after WaitForLayout.
  void WaitForLayout();
  [[nodiscard]] BellHead& bell();
  [[nodiscard]] BellSlot& bell_slot(uint32_t slot);
  [[nodiscard]] UniqueFd hint();  // a further descriptor of it
  [[nodiscard]] uint64_t chunk_entry(uint32_t slot, uint32_t chunk);
  [[nodiscard]] const LayoutReadyMessage& ready() const { return ready_; }
  [[nodiscard]] std::string SlotBytes(uint32_t slot);
  void DamageSlot(uint32_t slot, uint64_t offset);

  // Opens the slot's word for a new epoch, writes the grant, and tells. Returns the epoch.
  uint64_t Grant(uint32_t slot, uint64_t floor = 1);
  void Revoke();  // the grant word becomes 0
  // Seals from COMPLETE: writes the record. The snapshot is then offered by the next LOAD.
  void Seal(uint32_t slot);
  void ReplaceSlot(uint32_t slot);

  void SendNews(const NewsMessage& news);
  void SendError(MessageType answers, uint32_t code, const std::string& sentence);
  void AskForPatience(uint64_t patience_ms);
  void OfferAgain();  // LOAD of a new attempt, as after another rank's failure

  // Before each LOAD from now on, of which it is the `attempt`.
  void SaySkipped(uint64_t attempt, uint64_t step, const std::string& why);

  // What LOAD, GO and RESUME answer.
  std::atomic<bool> refuse_resume{false};
  std::atomic<uint32_t> refuse_with{0};  // JOIN and RESUME: an ERROR of this number
  std::atomic<bool> hold_go{false};
  std::atomic<bool> offer_verified{false};  // what LOAD says of the slot
  std::atomic<BackPressure> back_pressure{BackPressure::kSkip};
  std::atomic<bool> hold_layout{false};
  std::atomic<bool> none_granted{false};  // no slot of this attempt before Grant(); else one was, and is in use
  std::atomic<uint64_t> chunk_bytes{64 << 10};
  // Starts a copier: its socket and its pidfd, which are the agent's then. Set before Start. Without it, or when it
  // says false, COPIER is refused.
  std::function<bool(UniqueFd* socket, UniqueFd* process)> start_copier;

  // Messages received so far, of one type.
  [[nodiscard]] int Count(MessageType type);
  [[nodiscard]] JoinMessage last_join();
  [[nodiscard]] LoadedMessage last_loaded();
  [[nodiscard]] CaptureMessage last_drop();
  [[nodiscard]] RescueMessage last_rescue();
  void WaitForCount(MessageType type, int count);

 private:
  void Serve();
  void Handle(Packet& packet);
  void Load();
  void Refuse(MessageType answers, uint32_t code, const std::string& sentence);
  void AnswerCopier(const CopierMessage& message);
  void Prepare(const LayoutMessage& message, int headers);
  void BuildCtl(const LayoutMessage& message);
  void BuildBell();
  void SendReady();
  template <typename Message>
  void Send(Message message, MessageType type, const std::vector<int>& fds = {}) {
    message.head.magic = kMessageMagic;
    message.head.type = static_cast<uint16_t>(type);
    message.head.major = kProtocolMajorMax;
    message.head.size = sizeof message;
    SendBytes({reinterpret_cast<const uint8_t*>(&message), sizeof message}, fds);
  }
  void SendBytes(std::span<const uint8_t> bytes, const std::vector<int>& fds);
  [[nodiscard]] struct Grant& grant();
  [[nodiscard]] SlotState& slot_state(uint32_t slot);

  std::string directory_;
  std::string path_;
  UniqueFd listener_;
  UniqueFd connection_;
  UniqueFd wake_;
  std::thread thread_;
  std::atomic<bool> stop_{false};

  std::mutex mutex_;
  std::vector<int> counts_ = std::vector<int>(64);
  JoinMessage join_ = {};
  LoadedMessage loaded_ = {};
  CaptureMessage drop_ = {};
  RescueMessage rescue_ = {};
  bool has_layout_ = false;
  uint64_t attempt_ = 0;
  uint64_t ticket_ = 0;
  uint64_t epoch_ = 0;
  std::optional<RecordHead> sealed_;
  uint32_t sealed_slot_ = 0;
  std::vector<SkippedMessage> said_skipped_;
  uint64_t next_file_ = 100;

  LayoutReadyMessage ready_ = {};
  Superblock superblock_ = {};
  UniqueFd ctl_fd_;
  UniqueFd bell_fd_;
  UniqueFd hint_;
  std::vector<UniqueFd> slot_fds_;
  SharedMapping ctl_;
  SharedMapping bell_;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_FAKE_AGENT_H_
