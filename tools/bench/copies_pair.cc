#include "tools/bench/copies_pair.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "daemon/base/mutex.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/os/loop.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/thread.h"
#include "daemon/transport/copy_request.h"
#include "daemon/transport/grpc_links.h"
#include "daemon/transport/tls/tls_port.h"
#include "daemon/transport/ucx/ucx_port.h"
#include "tools/bench/measure.h"
#include "tools/certs/cert_files.h"

namespace ckptd::bench {
namespace {

constexpr char kCluster[] = "bench";
constexpr char kSender[] = "a";
constexpr char kKeeper[] = "b";
constexpr std::chrono::seconds kPatience{120};
constexpr uint64_t kPage = 4096;

// Mapped, populated as slots are, and without a name.
absl::StatusOr<std::unique_ptr<File>> MakeFile(const Options& options, uint64_t bytes, Mapping* mapping) {
  const std::string path = absl::StrCat(options.region, "/ckptd-bench-copy-", getpid());
  CKPTD_ASSIGN_OR_RETURN(auto file, PosixFiles().Open(path, {.write = true, .create = true}));
  CKPTD_RETURN_IF_ERROR(PosixFiles().Unlink(path));
  constexpr std::byte kEnd[1] = {};
  CKPTD_RETURN_IF_ERROR(file->PWrite(bytes - 1, kEnd));
  CKPTD_ASSIGN_OR_RETURN(*mapping, Mapping::Map(file->fd(), bytes, MapAccess::kReadWrite));
  if (!UseHugePages(*mapping, 0, bytes)) CKPTD_RETURN_IF_ERROR(file->Fallocate(bytes));
  CKPTD_RETURN_IF_ERROR(Populate(*mapping, 0, bytes));
  return file;
}

// What one rank has of the memory: whole pages, the last one the rest.
struct Part {
  uint64_t begin = 0;
  uint64_t bytes = 0;
};

Part PartOf(uint32_t rank, uint32_t ranks, uint64_t bytes) {
  const uint64_t each = bytes / ranks / kPage * kPage;
  return {rank * each, rank + 1 == ranks ? bytes - rank * each : each};
}

v1::CopyName NameOf(uint32_t rank) {
  v1::CopyName name;
  name.set_job("bench");
  name.set_rank(rank);
  name.mutable_snapshot()->set_attempt(1);
  name.mutable_snapshot()->set_step(1);
  return name;
}

v1::OfferRequest OfferOf(uint32_t rank, uint64_t bytes, const CopiesPairOptions& options) {
  v1::OfferRequest offer;
  *offer.mutable_copy() = NameOf(rank);
  offer.set_user("0");
  offer.set_world_size(options.ranks);
  offer.set_attempt(1);
  offer.mutable_layout()->set_chunk_bytes(options.chunk_bytes);
  offer.mutable_layout()->set_slot_bytes(bytes);
  v1::ImageSize* image = offer.mutable_layout()->add_images();
  image->set_bytes(bytes);
  image->set_header_bytes(4096);
  return offer;
}

// As room app is to the transport: a copy of each rank, received into memory that is there.
class Keeper final : public transport::CopyHost {
 public:
  Keeper(const CopyMemory& memory, const CopiesPairOptions& options) : memory_(memory), options_(options) {}

  void Offer(const std::string& peer, const v1::OfferRequest& offer,
             transport::CopyAnswer<v1::OfferResponse> answer) override {
    const transport::TransferToken token = transport::RandomToken();
    const Nanos now = SystemClock().Monotonic();
    const absl::Status issued =
        tokens_.Issue(token, {peer, "bench", offer.copy().rank(), {1, 1}, 0}, now + kPatience, now);
    if (!issued.ok()) return answer(issued);
    v1::OfferResponse response;
    response.set_token(transport::BytesOf(token));
    answer(std::move(response));
  }
  void Seal(const std::string&, const v1::SealRequest&, transport::CopyAnswer<v1::SealResponse> answer) override {
    answer(Error(ErrorCode::REFUSED, "nothing is sealed here"));
  }
  void Describe(const std::string&, const v1::DescribeRequest&,
                transport::CopyAnswer<v1::DescribeResponse> answer) override {
    answer(Error(ErrorCode::REFUSED, "nothing is given back here"));
  }
  absl::StatusOr<transport::BulkEnd> Redeem(const std::string&, const transport::Hello& hello) override {
    CKPTD_RETURN_IF_ERROR(tokens_.Redeem(hello.token, hello.name, SystemClock().Monotonic()));
    transport::BulkEnd end;
    end.name = hello.name;
    const Part part = PartOf(hello.name.rank, options_.ranks, memory_.into().size());
    end.image_bytes = part.bytes;
    end.chunk_bytes = options_.chunk_bytes;
    transport::ServedReceive receive;
    receive.target.bytes = memory_.into().bytes().subspan(part.begin, part.bytes);
    receive.target.keep = std::make_shared<int>(0);  // each time another transfer
    end.end = std::move(receive);
    return end;
  }

