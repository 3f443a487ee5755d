#include "daemon/transport/sockets/socket_port.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/loop.h"
#include "daemon/os/socket_address.h"
#include "daemon/os/thread.h"
#include "daemon/transport/mailbox.h"
#include "daemon/transport/sockets/greeting.h"
#include "daemon/transport/sockets/plain_wire.h"
#include "daemon/transport/sockets/ready_set.h"
#include "daemon/transport/sockets/socket_stream.h"

namespace ckptd::transport {
namespace {

constexpr size_t kMostPosts = 1024;
constexpr int kAcceptsAtOnce = 64;
constexpr Nanos kHousekeeping = std::chrono::seconds(1);
constexpr Nanos kPause = std::chrono::milliseconds(200);  // when no connection can be accepted

absl::Status AtAddress(const std::string& address, const absl::Status& why) {
  return Error(CodeOf(why), absl::StrCat(address, ": ", why.message()));
}

class Port final : public SocketPort {
 public:
  Port(std::unique_ptr<Wires> wires, BulkWay way, SocketPortOptions options)
      : way_(way), options_(std::move(options)), wires_(std::move(wires)) {}
  ~Port() override;
  [[nodiscard]] absl::Status Start();

  void Serve(Came came) override {
    mailbox_->Put([this, came = std::move(came)]() mutable { came_ = std::move(came); });
  }
  uint16_t port() const override { return port_; }
  BulkWay way() const override { return way_; }
  size_t guests() const override { return *guests_; }
  size_t strangers() const override { return *strangers_; }
  uint64_t made() const override { return made_; }
  void Dial(const BulkAddress& to, std::string hello, Nanos patience, Opened opened) override {
    mailbox_->Put([this, to, hello = std::move(hello), patience, opened = std::move(opened)]() mutable {
      const absl::Status dialled = DialNow(to, std::move(hello), patience, opened);
      if (!dialled.ok()) opened(dialled);
    });
  }

 private:
  // Who has said nothing yet, or was not answered.
  struct Stranger {
    std::shared_ptr<SocketGreeting> greeting;
    Loop::TimerId patience = 0;
    SeatPtr seat;  // of those that came
  };
  using Strangers = std::map<uint64_t, Stranger>;

  void Housekeep();
  void AcceptSome();
  void PauseAccepting();
  void Refused(const std::string& from, const absl::Status& why);
  [[nodiscard]] absl::Status AcceptNow(UniqueFd fd, const std::string& from);
  void MakeRoom();
  void CameIn(uint64_t id, const std::string& from, absl::StatusOr<SocketGreeted> greeted);
  void TakeIn(const std::string& from, SocketGreeted greeted);
  [[nodiscard]] absl::Status DialNow(const BulkAddress& to, std::string hello, Nanos patience, const Opened& opened);
  void Answered(uint64_t id, const std::string& at, absl::StatusOr<SocketGreeted> greeted, const Opened& opened);
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Wire>> MakeWire(UniqueFd fd, Wire::Side side) {
    return wires_->Make(std::move(fd), side, loop_->clock().Monotonic());
  }
  // "tls.came", "tls:10.0.0.7:9466".
  [[nodiscard]] std::string Event(absl::string_view what) const { return absl::StrCat(NameOf(way_), ".", what); }
  [[nodiscard]] std::string Of(absl::string_view address) const { return absl::StrCat(NameOf(way_), ":", address); }
  void Keep(uint64_t id, std::shared_ptr<SocketGreeting> greeting, Nanos patience, SeatPtr seat);
  void Forget(Strangers& from, uint64_t id);
  void CutOffAll();

