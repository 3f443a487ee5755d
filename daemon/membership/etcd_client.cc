#include "daemon/membership/etcd_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/mutex.h"
#include "daemon/base/status_macros.h"
#include "daemon/membership/member.h"
#include "proto/etcd/rpc.grpc.pb.h"

namespace ckptd::membership {
namespace {

namespace pb = ::etcdserverpb;

constexpr size_t kMaxPem = 1 << 20;
constexpr int kMaxAnswer = 32 << 20;  // 10,000 members of the longest kind
// etcd takes pings no more often than every 5 s from a client that has a call open. A server that is stopped, or behind
// a cut, is given up after both.
constexpr int kPingEveryMs = 6000;
constexpr int kPingTimeoutMs = 3000;
constexpr int kLongestPauseMs = 2000;  // between attempts to connect
// A watch is opened anew after so long, so that none can be silent for ever.
constexpr std::chrono::minutes kWatchTurn{10};

// One endpoint's connection.
struct Server {
  std::string name;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<pb::KV::Stub> kv;
  std::unique_ptr<pb::Lease::Stub> lease;
  std::unique_ptr<pb::Watch::Stub> watch;
};

using Servers = std::vector<Server>;

// Texts of the files.
struct Pems {
  std::string ca;
  std::string cert;
  std::string key;
  bool operator==(const Pems&) const = default;
};

absl::StatusOr<Pems> ReadPems(Files& files, const EtcdOptions& options) {
  Pems pems;
  CKPTD_ASSIGN_OR_RETURN(pems.ca, ReadPem(files, options.ca));
  CKPTD_ASSIGN_OR_RETURN(pems.cert, ReadPem(files, options.cert));
  CKPTD_ASSIGN_OR_RETURN(pems.key, ReadPem(files, options.key));
  return pems;
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const EtcdEndpoint& endpoint, const Pems& pems) {
  if (!endpoint.tls) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({pems.ca, pems.key, pems.cert});
}

Server Connect(const EtcdEndpoint& endpoint, const Pems& pems) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingEveryMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestPauseMs);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // pauses of one client are not another's
  arguments.SetMaxReceiveMessageSize(kMaxAnswer);
  auto channel = grpc::CreateCustomChannel(endpoint.address, CredentialsOf(endpoint, pems), arguments);
  return {endpoint.address, channel, pb::KV::NewStub(channel), pb::Lease::NewStub(channel),
          pb::Watch::NewStub(channel)};
}

std::shared_ptr<const Servers> ConnectAll(const std::vector<EtcdEndpoint>& endpoints, const Pems& pems) {
  auto servers = std::make_shared<Servers>();
  servers->reserve(endpoints.size());
  for (const EtcdEndpoint& endpoint : endpoints) servers->push_back(Connect(endpoint, pems));
  return servers;
}

ErrorCode RowOf(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::NOT_FOUND:
      return ErrorCode::NOT_FOUND;
    case grpc::StatusCode::CANCELLED:
      return ErrorCode::CANCELLED;
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return ErrorCode::PERMISSION;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return ErrorCode::REFUSED;
    default:
      return ErrorCode::TIMEOUT;
  }
}

EtcdHeader HeaderOf(const pb::ResponseHeader& header) { return {header.cluster_id(), header.revision()}; }

EtcdEntry EntryOf(const pb::KeyValue& kv) { return {kv.key(), kv.value(), kv.mod_revision(), kv.lease()}; }

// The first key behind all that begin with `prefix`; a lone NUL, which means no end, where there is none.
std::string EndOf(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xFF) prefix.pop_back();
  if (prefix.empty()) return {'\0'};
  prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

EtcdNews NewsOf(const pb::WatchResponse& response) {
  EtcdNews news{HeaderOf(response.header()), {}, !response.created() && response.events().empty()};
  news.changes.reserve(static_cast<size_t>(response.events_size()));
  for (const pb::Event& event : response.events())
    news.changes.push_back({event.type() == pb::Event::DELETE, EntryOf(event.kv())});
  return news;
}

class EtcdClient final : public Etcd {
 public:
  EtcdClient(Files& files, EtcdOptions options, std::vector<EtcdEndpoint> endpoints, Pems pems)
      : files_(files),
        options_(std::move(options)),
        endpoints_(std::move(endpoints)),
        timeout_(options_.timeout),
        pems_(std::move(pems)),
        servers_(ConnectAll(endpoints_, pems_)) {}