 private:
  const CopyMemory& memory_;
  const CopiesPairOptions options_;
  transport::TokenTable tokens_;
};

// One agent's transport, its loop and its thread.
class End final : private transport::LinkSink {
 public:
  End(std::string name, transport::CopyHost* host) : name_(std::move(name)), host_(host) {}
  ~End() override {
    if (!thread_) return;
    Do([this] { links_.reset(); });
    loop_->Stop();
  }

  [[nodiscard]] absl::Status Start(const transport::TlsOptions& tls, BytesBy by) {
    CKPTD_RETURN_IF_ERROR(OpenPort(tls, by));
    CKPTD_ASSIGN_OR_RETURN(loop_, Loop::Create(SystemClock(), 1024));
    CKPTD_ASSIGN_OR_RETURN(auto credentials, transport::Credentials::Create(PosixFiles(), tls, kCluster));
    transport::GrpcLinksOptions options;
    options.cluster = kCluster;
    options.agent = absl::StrCat(name_, "-agent");
    options.incarnation = RandomId();
    options.listen = "127.0.0.1:0";
    options.copy_host = host_;
    if (port_) options.bulks = {port_.get()};
    options.self = [this] { return transport::SelfStanding{name_, 1, absl::OkStatus()}; };
    options.admit = [](const std::string&, uint64_t) { return absl::OkStatus(); };
    options.would_admit = options.admit;
    CKPTD_ASSIGN_OR_RETURN(links_,
                           transport::GrpcLinks::Start(*loop_, *this, std::move(credentials), std::move(options)));
    thread_.emplace(absl::StrCat("bench-", name_), [this] { (void)loop_->Run(); });
    return absl::OkStatus();
  }
  [[nodiscard]] transport::PeerNode node() const { return {name_, absl::StrCat("127.0.0.1:", links_->port())}; }
  void Know(const transport::PeerNode& peer) {
    Do([&] { links_->SetPeers({peer}); });
  }
  // Connections of its bulk port there have been.
  [[nodiscard]] uint64_t made() const { return made_ ? made_() : 0; }
  // Within Do.
  [[nodiscard]] transport::CopyCalls& copies() { return links_->copies(); }
  // On its loop's thread, of which a benchmark asks little; returns when it has run.
  void Do(const std::function<void()>& work) CKPTD_EXCLUDES(mutex_) {
    bool done = false;
    if (!loop_->Post([&] {
          work();
          MutexLock lock(mutex_);
          done = true;
          changed_.NotifyAll();
        }))
      std::abort();
    MutexLock lock(mutex_);
    while (!done) changed_.Wait(mutex_);
  }

 private:
  void Received(const std::string&, const transport::LinkMessage&) override {}
  [[nodiscard]] absl::Status OpenPort(const transport::TlsOptions& tls, BytesBy by) {
    if (by == BytesBy::kTls || by == BytesBy::kTcp) {
      transport::TlsPortOptions of_port;
      of_port.host = "127.0.0.1";
      of_port.cluster = kCluster;
      of_port.tls = tls;
      CKPTD_ASSIGN_OR_RETURN(auto port, by == BytesBy::kTls ? transport::OpenTlsPort(PosixFiles(), of_port)
                                                            : transport::OpenTcpPort(of_port));
      made_ = [raw = port.get()] { return raw->made(); };
      port_ = std::move(port);
    } else if (by == BytesBy::kUcx) {
      transport::UcxPortOptions of_port;
      of_port.only_loopback = true;
      CKPTD_ASSIGN_OR_RETURN(auto port, transport::UcxPort::Open(of_port));
      made_ = [raw = port.get()] { return raw->made(); };
      port_ = std::move(port);
    }
    return absl::OkStatus();
  }

