#include "daemon/membership/etcd_source.h"

#include <sys/epoll.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/event_fd.h"

namespace ckptd::membership {

void EtcdSource::Mailbox::Put(EtcdWord word) {
  MutexLock lock(mutex_);
  word_ = std::move(word);
  SignalEventFd(wake.get());
}

void EtcdSource::Mailbox::Put(Outcome outcome) {
  MutexLock lock(mutex_);
  outcome_ = std::move(outcome);
  SignalEventFd(wake.get());
}

std::optional<EtcdWord> EtcdSource::Mailbox::TakeWord() {
  MutexLock lock(mutex_);
  return std::exchange(word_, std::nullopt);
}

std::optional<EtcdSource::Outcome> EtcdSource::Mailbox::TakeOutcome() {
  MutexLock lock(mutex_);
  return std::exchange(outcome_, std::nullopt);
}

EtcdSource::EtcdSource(Loop& loop, std::unique_ptr<Etcd> etcd, EtcdSettings settings)
    : loop_(loop),
      etcd_(std::move(etcd)),
      settings_(std::move(settings)),
      key_(settings_.prefix + settings_.self.name),
      value_(EncodeMember(MemberOf(settings_.self))),
      registration_(settings_.self.name, settings_.ttl) {}

EtcdSource::~EtcdSource() {
  etcd_->Cancel();
  watcher_.reset();
  calls_.reset();
  loop_.CancelTimer(timer_);
  if (mailbox_.wake.valid()) loop_.Unwatch(mailbox_.wake.get());
}

absl::Status EtcdSource::Start(SourceSink& sink) {
  CKPTD_RETURN_IF_ERROR(CheckMember(MemberOf(settings_.self)));
  if (settings_.prefix.empty()) return Error(ErrorCode::INVALID_ARGUMENT, "peers.etcd_prefix is empty");
  sink_ = &sink;
  CKPTD_ASSIGN_OR_RETURN(mailbox_.wake, CreateEventFd());
  CKPTD_RETURN_IF_ERROR(loop_.Watch(mailbox_.wake.get(), EPOLLIN, [this](uint32_t) { OnMail(); }));
  calls_ = std::make_unique<ThreadPool>("etcd-lease", 1, 1);
  watcher_ = std::make_unique<EtcdWatcher>(*etcd_, settings_.prefix, settings_.self.name,
                                           [this](EtcdWord word) { mailbox_.Put(std::move(word)); });
  told_ = registration_.StandingAt(loop_.clock().Monotonic());  // that it has not registered yet is no news
  Step();
  return absl::OkStatus();
}

void EtcdSource::OnMail() {
  DrainEventFd(mailbox_.wake.get());
  if (auto outcome = mailbox_.TakeOutcome()) OnOutcome(*outcome);
  if (auto word = mailbox_.TakeWord()) OnWord(*std::move(word));
  Step();
}

void EtcdSource::OnWord(EtcdWord word) {
  watching_ = word.status;
  if (word.status.ok()) {
    members_ = std::move(word.members);
    registration_.Seen(word.own, word.revision, loop_.clock().Monotonic());
  }
  Report();
}

void EtcdSource::OnOutcome(const Outcome& outcome) {
  outcome.tell(registration_, loop_.clock().Monotonic());
  const bool changed = outcome.status != calling_;
  calling_ = outcome.status;
  if (changed) Report();
}

// A watch that is silent looks like one on which nothing happens: a call that fails tells first that etcd is gone.
void EtcdSource::Report() {
  if (!watching_.ok()) return sink_->Failed(watching_);
  if (!calling_.ok()) return sink_->Failed(calling_);
  if (members_) sink_->Said(*members_);
}

void EtcdSource::Step() {
  const Nanos now = loop_.clock().Monotonic();
  if (const auto next = registration_.Due(now)) {
    // There is room: one call is open at a time.
    (void)calls_->Run([this, next = *next] { mailbox_.Put(Make(next)); });
  }
  WakeAt(now);
  TellStanding();
}

EtcdSource::Outcome EtcdSource::Make(const Registration::Next& next) const {
  const Nanos sent = loop_.clock().Monotonic();
  switch (next.call) {
    case Registration::Call::kGrant: {
      auto lease = etcd_->Grant(std::chrono::duration_cast<std::chrono::seconds>(settings_.ttl).count());
      return {lease.status(), [lease, sent](Registration& to, Nanos now) { to.Granted(lease, sent, now); }};
    }
    case Registration::Call::kClaim: {
      auto claim = etcd_->Claim(key_, value_, next.lease, next.taking);
      return {claim.status(), [claim](Registration& to, Nanos now) { to.Claimed(claim, now); }};
    }
    case Registration::Call::kKeepAlive: {
      auto seconds = etcd_->KeepAlive(next.lease);
      return {seconds.status(), [seconds, sent](Registration& to, Nanos now) { to.KeptAlive(seconds, sent, now); }};
    }
  }
  return {};
}

void EtcdSource::WakeAt(Nanos now) {
  loop_.CancelTimer(timer_);
  Nanos at = Nanos::max();
  if (registration_.due() > now) at = registration_.due();
  if (const auto deadline = registration_.Deadline(); deadline && *deadline > now) at = std::min(at, *deadline);
  if (at != Nanos::max()) timer_ = loop_.At(at, [this] { Step(); });
}

void EtcdSource::TellStanding() {
  Standing standing = registration_.StandingAt(loop_.clock().Monotonic());
  const bool same = told_ && told_->generation == standing.generation && told_->status.code() == standing.status.code();
  if (same) return;
  told_ = std::move(standing);
  sink_->StandingChanged();
}

}  // namespace ckptd::membership
