#include "daemon/transport/ucx/ucx_port.h"

#include <sys/epoll.h>

#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/loop.h"
#include "daemon/os/socket_address.h"
#include "daemon/os/thread.h"
#include "daemon/transport/ucx/ucp_calls.h"
#include "daemon/transport/ucx/ucx_stream.h"

namespace ckptd::transport {
namespace {

constexpr size_t kMostPosts = 1024;
constexpr Nanos kHousekeeping = std::chrono::seconds(1);

class Port final : public UcxPort {
 public:
  Port(const UcpCalls& ucp, UcxPortOptions options) : ucp_(ucp), options_(std::move(options)) {}
  ~Port() override;
  [[nodiscard]] absl::Status Start();

  void Serve(Came came) override {
    mailbox_->Put([this, came = std::move(came)]() mutable { came_ = std::move(came); });
  }
  uint16_t port() const override { return port_; }
  size_t streams() const override { return count_; }
  uint64_t made() const override { return made_; }
  BulkWay way() const override { return BulkWay::kUcx; }
  void Dial(const BulkAddress& to, std::string hello, Nanos patience, Opened opened) override {
    mailbox_->Put([this, host = to.host, port = to.port, hello = std::move(hello), patience,
                   opened = std::move(opened)]() mutable { DialNow(host, port, std::move(hello), patience, opened); });
  }

 private:
  using StreamPtr = std::shared_ptr<UcxStream>;

  [[nodiscard]] absl::Status MakeContext();
  [[nodiscard]] absl::Status Listen();
  void Housekeep();
  void ProgressListener();
  void Asked(ucp_conn_request_h request);
  void AcceptNow(ucp_conn_request_h request);
  void DialNow(const std::string& host, uint16_t port, std::string hello, Nanos patience, const Opened& opened);
  [[nodiscard]] absl::StatusOr<StreamPtr> MakeStream(std::string address,
                                                     std::function<void(absl::StatusOr<std::string>)> first);
  void Gone(uint64_t id);
  void CutOffAll();
  [[nodiscard]] UcxHome Home() const { return {ucp_, context_, *loop_, mailbox_}; }