  const std::string name_;
  transport::CopyHost* const host_;
  std::unique_ptr<transport::BulkPort> port_;
  std::function<uint64_t()> made_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<transport::GrpcLinks> links_;
  Mutex mutex_;
  CondVar changed_;
  std::optional<Thread> thread_;
};

// Files of an authority and of two nodes, removed with the object.
class Certificates {
 public:
  Certificates() = default;
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;
  ~Certificates() {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }
  [[nodiscard]] absl::Status Make() {
    std::string folder = "/tmp/ckptd-bench.XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) return ErrnoError(errno, "mkdtemp", folder);
    folder_ = folder;
    const int64_t now = time(nullptr);
    CKPTD_ASSIGN_OR_RETURN(const certs::KeyPair ca, certs::Authority::Make(kCluster, now, 1));
    CKPTD_ASSIGN_OR_RETURN(const certs::Authority authority, certs::Authority::Parse(ca));
    CKPTD_RETURN_IF_ERROR(certs::MakeAuthority(PosixFiles(), folder_ + "/ca", ca));
    for (const char* node : {kSender, kKeeper}) {
      CKPTD_ASSIGN_OR_RETURN(const certs::KeyPair pair, authority.Issue(kCluster, node, now, 1));
      CKPTD_RETURN_IF_ERROR(certs::WriteNode(PosixFiles(), folder_ + "/nodes", node, pair));
    }
    return absl::OkStatus();
  }
  [[nodiscard]] transport::TlsOptions Of(const std::string& node) const {
    const std::string nodes = folder_ + "/nodes";
    return {transport::TlsMode::kMutual, certs::CertificatePath(folder_ + "/ca", certs::kCa),
            certs::CertificatePath(nodes, node), certs::KeyPath(nodes, node)};
  }

 private:
  std::string folder_;
};

// How one transfer ended, for a thread that waits for it.
class Ending {
 public:
  void Set(const absl::Status& status) CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    status_ = status;
    changed_.NotifyAll();
  }
  [[nodiscard]] absl::Status Wait() CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!status_) changed_.Wait(mutex_);
    return *status_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<absl::Status> status_ CKPTD_GUARDED_BY(mutex_);
};

class Pair final : public CopiesPair {
 public:
  Pair(const CopyMemory& memory, const CopiesPairOptions& options)
      : memory_(memory),
        options_(options),
        keeper_(memory, options),
        sends_(kSender, nullptr),
        keeps_(kKeeper, &keeper_) {}

  [[nodiscard]] absl::Status Start() {
    transport::TlsOptions plain;
    plain.mode = transport::TlsMode::kPlaintextOnLoopback;
    const bool shown = options_.certificates;
    if (shown) CKPTD_RETURN_IF_ERROR(certificates_.Make());
    CKPTD_RETURN_IF_ERROR(sends_.Start(shown ? certificates_.Of(kSender) : plain, options_.by));
    CKPTD_RETURN_IF_ERROR(keeps_.Start(shown ? certificates_.Of(kKeeper) : plain, options_.by));
    sends_.Know(keeps_.node());
    keeps_.Know(sends_.node());
    Sum();
    return absl::OkStatus();
  }

  absl::StatusOr<double> Send() override {
    const uint64_t before = keeps_.made();
    std::vector<Sending> all(options_.ranks);
    sends_.Do([&] {
      for (uint32_t rank = 0; rank < all.size(); ++rank) Offer(rank, all[rank]);
    });
    absl::Status ended;
    for (Sending& sending : all) ended.Update(sending.ending.Wait());
    const TimePoint end = Now();
    sends_.Do([&] {
      for (Sending& sending : all) sending.move.reset();
    });
    CKPTD_RETURN_IF_ERROR(ended);
    if (options_.by != BytesBy::kGrpc && keeps_.made() < before + options_.ranks)
      return Error(ErrorCode::INTERNAL, "bytes went over gRPC");
    TimePoint begin = end;
    for (const Sending& sending : all) begin = std::min(begin, sending.begin);
    return std::chrono::duration<double>(end - begin).count();
  }

 private:
  // A rank's; `move` and `begin` on the sender's loop until it has ended.
  struct Sending {
    std::unique_ptr<transport::CopyMove> move;
    TimePoint begin;
    Ending ending;
  };

