#include "daemon/app/certificate_watch.h"

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/run_async.h"
#include "daemon/transport/tls/certificate_ends.h"

namespace ckptd {
namespace {

constexpr int64_t kDay = 86'400;
constexpr size_t kMaxPemBytes = 1 << 20;
constexpr Nanos kLookEvery = std::chrono::minutes(1);
constexpr Nanos kSayEvery = std::chrono::hours(24);
constexpr char kNextEnding[] =
    "put a new one over it, by renaming (ckptctl certs rotate, or your own authority): it is taken within 10 s, no "
    "restart";

int StageOf(int64_t seconds_left) {
  int stage = 0;
  for (const int64_t days : {30, 7, 1, 0}) stage += seconds_left <= days * kDay ? 1 : 0;
  return stage;
}

// Of an authority's file the last one counts: in a rotation the old one lies beside the new.
absl::StatusOr<int64_t> ReadEnd(Files& files, const CertificateWatch::End& asked) {
  CKPTD_ASSIGN_OR_RETURN(const std::string pem, ReadOperatorFile(files, asked.file, kMaxPemBytes));
  CKPTD_ASSIGN_OR_RETURN(const transport::CertificateEnds ends, transport::EndsOf(pem));
  return absl::EndsWith(asked.key, "_ca") ? ends.last : ends.first;
}

}  // namespace

bool EndingAlarm::Due(int64_t seconds_left, Nanos now) {
  const int before = std::exchange(stage_, StageOf(seconds_left));
  if (stage_ == 0 || (stage_ <= before && now - said_ < kSayEvery)) return false;
  said_ = now;
  return true;
}

CertificateWatch::CertificateWatch(Loop& loop, const Clock& clock, Files& files, Executor& reading,
                                   const PeersConfig& config)
    : loop_(loop), clock_(clock), files_(files), reading_(reading) {
  const bool mutual = config.tls == PeersTlsChoice::kMutual;
  const bool etcd = config.membership == MembershipChoice::kEtcd;
  const auto ask = [this](bool used, const char* key, const std::string& file) {
    if (used && !file.empty()) asked_.push_back({key, file, 0});
  };
  ask(mutual, "peers.tls_cert", config.tls_cert);
  ask(mutual, "peers.tls_ca", config.tls_ca);
  ask(etcd, "peers.etcd_cert", config.etcd_cert);
  ask(etcd, "peers.etcd_ca", config.etcd_ca);
}

CertificateWatch::~CertificateWatch() {
  if (timer_) loop_.CancelTimer(*timer_);
}

void CertificateWatch::Start() {
  if (!asked_.empty()) Look();
}

// A file that cannot be read is no news here: who needs it says so.
void CertificateWatch::Look() {
  timer_ = loop_.After(kLookEvery, [this] { Look(); });
  RunAsync<absl::StatusOr<std::vector<End>>>(
      loop_, reading_,
      [&files = files_, asked = asked_]() -> absl::StatusOr<std::vector<End>> {
        std::vector<End> ends;
        for (End end : asked) {
          const auto read = ReadEnd(files, end);
          if (!read.ok()) continue;
          end.unix_seconds = *read;
          ends.push_back(std::move(end));
        }
        return ends;
      },
      scope_.Bind([this](absl::StatusOr<std::vector<End>> ends) {
        if (ends.ok()) Take(*std::move(ends));
      }));
}

void CertificateWatch::Take(std::vector<End> ends) {
  ends_ = std::move(ends);
  for (const End& end : ends_) {
    const int64_t left = SecondsLeft(end);
    if (!alarms_[end.key].Due(left, clock_.Monotonic())) continue;
    Log(left <= kDay ? kError : kWarning, "peers.certificate_ends").Error(Told(end)).Field("next", kNextEnding);
  }
}

int64_t CertificateWatch::SecondsLeft(const End& end) const {
  return end.unix_seconds - std::chrono::duration_cast<std::chrono::seconds>(clock_.Wall()).count();
}

absl::Status CertificateWatch::Told(const End& end) const {
  const int64_t left = SecondsLeft(end);
  const std::string when = left <= 0 ? absl::StrCat("ended ", -left / kDay, " days ago")
                                     : absl::StrCat("ends in ", left / kDay, " days and ", left % kDay / 3600, " h");
  const char* const then =
      absl::StartsWith(end.key, "peers.etcd") ? "etcd is not reached then" : "no other node is reached then";
  return Error(ErrorCode::REFUSED, absl::StrCat("peers: ", end.key, ", ", end.file, ", ", when, ": ", then));
}

std::vector<Peers::Problem> CertificateWatch::Problems() const {
  std::vector<Peers::Problem> problems;
  for (const End& end : ends_) {
    if (SecondsLeft(end) <= 7 * kDay) problems.push_back({Told(end), kNextEnding});
  }
  return problems;
}

void CertificateWatch::Fill(v1::PeersStatus* out) const {
  for (const End& end : ends_) {
    v1::CertificateStatus* added = out->add_certificates();
    added->set_key(end.key);
    added->set_file(end.file);
    added->set_end_unix_s(end.unix_seconds);
    added->set_seconds_left(static_cast<double>(SecondsLeft(end)));
  }
}

}  // namespace ckptd