  const UcpCalls& ucp_;
  const UcxPortOptions options_;
  ucp_context_h context_ = nullptr;
  std::unique_ptr<Loop> loop_;
  std::shared_ptr<Mailbox> mailbox_;
  std::atomic<size_t> count_{0};
  std::atomic<uint64_t> made_{0};
  uint16_t port_ = 0;
  // The thread's, once it runs:
  ucp_worker_h worker_ = nullptr;  // of the listener
  ucp_listener_h listener_ = nullptr;
  int event_fd_ = -1;
  Came came_;
  std::map<uint64_t, StreamPtr> streams_;
  std::set<uint64_t> guests_;  // of them, those that others made
  uint64_t last_ = 0;
  bool ending_ = false;
  std::vector<ucp_conn_request_h> requests_;
  std::optional<Thread> thread_;
};

absl::Status Port::MakeContext() {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_.ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return UcxError(ucp_, status, "its settings (UCX_... of the environment)");
  if (options_.only_loopback) status = ucp_.ucp_config_modify(config, "NET_DEVICES", "lo");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 0;
  if (status == UCS_OK) status = ucp_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucp_.ucp_config_release(config);
  return status == UCS_OK ? absl::OkStatus() : UcxError(ucp_, status, "starting it");
}

absl::Status Port::Listen() {
  ucp_worker_params_t of_worker{};
  of_worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  of_worker.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucs_status_t status = ucp_.ucp_worker_create(context_, &of_worker, &worker_);
  if (status == UCS_OK) status = ucp_.ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return UcxError(ucp_, status, "making a worker");
  CKPTD_ASSIGN_OR_RETURN(const SocketAddress address, ParseSocketAddress(options_.host, 0));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {address.get(), address.size};
  params.conn_handler.arg = this;
  params.conn_handler.cb = [](ucp_conn_request_h request, void* arg) { static_cast<Port*>(arg)->Asked(request); };
  status = ucp_.ucp_listener_create(worker_, &params, &listener_);
  if (status != UCS_OK) return UcxError(ucp_, status, absl::StrCat("listening at ", options_.host));
  ucp_listener_attr_t about{};
  about.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = ucp_.ucp_listener_query(listener_, &about);
  if (status != UCS_OK) return UcxError(ucp_, status, "its listener's address");
  port_ = PortOf(about.sockaddr);
  return absl::OkStatus();
}

absl::Status Port::Start() {
  CKPTD_ASSIGN_OR_RETURN(loop_, Loop::Create(SystemClock(), kMostPosts));
  mailbox_ = Mailbox::Create(*loop_);
  CKPTD_RETURN_IF_ERROR(MakeContext());
  CKPTD_RETURN_IF_ERROR(Listen());
  // By the mailbox, so that whoever connects after Serve finds what Serve has put there.
  const auto progress = [this] { ProgressListener(); };
  CKPTD_RETURN_IF_ERROR(loop_->Watch(event_fd_, EPOLLIN, [this, progress](uint32_t) { mailbox_->Put(progress); }));
  Housekeep();
  ProgressListener();
  thread_.emplace("ucx", [this] { (void)loop_->Run(); });
  return absl::OkStatus();
}

Port::~Port() {
  if (thread_) {
    mailbox_->Put([this] { CutOffAll(); });
    thread_->Join();
  }
  if (listener_ != nullptr) ucp_.ucp_listener_destroy(listener_);
  if (event_fd_ >= 0) loop_->Unwatch(event_fd_);
  if (worker_ != nullptr) ucp_.ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_.ucp_cleanup(context_);
}

void Port::Housekeep() {
  mailbox_->Drain();
  (void)loop_->After(kHousekeeping, [this] { Housekeep(); });
}

void Port::ProgressListener() {
  do {
    while (ucp_.ucp_worker_progress(worker_) != 0) {
    }
    for (ucp_conn_request_h request : std::exchange(requests_, {})) AcceptNow(request);
  } while (ucp_.ucp_worker_arm(worker_) == UCS_ERR_BUSY);
}

// Within UCX's progress: nothing is made here.
void Port::Asked(ucp_conn_request_h request) {
  const bool room = came_ && !ending_ && guests_.size() + requests_.size() < options_.most_guests;
  if (room)
    requests_.push_back(request);
  else
    (void)ucp_.ucp_listener_reject(listener_, request);
}

void Port::AcceptNow(ucp_conn_request_h request) {
  ucp_conn_request_attr_t about{};
  about.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
  const bool known = ucp_.ucp_conn_request_query(request, &about) == UCS_OK;
  const std::string from = absl::StrCat("ucx:", known ? TextOf(about.client_address) : "?");
  const uint64_t id = last_ + 1;
  absl::StatusOr<StreamPtr> made = MakeStream(from, [this, id](absl::StatusOr<std::string> hello) {
    const auto found = streams_.find(id);
    if (found == streams_.end()) return;
    const StreamPtr stream = found->second;
    if (!hello.ok() || !came_) return stream->Close(hello.status());
    came_({stream.get(), [stream](BulkGuest* last) { last->Close(absl::OkStatus()); }}, *std::move(hello));
  });
  if (!made.ok()) {
    Log(kWarning, "ucx.refused").Field("from", from).Error(made.status());
    return (void)ucp_.ucp_listener_reject(listener_, request);
  }
  guests_.insert(id);
  if (!(*made)->Accept(request).ok()) return (*made)->CutOff();
  (void)loop_->After(options_.hello_patience, [weak = std::weak_ptr<UcxStream>(*made)] {
    const StreamPtr here = weak.lock();
    if (here && !here->greeted()) here->CutOff();
  });
}

void Port::DialNow(const std::string& host, uint16_t port, std::string hello, Nanos patience, const Opened& opened) {
  const absl::StatusOr<SocketAddress> to = ParseSocketAddress(host, port);
  if (!to.ok()) return opened(to.status());
  const uint64_t id = last_ + 1;
  absl::StatusOr<StreamPtr> made =
      MakeStream(absl::StrCat("ucx:", host, ":", port), [this, id, opened](absl::StatusOr<std::string> answer) {
        const auto found = streams_.find(id);
        if (found == streams_.end()) return;
        const StreamPtr stream = found->second;
        if (!answer.ok()) {
          stream->Close(answer.status());
          return opened(answer.status());
        }
        opened(OpenedBulk{{stream.get(), [stream](BulkStream* last) { last->Close(absl::OkStatus()); }},
                          *std::move(answer)});
      });
  if (!made.ok()) return opened(made.status());
  const absl::Status dialled = (*made)->Dial(to->get(), to->size, std::move(hello));
  if (!dialled.ok()) return (*made)->GiveUp(dialled);
  (void)loop_->After(patience, [weak = std::weak_ptr<UcxStream>(*made)] {
    const StreamPtr here = weak.lock();
    if (here && !here->greeted()) here->GiveUp(Error(ErrorCode::TIMEOUT, "UCX: no answer in time"));
  });
}

absl::StatusOr<Port::StreamPtr> Port::MakeStream(std::string address,
                                                 std::function<void(absl::StatusOr<std::string>)> first) {
  if (ending_) return Error(ErrorCode::DRAINING, "this node leaves");
  const uint64_t id = ++last_;
  UcxStream::Events events{std::move(first), [this, id] { Gone(id); }};
  CKPTD_ASSIGN_OR_RETURN(StreamPtr stream, UcxStream::Make(Home(), std::move(address), std::move(events)));
  streams_[id] = stream;
  count_ = streams_.size();
  ++made_;
  return stream;
}

void Port::Gone(uint64_t id) {
  const auto node = streams_.extract(id);
  guests_.erase(id);
  count_ = streams_.size();
  if (ending_ && streams_.empty()) loop_->Stop();
}

void Port::CutOffAll() {
  ending_ = true;
  came_ = nullptr;
  if (streams_.empty()) return loop_->Stop();
  const auto all = streams_;
  for (const auto& [id, stream] : all) stream->CutOff();
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxPort>> UcxPort::Open(const UcxPortOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(const UcpCalls* const ucp, LoadUcp(options.library));
  auto port = std::make_unique<Port>(*ucp, options);
  CKPTD_RETURN_IF_ERROR(port->Start());
  return port;
}

}  // namespace ckptd::transport