  absl::StatusOr<EtcdLease> Grant(int64_t ttl_seconds) override {
    pb::LeaseGrantRequest request;
    request.set_ttl(ttl_seconds);
    pb::LeaseGrantResponse response;
    CKPTD_RETURN_IF_ERROR(
        Try("LeaseGrant", timeout_, Connection::kAwaited, [&](const Server& server, grpc::ClientContext* context) {
          return server.lease->LeaseGrant(context, request, &response);
        }));
    if (!response.error().empty())
      return Error(ErrorCode::REFUSED, absl::StrCat("etcd, LeaseGrant: ", Shown(response.error())));
    return EtcdLease{response.id(), response.ttl()};
  }

  // etcd has only a stream for it: one question, one answer.
  absl::StatusOr<int64_t> KeepAlive(int64_t lease) override {
    pb::LeaseKeepAliveRequest request;
    request.set_id(lease);
    pb::LeaseKeepAliveResponse response;
    CKPTD_RETURN_IF_ERROR(
        Try("LeaseKeepAlive", timeout_, Connection::kAwaited, [&](const Server& server, grpc::ClientContext* context) {
          auto stream = server.lease->LeaseKeepAlive(context);
          const bool answered = stream->Write(request) && stream->Read(&response);
          if (answered) context->TryCancel();
          const grpc::Status status = stream->Finish();
          return answered ? grpc::Status::OK : status.ok() ? grpc::Status(grpc::UNAVAILABLE, "no answer") : status;
        }));
    if (response.id() != lease) return Error(ErrorCode::CORRUPT, "etcd, LeaseKeepAlive: an answer for another lease");
    return response.ttl();
  }

  absl::StatusOr<EtcdClaim> Claim(const std::string& key, const std::string& value, int64_t lease,
                                  Taking taking) override {
    pb::TxnRequest request;
    if (taking == Taking::kIfFree) {
      pb::Compare& absent = *request.add_compare();
      absent.set_result(pb::Compare::EQUAL);
      absent.set_target(pb::Compare::CREATE);
      absent.set_key(key);
      absent.set_create_revision(0);
    }
    pb::PutRequest& put = *request.add_success()->mutable_request_put();
    put.set_key(key);
    put.set_value(value);
    put.set_lease(lease);
    request.add_failure()->mutable_request_range()->set_key(key);
    pb::TxnResponse response;
    CKPTD_RETURN_IF_ERROR(
        Try("Txn", timeout_, Connection::kAwaited, [&](const Server& server, grpc::ClientContext* context) {
          return server.kv->Txn(context, request, &response);
        }));
    if (response.succeeded()) return EtcdClaim{true, response.header().revision(), {}};
    if (response.responses_size() != 1 || response.responses(0).response_range().kvs_size() != 1)
      return Error(ErrorCode::CORRUPT, "etcd, Txn: neither taken nor held by anybody");
    return EtcdClaim{false, 0, EntryOf(response.responses(0).response_range().kvs(0))};
  }

  absl::StatusOr<EtcdList> List(const std::string& prefix, size_t most) override {
    pb::RangeRequest request;
    request.set_key(prefix);
    request.set_range_end(EndOf(prefix));
    request.set_limit(static_cast<int64_t>(most) + 1);
    CKPTD_ASSIGN_OR_RETURN(pb::RangeResponse response, Range(request));
    if (static_cast<size_t>(response.kvs_size()) > most)
      return Error(ErrorCode::REFUSED,
                   absl::StrCat("etcd has ", response.count(), " keys under ", prefix, "; at most ", most));
    EtcdList list{HeaderOf(response.header()), {}};
    list.entries.reserve(static_cast<size_t>(response.kvs_size()));
    for (const pb::KeyValue& kv : response.kvs()) list.entries.push_back(EntryOf(kv));
    return list;
  }

  absl::StatusOr<EtcdHeader> Newest(const std::string& prefix) override {
    pb::RangeRequest request;
    request.set_key(prefix);
    request.set_range_end(EndOf(prefix));
    request.set_count_only(true);
    CKPTD_ASSIGN_OR_RETURN(pb::RangeResponse response, Range(request));
    return HeaderOf(response.header());
  }