  // Of every chunk, as the capture makes them; no part of what is measured.
  void Sum() {
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
      const Part part = PartOf(rank, options_.ranks, memory_.from().size());
      const std::span<const std::byte> all = memory_.from().bytes().subspan(part.begin, part.bytes);
      std::vector<uint32_t>& crcs = crcs_.emplace_back();
      for (uint64_t at = 0; at < all.size(); at += options_.chunk_bytes)
        crcs.push_back(Crc32c(0, all.data() + at, std::min<uint64_t>(options_.chunk_bytes, all.size() - at)));
    }
  }
  void Offer(uint32_t rank, Sending& sending) {
    const uint64_t bytes = PartOf(rank, options_.ranks, memory_.from().size()).bytes;
    sends_.copies().Offer(kKeeper, OfferOf(rank, bytes, options_), kPatience,
                          [this, rank, &sending](const auto& offer) {
                            absl::StatusOr<transport::TransferToken> token =
                                offer.ok() ? transport::TokenOf(offer->token())
                                           : absl::StatusOr<transport::TransferToken>(offer.status());
                            const absl::Status begun = token.ok() ? Begin(rank, *token, sending) : token.status();
                            if (!begun.ok()) sending.ending.Set(begun);
                          });
  }
  [[nodiscard]] absl::Status Begin(uint32_t rank, const transport::TransferToken& token, Sending& sending) {
    sending.begin = Now();
    const Part part = PartOf(rank, options_.ranks, memory_.from().size());
    transport::BulkSource source;
    source.read = [this, part](uint64_t offset, std::span<std::byte> into) {
      const absl::StatusOr<size_t> got = memory_.source().PRead(part.begin + offset, into);
      if (got.ok() && *got == into.size()) return absl::OkStatus();
      return got.ok() ? Error(ErrorCode::CORRUPT, "the file is short") : got.status();
    };
    source.file = {memory_.source().fd(), part.begin};
    transport::MoveOrder order{
        kKeeper,    {kKeeper, "bench", rank, {1, 1}, 0},
        part.bytes, options_.chunk_bytes,
        token,      [](const auto& answer) { answer(Error(ErrorCode::REFUSED, "a benchmark connects once")); }};
    transport::SenderLimits limits;
    limits.deadline = SystemClock().Monotonic() + kPatience;
    CKPTD_ASSIGN_OR_RETURN(
        sending.move, sends_.copies().Send(std::move(order), std::move(source), limits,
                                           [&sending](const absl::Status& status) { sending.ending.Set(status); }));
    for (uint32_t chunk = 0; chunk < crcs_[rank].size(); ++chunk)
      (void)sending.move->ChunkReady(chunk, crcs_[rank][chunk]);
    return absl::OkStatus();
  }

  const CopyMemory& memory_;
  const CopiesPairOptions options_;
  std::vector<std::vector<uint32_t>> crcs_;  // of each rank's chunks
  Certificates certificates_;
  Keeper keeper_;
  End sends_;
  End keeps_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CopyMemory>> CopyMemory::Make(const Options& options, uint64_t bytes) {
  auto memory = std::make_unique<CopyMemory>();
  CKPTD_ASSIGN_OR_RETURN(memory->source_, MakeFile(options, bytes, &memory->from_));
  CKPTD_RETURN_IF_ERROR(MakeFile(options, bytes, &memory->into_).status());
  uint64_t word = 1;
  for (uint64_t at = 0; at + sizeof word <= bytes; at += sizeof word) {
    std::memcpy(memory->from_.data() + at, &word, sizeof word);
    word = word * 6364136223846793005U + 1442695040888963407U;
  }
  return memory;
}

void CopyMemory::Wipe() const { std::memset(into_.data(), 0, into_.size()); }
bool CopyMemory::Same() const { return std::memcmp(from_.data(), into_.data(), from_.size()) == 0; }

absl::StatusOr<std::unique_ptr<CopiesPair>> CopiesPair::Make(const CopyMemory& memory,
                                                             const CopiesPairOptions& options) {
  auto pair = std::make_unique<Pair>(memory, options);
  CKPTD_RETURN_IF_ERROR(pair->Start());
  return pair;
}

}  // namespace ckptd::bench