  const BulkWay way_;
  const SocketPortOptions options_;
  std::unique_ptr<Loop> loop_;
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<ReadySet> ready_;
  const Seat::Count guests_ = std::make_shared<std::atomic<size_t>>(0);
  const Seat::Count strangers_ = std::make_shared<std::atomic<size_t>>(0);
  std::atomic<uint64_t> made_{0};
  uint16_t port_ = 0;
  // The thread's, once it runs:
  const std::unique_ptr<Wires> wires_;
  UniqueFd listener_;
  Came came_;
  Strangers came_in_;
  Strangers dialled_;
  uint64_t last_ = 0;
  absl::Status refused_;  // was said last
  bool ending_ = false;
  std::optional<Thread> thread_;
};

absl::Status Port::Start() {
  CKPTD_ASSIGN_OR_RETURN(loop_, Loop::Create(SystemClock(), kMostPosts));
  mailbox_ = Mailbox::Create(*loop_);
  CKPTD_ASSIGN_OR_RETURN(ready_, ReadySet::Create());
  absl::StatusOr<UniqueFd> listener = ListenTcp(options_.host, options_.port, options_.dscp);
  if (!listener.ok())
    return Error(ErrorCode::REFUSED,
                 absl::StrCat("peers.bulk = ", NameOf(way_), " cannot listen: ", listener.status().message(),
                              "; set peers.bulk_port to a free port, or to 0"));
  listener_ = *std::move(listener);
  CKPTD_ASSIGN_OR_RETURN(port_, LocalPort(listener_.get()));
  CKPTD_RETURN_IF_ERROR(loop_->Watch(ready_->fd(), EPOLLIN, [this](uint32_t) { ready_->Tell(); }));
  CKPTD_RETURN_IF_ERROR(loop_->Watch(listener_.get(), EPOLLIN, [this](uint32_t) { AcceptSome(); }));
  Housekeep();
  thread_.emplace(absl::StrCat("bulk-", NameOf(way_)), [this] { (void)loop_->Run(); });
  return absl::OkStatus();
}

Port::~Port() {
  if (thread_) {
    mailbox_->Put([this] { CutOffAll(); });
    thread_->Join();
  }
  if (!loop_) return;
  if (ready_) loop_->Unwatch(ready_->fd());
  if (listener_.valid()) loop_->Unwatch(listener_.get());
}

void Port::Housekeep() {
  mailbox_->Drain();
  (void)loop_->After(kHousekeeping, [this] { Housekeep(); });
}

void Port::AcceptSome() {
  for (int i = 0; i < kAcceptsAtOnce && !ending_; ++i) {
    SocketAddress from;
    from.size = sizeof from.bytes;
    UniqueFd fd(
        accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from.bytes), &from.size, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid() && (errno == EINTR || errno == ECONNABORTED || errno == EPROTO)) continue;
    if (!fd.valid()) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) PauseAccepting();
      return;
    }
    ++made_;
    const std::string address = Of(TextOf(from.bytes));
    const absl::Status accepted = AcceptNow(std::move(fd), address);
    if (!accepted.ok()) Refused(address, accepted);
  }
}

// The same again and again, from whoever knocks, is said once.
void Port::Refused(const std::string& from, const absl::Status& why) {
  if (why == std::exchange(refused_, why)) return;
  Log(kWarning, Event("refused")).Field("from", from).Error(why);
}

// No descriptors, no memory: they wait outside.
void Port::PauseAccepting() {
  Log(kWarning, Event("pause")).Error(ErrnoError(errno, "accept4", "peers.bulk_port"));
  (void)loop_->ChangeEvents(listener_.get(), 0);
  (void)loop_->After(kPause, [this] { (void)loop_->ChangeEvents(listener_.get(), EPOLLIN); });
}

absl::Status Port::AcceptNow(UniqueFd fd, const std::string& from) {
  if (!came_) return Error(ErrorCode::DRAINING, "nobody is served here now");
  CKPTD_RETURN_IF_ERROR(PrepareTcp(fd.get(), options_.dscp));
  MakeRoom();
  CKPTD_ASSIGN_OR_RETURN(auto wire, MakeWire(std::move(fd), Wire::Side::kCame));
  const uint64_t id = ++last_;
  CKPTD_ASSIGN_OR_RETURN(auto greeting, SocketGreeting::Came(ready_, std::move(wire),
                                                             [this, id, from](absl::StatusOr<SocketGreeted> greeted) {
                                                               CameIn(id, from, std::move(greeted));
                                                             }));
  Keep(id, std::move(greeting), options_.hello_patience, std::make_unique<Seat>(strangers_));
  return absl::OkStatus();
}

void Port::MakeRoom() {
  while (!came_in_.empty() && came_in_.size() >= options_.most_strangers) {
    const std::shared_ptr<SocketGreeting> oldest = came_in_.begin()->second.greeting;
    oldest->GiveUp(Error(ErrorCode::BUSY, "others came that say no more"));
  }
}