  absl::StatusOr<WatchEnd> Watch(const std::string& prefix, int64_t from_revision,
                                 const std::function<bool(EtcdNews)>& news) override {
    WatchEnd end = WatchEnd::kTurn;
    CKPTD_RETURN_IF_ERROR(
        Try("Watch", kWatchTurn, Connection::kThere, [&](const Server& server, grpc::ClientContext* context) {
          return WatchOnce(server, context, prefix, from_revision, news, &end);
        }));
    return end;
  }

  void Cancel() override {
    MutexLock lock(mutex_);
    cancelled_ = true;
    for (grpc::ClientContext* context : open_) context->TryCancel();
  }

 private:
  // gRPC reads from its sockets only while a call waits: a call that fails at once where there is no connection yet
  // makes none either, but for a look every five seconds. So calls wait for it, as long as they may; a watch, which may
  // wait for minutes, follows a call that found one.
  enum class Connection { kAwaited, kThere };

  absl::StatusOr<pb::RangeResponse> Range(const pb::RangeRequest& request) {
    pb::RangeResponse response;
    CKPTD_RETURN_IF_ERROR(
        Try("Range", timeout_, Connection::kAwaited, [&](const Server& server, grpc::ClientContext* context) {
          return server.kv->Range(context, request, &response);
        }));
    return response;
  }

  // A server that has lost its leader would let a watch stand and say nothing: it is asked to end it instead.
  static grpc::Status WatchOnce(const Server& server, grpc::ClientContext* context, const std::string& prefix,
                                int64_t from_revision, const std::function<bool(EtcdNews)>& news, WatchEnd* end) {
    context->AddMetadata("hasleader", "true");
    auto stream = server.watch->Watch(context);
    pb::WatchRequest request;
    pb::WatchCreateRequest& create = *request.mutable_create_request();
    create.set_key(prefix);
    create.set_range_end(EndOf(prefix));
    create.set_start_revision(from_revision);
    create.set_progress_notify(true);
    (void)stream->Write(request);  // what is wrong with it, Finish says
    bool canceled = false;
    std::string reason;
    for (pb::WatchResponse response; !canceled && stream->Read(&response);) {
      canceled = response.canceled();
      reason = response.cancel_reason();
      if (response.compact_revision() != 0) *end = WatchEnd::kCompacted;
      if (!canceled && !news(NewsOf(response))) break;
    }
    context->TryCancel();
    const grpc::Status status = stream->Finish();
    if (*end == WatchEnd::kCompacted) return grpc::Status::OK;
    if (canceled) return {grpc::UNAVAILABLE, absl::StrCat("the watch was cancelled: ", Shown(reason))};
    // A turn that is over is no failure.
    return status.error_code() == grpc::DEADLINE_EXCEEDED ? grpc::Status::OK : status;
  }

