#include "daemon/app/certificate_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/run_async.h"
#include "daemon/transport/tls/certificate_ends.h"
#include "daemon/transport/tls/certificate_key.h"

namespace ckptd {
namespace {

constexpr int64_t kDay = 86'400;
constexpr size_t kMaxPemBytes = 1 << 20;
constexpr Nanos kLookEvery = std::chrono::seconds(10);  // as gRPC does
constexpr Nanos kSayEvery = std::chrono::hours(24);
constexpr char kNextEnding[] =
    "put a new one over it, by renaming (ckptctl certs rotate, or your own authority): it is taken within 10 s, no "
    "restart";
constexpr char kNextBad[] =
    "ckptctl certs show FILE says whether a certificate is good and the key beside it fits; put files there that are, "
    "and that ckptd may read (ckptctl certs rotate, or your own authority): they are taken within 10 s, no restart";

int StageOf(int64_t seconds_left) {
  int stage = 0;
  for (const int64_t days : {30, 7, 1, 0}) stage += seconds_left <= days * kDay ? 1 : 0;
  return stage;
}

absl::StatusOr<std::string> ReadNamed(Files& files, const std::string& key, const std::string& file) {
  absl::StatusOr<std::string> text = ReadOperatorFile(files, file, kMaxPemBytes);
  if (text.ok()) return text;
  return Error(CodeOf(text.status()), absl::StrCat(key, ": ", text.status().message()));
}

absl::Status NoGood(const std::string& key, const std::string& file, absl::string_view why) {
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(key, ": ", file, ": ", why));
}

bool IsOfEtcd(const std::string& key) { return absl::StartsWith(key, "peers.etcd"); }

// Of a file that is no good.
absl::Status WhatFollows(const std::string& key, const absl::Status& why) {
  const char* const then = IsOfEtcd(key) ? "when connections to etcd end, new ones may not be made"
                                         : "when links to other nodes end, new ones may not be made";
  return Error(CodeOf(why), absl::StrCat("peers: ", why.message(), ": no new certificate is taken, and ", then));
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
  const auto ask = [this](bool used, const Asked& asked) {
    if (used && !asked.file.empty()) asked_.push_back(asked);
  };
  ask(mutual, {"peers.tls_cert", config.tls_cert, "peers.tls_key", config.tls_key});
  ask(mutual, {"peers.tls_ca", config.tls_ca, "", ""});
  ask(etcd, {"peers.etcd_cert", config.etcd_cert, "peers.etcd_key", config.etcd_key});
  ask(etcd, {"peers.etcd_ca", config.etcd_ca, "", ""});
}

CertificateWatch::~CertificateWatch() {
  if (timer_) loop_.CancelTimer(*timer_);
}

void CertificateWatch::Start() {
  if (!asked_.empty()) Look();
}

// Of an authority's file the last one counts: in a rotation the old one lies beside the new.
absl::StatusOr<int64_t> CertificateWatch::ReadEnd(Files& files, const Asked& asked) {
  CKPTD_ASSIGN_OR_RETURN(const std::string pem, ReadNamed(files, asked.key, asked.file));
  const absl::StatusOr<transport::CertificateEnds> ends = transport::EndsOf(pem);
  if (!ends.ok()) return NoGood(asked.key, asked.file, ends.status().message());
  if (asked.key_of_private.empty()) return ends->last;
  CKPTD_ASSIGN_OR_RETURN(const std::string key, ReadNamed(files, asked.key_of_private, asked.private_file));
  const absl::StatusOr<bool> fits = transport::IsKeyOf(pem, key);
  if (!fits.ok()) return NoGood(asked.key_of_private, asked.private_file, fits.status().message());
  if (*fits) return ends->first;
  return NoGood(asked.key_of_private, asked.private_file,
                absl::StrCat("is not the key of ", asked.key, ", ", asked.file));
}

// One look at a time, however long the files' storage takes.
void CertificateWatch::Look() {
  timer_.reset();
  RunAsync<absl::StatusOr<std::vector<Seen>>>(
      loop_, reading_,
      [&files = files_, asked = asked_]() -> absl::StatusOr<std::vector<Seen>> {
        std::vector<Seen> all;
        all.reserve(asked.size());
        for (const Asked& each : asked) all.push_back({each.key, each.file, ReadEnd(files, each)});
        return all;
      },
      scope_.Bind([this](const absl::StatusOr<std::vector<Seen>>& all) {
        timer_ = loop_.After(kLookEvery, [this] { Look(); });
        if (all.ok()) Take(*all);
      }));
}

// One bad look is nothing: the files may be between the old key and the new certificate.
void CertificateWatch::TakeBad(const std::string& key, const absl::Status& why) {
  const auto [at, first] = troubles_.try_emplace(key);
  Trouble& trouble = at->second;
  trouble.why = WhatFollows(key, why);
  if (first) return;
  const Nanos now = clock_.Monotonic();
  if (std::exchange(trouble.certain, true) && now - trouble.said < kSayEvery) return;
  trouble.said = now;
  Log(kError, "peers.certificate_bad").Error(trouble.why).Field("next", kNextBad);
}

void CertificateWatch::TakeGood(const End& end) {
  const auto trouble = troubles_.find(end.key);
  if (trouble != troubles_.end() && trouble->second.certain)
    Log(kInfo, "peers.certificate_good").Field("key", end.key).Field("file", end.file);
  troubles_.erase(end.key);
  const auto before = std::find_if(ends_.begin(), ends_.end(), [&](const End& each) { return each.key == end.key; });
  if (before == ends_.end())
    ends_.push_back(end);
  else
    *before = end;
}

void CertificateWatch::Take(const std::vector<Seen>& all) {
  for (const Seen& seen : all) {
    if (seen.end.ok())
      TakeGood({seen.key, seen.file, *seen.end});
    else
      TakeBad(seen.key, seen.end.status());
  }
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
  const char* const then = IsOfEtcd(end.key) ? "etcd is not reached then" : "no other node is reached then";
  return Error(ErrorCode::REFUSED, absl::StrCat("peers: ", end.key, ", ", end.file, ", ", when, ": ", then));
}

std::vector<Peers::Problem> CertificateWatch::Problems() const {
  std::vector<Peers::Problem> problems;
  for (const auto& [key, trouble] : troubles_) {
    if (trouble.certain) problems.push_back({trouble.why, kNextBad});
  }
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