void Port::Keep(uint64_t id, std::shared_ptr<SocketGreeting> greeting, Nanos patience, SeatPtr seat) {
  const Loop::TimerId timer = loop_->After(patience, [weak = std::weak_ptr<SocketGreeting>(greeting)] {
    if (const auto here = weak.lock()) here->GiveUp(Error(ErrorCode::TIMEOUT, "no word in time"));
  });
  Strangers& among = seat ? came_in_ : dialled_;
  among[id] = {std::move(greeting), timer, std::move(seat)};
}

void Port::Forget(Strangers& from, uint64_t id) {
  const auto node = from.extract(id);
  if (!node.empty()) loop_->CancelTimer(node.mapped().patience);
}

void Port::CameIn(uint64_t id, const std::string& from, absl::StatusOr<SocketGreeted> greeted) {
  Forget(came_in_, id);
  if (greeted.ok()) return TakeIn(from, *std::move(greeted));
  Log(kDebug, Event("stranger")).Field("from", from).Error(greeted.status());
}

void Port::TakeIn(const std::string& from, SocketGreeted greeted) {
  const bool room = *guests_ < options_.most_guests;
  auto stream =
      SocketStream::Make(ready_, std::move(greeted.wire), from, room ? std::make_unique<Seat>(guests_) : nullptr);
  if (!stream.ok()) return Refused(from, stream.status());
  if (room && came_) {
    Log(kDebug, Event("came")).Field("from", from);
    return came_(*std::move(stream), std::move(greeted.hello));
  }
  const absl::Status why =
      room ? Error(ErrorCode::DRAINING, "nobody is served here now")
           : Error(ErrorCode::BUSY,
                   absl::StrCat(options_.most_guests, " bulk connections are open here; dial again later"));
  (*stream)->Refuse(why);
  (*stream)->Close(why);
}

absl::Status Port::DialNow(const BulkAddress& to, std::string hello, Nanos patience, const Opened& opened) {
  if (ending_) return Error(ErrorCode::DRAINING, "this node leaves");
  const std::string at = Of(absl::StrCat(to.host, ":", to.port));
  ++made_;
  CKPTD_ASSIGN_OR_RETURN(const SocketAddress address, ParseSocketAddress(to.host, to.port));
  absl::StatusOr<UniqueFd> fd = StartConnect(address, options_.dscp);
  if (!fd.ok()) return AtAddress(at, Error(ErrorCode::AGENT_UNREACHABLE, fd.status().message()));
  auto wire = MakeWire(*std::move(fd), Wire::Side::kDialled);
  if (!wire.ok()) return AtAddress(at, Error(ErrorCode::AGENT_UNREACHABLE, wire.status().message()));
  const uint64_t id = ++last_;
  CKPTD_ASSIGN_OR_RETURN(
      auto greeting, SocketGreeting::Dialled(ready_, *std::move(wire), {options_.cluster, to.peer, std::move(hello)},
                                             [this, id, at, opened](absl::StatusOr<SocketGreeted> greeted) {
                                               Answered(id, at, std::move(greeted), opened);
                                             }));
  Keep(id, std::move(greeting), patience, nullptr);
  return absl::OkStatus();
}

void Port::Answered(uint64_t id, const std::string& at, absl::StatusOr<SocketGreeted> greeted, const Opened& opened) {
  Forget(dialled_, id);
  if (!greeted.ok()) return opened(AtAddress(at, greeted.status()));
  const bool proved = greeted->wire->names().has_value();
  auto stream = SocketStream::Make(ready_, std::move(greeted->wire), at, nullptr);
  if (!stream.ok()) return opened(AtAddress(at, stream.status()));
  opened(OpenedBulk{*std::move(stream), std::move(greeted->hello), proved});
}

void Port::CutOffAll() {
  ending_ = true;
  came_ = nullptr;
  ready_->CutOffAll();
  loop_->Stop();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SocketPort>> SocketPort::Open(std::unique_ptr<Wires> wires, BulkWay way,
                                                             const SocketPortOptions& options) {
  auto port = std::make_unique<Port>(std::move(wires), way, options);
  CKPTD_RETURN_IF_ERROR(port->Start());
  return port;
}

absl::StatusOr<std::unique_ptr<SocketPort>> OpenTcpPort(const SocketPortOptions& options) {
  return SocketPort::Open(std::make_unique<PlainWires>(), BulkWay::kTcp, options);
}

}  // namespace ckptd::transport