  // One attempt at one server; the next call goes to the next server if this one did not answer.
  template <typename Attempt>
  absl::Status Try(absl::string_view what, Nanos timeout, Connection connection, Attempt attempt) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    context.set_wait_for_ready(connection == Connection::kAwaited);
    const std::shared_ptr<const Servers> servers = Current();
    size_t index = 0;
    {
      MutexLock lock(mutex_);
      if (cancelled_) return Error(ErrorCode::CANCELLED, "etcd: this agent leaves");
      open_.insert(&context);
      index = current_;
    }
    const Server& server = (*servers)[index];
    const grpc::Status status = attempt(server, &context);
    const std::string why = status.ok() ? "" : Why(server, status);
    MutexLock lock(mutex_);
    open_.erase(&context);
    if (status.ok()) return absl::OkStatus();
    failed_ = true;
    const ErrorCode row = RowOf(status.error_code());
    if (row == ErrorCode::TIMEOUT && current_ == index) current_ = (index + 1) % servers->size();
    const std::string also =
        unreadable_.ok() ? "" : absl::StrCat("; its certificates were not read again: ", unreadable_.message());
    return Error(row, absl::StrCat("etcd at ", server.name, ", ", what, ": ", why, also));
  }

  // Behind a call that failed, with the certificates that there are now. Calls that are open keep what they have.
  std::shared_ptr<const Servers> Current() {
    {
      MutexLock lock(mutex_);
      if (!std::exchange(failed_, false)) return servers_;
    }
    absl::StatusOr<Pems> pems = ReadPems(files_, options_);
    MutexLock lock(mutex_);
    unreadable_ = pems.status();
    if (!pems.ok() || *pems == pems_) return servers_;
    Log(kInfo, "etcd.certificates").Field("state", "changed");
    pems_ = *std::move(pems);
    servers_ = ConnectAll(endpoints_, pems_);
    return servers_;
  }

  // A call that waited for a connection in vain says only that its time is over; one that does not wait is told why
  // there is none (refused, a certificate that is not believed).
  static std::string Why(const Server& server, const grpc::Status& status) {
    const bool in_vain = status.error_code() == grpc::DEADLINE_EXCEEDED &&
                         server.channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_TRANSIENT_FAILURE;
    if (!in_vain) return Reason(status);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
    pb::RangeRequest request;
    request.set_key(std::string(1, '\0'));
    request.set_count_only(true);
    pb::RangeResponse response;
    const grpc::Status asked = server.kv->Range(&context, request, &response);
    return Reason(asked.error_code() == grpc::UNAVAILABLE ? asked : status);
  }

  static std::string Reason(const grpc::Status& status) {
    std::string text = status.error_message().substr(0, 300);
    for (char& c : text) c = absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : '?';
    // gRPC's words where it cannot even begin.
    if (absl::StartsWith(text, "empty address list"))
      return "no connection can be made: is peers.etcd_key the key of peers.etcd_cert?";
    return text;
  }

  Files& files_;
  const EtcdOptions options_;
  const std::vector<EtcdEndpoint> endpoints_;
  const Nanos timeout_;
  Mutex mutex_;
  Pems pems_ CKPTD_GUARDED_BY(mutex_);
  std::shared_ptr<const Servers> servers_ CKPTD_GUARDED_BY(mutex_);
  bool failed_ CKPTD_GUARDED_BY(mutex_) = false;  // a call, since the files were read
  absl::Status unreadable_ CKPTD_GUARDED_BY(mutex_);
  bool cancelled_ CKPTD_GUARDED_BY(mutex_) = false;
  size_t current_ CKPTD_GUARDED_BY(mutex_) = 0;
  std::set<grpc::ClientContext*> open_ CKPTD_GUARDED_BY(mutex_);
};

absl::StatusOr<EtcdEndpoint> ParseEndpoint(absl::string_view text) {
  EtcdEndpoint endpoint;
  endpoint.tls = absl::StartsWith(text, "https://");
  if (!endpoint.tls && !absl::StartsWith(text, "http://"))
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("etcd endpoint \"", Shown(text), "\": expected http://HOST:PORT or https://HOST:PORT"));
  endpoint.address = std::string(text.substr(endpoint.tls ? 8 : 7));
  CKPTD_RETURN_IF_ERROR(ParseAddress(endpoint.address).status());
  return endpoint;
}

}  // namespace

absl::StatusOr<std::vector<EtcdEndpoint>> ParseEndpoints(absl::string_view text) {
  std::vector<EtcdEndpoint> endpoints;
  for (absl::string_view one : absl::StrSplit(text, ',')) {
    if (endpoints.size() == kMaxEndpoints)
      return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("more than ", kMaxEndpoints, " etcd endpoints"));
    CKPTD_ASSIGN_OR_RETURN(EtcdEndpoint endpoint, ParseEndpoint(one));
    endpoints.push_back(std::move(endpoint));
  }
  return endpoints;
}

absl::StatusOr<std::string> ReadPem(Files& files, const std::string& path) {
  if (path.empty()) return std::string();
  CKPTD_ASSIGN_OR_RETURN(std::string text, ReadOperatorFile(files, path, kMaxPem));
  if (absl::StrContains(text, "-----BEGIN ")) return text;
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(path, ": not a PEM file"));
}

absl::StatusOr<std::unique_ptr<Etcd>> ConnectEtcd(Files& files, const EtcdOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(std::vector<EtcdEndpoint> endpoints, ParseEndpoints(options.endpoints));
  if (options.cert.empty() != options.key.empty())
    return Error(ErrorCode::INVALID_ARGUMENT, "etcd: a certificate and its key are of use together only");
  CKPTD_ASSIGN_OR_RETURN(Pems pems, ReadPems(files, options));
  return std::make_unique<EtcdClient>(files, options, std::move(endpoints), std::move(pems));
}

}  // namespace ckptd::membership
