// The thread that speaks with the agent (proto/local/messages.h): connects, greets, joins or resumes, hands over the
// layout, maps what comes back, and carries hints and news.
//
// It sleeps in poll on three descriptors: the socket, State::wake (somebody changed the state), and a timer (reconnect
// with backoff, or ask again for what was refused). After each event it compares the state with what this connection
// was told, and sends the difference: that is why a reconnection needs no code of its own.
#ifndef CKPTD_CLIENT_SRC_SESSION_H_
#define CKPTD_CLIENT_SRC_SESSION_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "client/core/threads/sync.h"
#include "client/core/wire/fds.h"
#include "client/core/wire/packet.h"
#include "client/src/state.h"

namespace ckptd {

class Session {
 public:
  explicit Session(State& state) : state_(state) {}

  [[nodiscard]] bool Start();
  // After state.stopping is set and State::Wake.
  void Join() { thread_.Join(); }

 private:
  // What the agent was told and said on this connection.
  struct Connection {
    bool greeted = false;
    bool resuming = false;          // RESUME waits for its answer
    bool refused = false;           // JOIN or RESUME of a trainer that runs: the timer asks again
    bool blocked = false;           // the socket was full: go on when it is writable
    bool patience = false;          // the agent sent PATIENCE: it knows LOADING
    uint64_t reads_told = 0;        // State::reads when LOADING was sent last
    uint64_t joined_ticket = 0;     // of JOIN or RESUME
    uint64_t offered_attempt = 0;   // of the last LOAD
    uint64_t reported_attempt = 0;  // of the last LOADED
    uint64_t layout_attempt = 0;    // of the last LAYOUT
    DevicesMessage devices = {};    // as told last
    RescueMessage rescue = {};      // as told last
    uint64_t copiers_asked = 0;     // State::pull.requests when COPIER was sent last
    std::shared_ptr<const Shape> layout;
  };

  static void Run(void* self);
  static void Broke(void* self, const char* why) noexcept;
  void Loop();
  [[nodiscard]] std::shared_ptr<const UniqueFd> IdleCopier() const;
  bool WaitForEvent(bool* readable);
  void OnTimer();
  void AskAgain();

  // connect.cc
  void Connect();
  void TryPaths();
  [[nodiscard]] uint64_t MovesAt() const;
  void TellTried(std::string tried, const std::string* refused, bool holds_back);
  void AwaitRetry();
  void Disconnect();
  void ArmTimer(uint64_t delay_ns);

  // session_send.cc. False: the socket is full, or gone.
  void SendWhatIsDue();
  bool SendHello();
  bool SendResume();
  bool SendJoin();
  bool SendLoading();
  bool SendLoaded();
  bool SendLayout();
  bool SendDevices();
  bool SendCopier();
  bool SendRescue();
  bool SendHints();
  void SendBye();
  template <typename Message>
  bool Send(Message& message, MessageType type, std::span<const int> fds = {});

  // session_receive.cc. False: the peer broke the protocol.
  bool Receive();
  bool Dispatch(Packet& packet);
  bool OnHelloReply(const HelloReplyMessage& message);
  void OnSkipped(const SkippedMessage& from);
  bool OnLoad(const LoadMessage& message, std::span<UniqueFd> fds);
  void OnPatience(const PatienceMessage& message);
  void OnGo(const GoMessage& message);
  void OnError(const ErrorMessage& message);
  void OnRefusedWhileRunning(int32_t number);
  void OnLayoutState(const LayoutStateMessage& message);
  bool OnLayoutReady(const LayoutReadyMessage& message, std::span<UniqueFd> fds);
  void OnSlot(const SlotMessage& message, std::span<UniqueFd> fds);
  void OnCopierReply(const CopierReplyMessage& message, std::span<UniqueFd> fds);
  void OnGrant();
  void OnNews(const NewsMessage& message);
  void OnResumeRefused(const ResumeRefusedMessage& message);
  void ReplaceSlots(const std::shared_ptr<Attachment>& attachment, const LayoutReadyMessage& message,
                    std::span<UniqueFd> fds);
  void RefuseLayout(int32_t number, const char* sentence);

  State& state_;
  Thread thread_;
  UniqueFd socket_;
  UniqueFd timer_;
  uint64_t backoff_ns_ = 0;
  uint64_t retry_ns_ = 0;  // when to connect next
  uint64_t away_ns_ = 0;   // since when nobody greets
  size_t path_ = 0;        // of State::sockets: where somebody accepted last
  Connection connection_;
  Packet packet_;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_SESSION_H_
