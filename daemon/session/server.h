// The trainers' socket: accepts, agrees on the protocol version, decodes, and hands requests to the agent. Who may hold
// which rank is claims.h; what a request means is the handler's.
//
// A peer is known by SO_PEERCRED and its pidfd. A packet that breaks the protocol ends its connection with an ERROR and
// touches no other. All on the loop's thread; nothing blocks: what a peer's descriptors may block, foreign_fds.h keeps
// away.
//
// One user gets so many connections that others find room too; who is above it hears so. A peer that does not say HELLO
// is disconnected. Without descriptors for more connections those that wait go on waiting, for a while.
#ifndef CKPTD_DAEMON_SESSION_SERVER_H_
#define CKPTD_DAEMON_SESSION_SERVER_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/core/wire/packet.h"
#include "daemon/os/loop.h"
#include "daemon/os/unix_listener.h"
#include "daemon/session/claims.h"
#include "daemon/session/foreign_fds.h"
#include "daemon/session/process_watch.h"
#include "daemon/session/requests.h"

namespace ckptd {

struct Peer {
  ProcessId process;
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::vector<gid_t> groups;
};

class SessionHandler {
 public:
  virtual ~SessionHandler() = default;
  // Any request but HELLO, after HELLO.
  virtual void OnRequest(SessionId session, const Peer& peer, Request request, std::vector<UniqueFd> fds) = 0;
  // The connection is gone; the process may live.
  virtual void OnDisconnected(SessionId session) = 0;
  // No thread of the process runs any more. After OnDisconnected of its sessions or before.
  virtual void OnProcessDead(const ProcessId& process) = 0;
};

struct ServerOptions {
  ListenOptions listen;
  size_t max_sessions = 4096;
  size_t max_sessions_of_user = 512;
  size_t max_processes_of_user = 1024;  // that hold or held a rank, and live
  Nanos hello_timeout = std::chrono::seconds(10);
  Nanos accept_pause = std::chrono::seconds(1);
  HelloReplyMessage hello;  // what HELLO is answered with; head and major are filled in here
};

class Server {
 public:
  // `loop`, `handler` and `closer`, a thread for foreign_fds.h, outlive it.
  Server(Loop& loop, SessionHandler& handler, Executor& closer, const ServerOptions& options);
  // Makes the socket: nobody can connect before, and another agent that has it is found at once.
  [[nodiscard]] absl::Status Open();
  ~Server();

  // Sends `message` (a struct of proto/local/messages.h, head.trace set by the caller). A peer that does not read is
  // disconnected: it reconnects when it runs again, and asks anew.
  template <typename Message>
  void Send(SessionId session, MessageType type, Message message, std::span<const int> fds = {}) {
    SetHead(type, message);
    SendRaw(session, BytesOf(message), fds, false);
  }
  // The same for what is repeated or stands in shared memory anyway: dropped and counted when the peer does not read.
  template <typename Message>
  void Hint(SessionId session, MessageType type, Message message) {
    SetHead(type, message);
    SendRaw(session, BytesOf(message), {}, true);
  }
  // ERROR with the status' code and sentence.
  void SendError(SessionId session, MessageType answers, const absl::Status& status);

  // From now on the end of this connection's process is told. REFUSED above max_processes_of_user.
  [[nodiscard]] absl::Status WatchPeer(SessionId session);
  // Watches a process that has no connection (yet): the owner of an adopted slot.
  [[nodiscard]] absl::Status WatchProcess(const ProcessId& process) { return watch_.Watch(process); }

  [[nodiscard]] size_t sessions() const { return sessions_.size(); }

 private:
  struct Session;

  absl::Status Watch();
  void AcceptSome();
  void PauseAccepting();
  void Add(AcceptedSocket accepted);
  [[nodiscard]] absl::Status CheckRoom(uint32_t uid) const;
  void TurnAway(const AcceptedSocket& accepted, const absl::Status& why);
  void OnReadable(SessionId session);
  bool TakePacket(SessionId id, Session& session);
  absl::Status TakeRequest(SessionId id, Session& session);
  void RefusePacket(SessionId id, const Session& session, const absl::Status& why);
  void OnDead(const ProcessId& process);
  absl::Status Greet(SessionId id, Session& session, const HelloRequest& hello);
  void SendRaw(SessionId session, std::span<const uint8_t> packet, std::span<const int> fds, bool hint);
  void Close(SessionId session);

  static ErrorMessage ErrorOf(MessageType answers, const absl::Status& status);
  template <typename Message>
  static void SetHead(MessageType type, Message& message) {
    message.head.magic = kMessageMagic;
    message.head.type = static_cast<uint16_t>(type);
    message.head.major = kProtocolMajorMax;
    message.head.size = sizeof(message);
    message.head.reserved = 0;
  }
  template <typename Message>
  static std::span<const uint8_t> BytesOf(const Message& message) {
    static_assert(std::is_trivially_copyable_v<Message>);
    return {reinterpret_cast<const uint8_t*>(&message), sizeof(message)};
  }

  Loop& loop_;
  SessionHandler& handler_;
  std::optional<UnixListener> listener_;  // from Open() on
  const ServerOptions options_;
  ProcessWatch watch_;
  ForeignFds foreign_fds_;
  SessionId next_session_ = 1;
  std::map<SessionId, std::unique_ptr<Session>> sessions_;
  std::map<uint32_t, size_t> sessions_of_user_;
  std::map<ProcessId, uint32_t> users_;  // of processes that WatchPeer watches
  Loop::TimerId pause_ = 0;
  uint64_t turned_away_ = 0;  // since the log told of it
  Nanos told_{0};
  Packet packet_;  // the present one; its memory is used for the next
};

// Copies `text` into a zero-filled field of a message, cut to fit with its final zero, between two characters of UTF-8.
template <size_t kSize>
void SetText(char (&field)[kSize], absl::string_view text) {
  size_t length = text.size() < kSize ? text.size() : kSize - 1;
  while (length > 0 && length < text.size() && (text[length] & 0xC0) == 0x80) --length;
  std::memset(field, 0, kSize);
  std::memcpy(field, text.data(), length);
}

}  // namespace ckptd

#endif  // CKPTD_DAEMON_SESSION_SERVER_H_
