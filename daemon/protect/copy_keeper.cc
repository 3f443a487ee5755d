#include "daemon/protect/copy_keeper.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/os/run_async.h"
#include "daemon/protect/groups.h"
#include "daemon/region/verify.h"

namespace ckptd::protect {
namespace {

constexpr Nanos kTokenLife = std::chrono::seconds(30);  // from the answer to the connection
constexpr Nanos kAbandoned = std::chrono::seconds(60);  // nobody moved it: its slot is given back
constexpr Nanos kSweepEvery = std::chrono::seconds(10);

transport::TransferName NameOf(const std::string& peer, const v1::CopyName& copy, uint32_t number) {
  return {peer, copy.job(), copy.rank(), ToId(copy.snapshot()), number};
}

}  // namespace

CopyKeeper::CopyKeeper(Loop& loop, const Clock& clock, region::Region& region, Executor& work, Handler handler)
    : loop_(loop),
      clock_(clock),
      region_(region),
      work_(work),
      handler_(std::move(handler)),
      reads_(loop, clock,
             {[this](const std::string& job, Rank rank, const SnapshotId& id) { return Open(job, rank, id); },
              [this](const transport::TransferName& name) { return Issue(name); }, [this] { return ++last_number_; }}),
      parity_(loop, clock, region, work,
              {handler_.changed, [this](const transport::TransferName& name) { return Issue(name); },
               [this] { return ++last_number_; },
               [this](const region::PeerSpec& spec, const region::SlotBuild::Done& done) {
                 return StartLayout(spec, done);
               }}) {
  sweep_ = loop_.After(kSweepEvery, [this] { Sweep(); });
}

CopyKeeper::~CopyKeeper() { loop_.CancelTimer(sweep_); }

// ------------------------------------------------------------------------------------------------------ what there is

void CopyKeeper::VerifyAdopted() {
  for (const region::PeerEntry& entry : region_.peers().List()) {
    if (entry.complete && !entry.verified) Verify(entry);
  }
}

// Not pinned: a newer copy may take the slot before it is read, or while it is, and then what was read says nothing.
// All copies wait here for their turn, which may take longer than the owner of the next step has patience.
void CopyKeeper::Verify(const region::PeerEntry& entry) {
  const auto copy = region_.peers().OpenCopy(entry.job, entry.key, entry.id, entry.layout_crc);
  if (!copy.ok()) return;
  auto progress = std::make_shared<region::Progress>(copy->record->slot_bytes);
  region_.under_way().Add(progress);
  RunAsync<absl::Status>(
      loop_, work_,
      [record = copy->record, weak = std::weak_ptr<region::SlotFile>(copy->file), progress]() -> absl::Status {
        const auto file = weak.lock();
        if (file == nullptr) return Error(ErrorCode::CANCELLED, "it was given up");
        return region::VerifySlot(*file, *record, *progress);
      },
      scope_.Bind(
          [this, entry, record = copy->record](const absl::Status& status) { Verified(entry, *record, status); }));
}

void CopyKeeper::Verified(const region::PeerEntry& entry, const region::SlotRecord& record,
                          const absl::Status& status) {
  const auto& [job, key, id, crc] = std::tie(entry.job, entry.key, entry.id, entry.layout_crc);
  const auto still = region_.peers().OpenCopy(job, key, id, crc);
  if (!still.ok() || still->record.get() != &record) return;
  if (status.ok()) return (void)region_.peers().MarkVerified(job, key, id, crc);
  Log(kError, "copy.damaged").Job(job).Rank(key.number).Snapshot(id).Error(status);
  if (region_.peers().Quarantine(job, key, id, crc).ok()) handler_.changed(job);
}

void CopyKeeper::Heard(const v1::State& state) {
  std::erase_if(given_up_,
                [&](const auto& each) { return each.first == state.job() && each.second.attempt < state.attempt(); });
  const absl::Status told = region_.peers().Tell(state.job(), ToMarks(MarksOf(state)));
  if (!told.ok()) Log(kDebug, "copy.marks").Job(state.job()).Error(told);
  const SnapshotId durable = ToId(state.durable());
  if (!durable.none()) region_.peers().MarkDurable(state.job(), durable);
  if (state.phase() != v1::State::RUN) return;
  reads_.HaveLoaded(state.job());
  parity_.HaveLoaded(state.job());
}

absl::Status CopyKeeper::GiveUp(const std::string& job) {
  const auto before = given_up_.find(job);
  GivenUp last = before == given_up_.end() ? GivenUp() : before->second;
  for (const region::PeerJob& held : region_.peers().Jobs())
    if (held.job == job) last = {held.attempt, std::max(held.newest, last.newest)};
  absl::Status removed = region_.peers().RemoveJob(job);
  if (removed.ok()) given_up_[job] = last;
  handler_.changed(job);
  return removed;
}

std::vector<v1::HeldCopies> CopyKeeper::CopiesOf(const std::string& job) const {
  std::map<Rank, v1::HeldCopies> by_rank;
  for (const region::PeerEntry& entry : region_.peers().List()) {
    if (entry.job != job || entry.key.kind != region::PeerKind::kCopy || !entry.complete) continue;
    v1::HeldCopies& copies = by_rank[entry.key.number];
    copies.set_rank(entry.key.number);
    SetRef(entry.id, copies.add_complete());
  }
  std::vector<v1::HeldCopies> out;
  out.reserve(by_rank.size());
  for (auto& [rank, copies] : by_rank) out.push_back(std::move(copies));
  return out;
}

bool CopyKeeper::IsComplete(const std::string& job, Rank rank, const SnapshotId& id) const {
  return region_.peers().OpenCopy(job, {region::PeerKind::kCopy, rank}, id).ok();
}

size_t CopyKeeper::CountComplete(const Key& key) const {
  const std::vector<region::PeerEntry> entries = region_.peers().List();
  return static_cast<size_t>(std::count_if(entries.begin(), entries.end(), [&](const region::PeerEntry& entry) {
    return entry.complete && entry.job == key.job && entry.key.number == key.rank;
  }));
}

absl::StatusOr<HeldSnapshot> CopyKeeper::Open(const std::string& job, Rank rank, const SnapshotId& id) {
  auto copy = region_.peers().OpenCopy(job, {region::PeerKind::kCopy, rank}, id);
  if (!copy.ok()) return handler_.own(job, rank, id);
  auto hold = std::make_shared<region::SlotHold>(std::move(copy->hold));
  return HeldSnapshot{std::move(copy->head), std::move(copy->record), std::move(copy->file), std::move(hold)};
}

// --------------------------------------------------------------------------------------------------------- who may ask

absl::Status CopyKeeper::MayAsk(const std::string& peer, const v1::CopyName& copy, AttemptId attempt,
                                const std::string& user, bool reads) const {
  const std::string name = absl::StrCat("job ", copy.job(), " rank ", copy.rank(), ": ");
  const auto state = handler_.state(copy.job());
  if (state == nullptr || state->attempt() < attempt || (state->attempt() == attempt && !state->has_decision()))
    return Error(ErrorCode::BUSY, absl::StrCat(name, "attempt ", attempt, " is not decided yet as this node knows"));
  if (state->attempt() > attempt)
    return Error(ErrorCode::FENCED, absl::StrCat(name, "attempt ", state->attempt(), " follows attempt ", attempt));
  if (!user.empty() && state->user() != user)
    return Error(ErrorCode::JOB_OWNED, absl::StrCat(name, "is uid ", state->user(), "'s, not uid ", user, "'s"));
  for (const v1::RankClaim& claim : state->decision().ranks()) {
    if (claim.agent() == peer && (reads || claim.rank() == copy.rank())) return absl::OkStatus();
  }
  return Error(ErrorCode::PERMISSION, absl::StrCat(name, "node ", peer, reads ? " has no rank" : " does not have it",
                                                   " in attempt ", attempt));
}

absl::StatusOr<transport::TransferToken> CopyKeeper::Issue(const transport::TransferName& name) {
  const transport::TransferToken token = transport::RandomToken();
  const Nanos now = clock_.Monotonic();
  CKPTD_RETURN_IF_ERROR(tokens_.Issue(token, name, now + kTokenLife, now));
  return token;
}

// ------------------------------------------------------------------------------------------------------------ incoming

absl::Status CopyKeeper::MayComeBack(const v1::OfferRequest& request) const {
  const auto found = given_up_.find(request.copy().job());
  if (found == given_up_.end() || found->second.attempt != request.attempt()) return absl::OkStatus();
  if (ToId(request.copy().snapshot()) > found->second.newest) return absl::OkStatus();
  return Error(ErrorCode::SUPERSEDED,
               absl::StrCat("job ", request.copy().job(), " rank ", request.copy().rank(), " step ",
                            request.copy().snapshot().step(),
                            ": given up here, by ckptctl gc or for want of memory; the job's next step is taken"));
}

void CopyKeeper::Offer(const std::string& peer, const v1::OfferRequest& request,
                       transport::CopyAnswer<v1::OfferResponse> answer) {
  absl::Status may = MayAsk(peer, request.copy(), request.attempt(), request.user());
  if (may.ok()) may = MayComeBack(request);
  if (!may.ok()) return answer(may);
  const auto state = handler_.state(request.copy().job());
  v1::OfferRequest known = request;
  *known.mutable_marks() = MarksOf(*state);
  if (IsAhead(request.marks(), known.marks())) answer = LaterIfUnwanted(std::move(answer));
  Decide(peer, known, *state, std::move(answer));
}

// By marks that this node knows of.
void CopyKeeper::Decide(const std::string& peer, const v1::OfferRequest& request, const v1::State& state,
                        transport::CopyAnswer<v1::OfferResponse> answer) {
  if (!request.has_parity()) return answer(Take(peer, request));
  const v1::ParityPiece& piece = request.parity();
  if (!IsGroupIn(state, {piece.ranks().begin(), piece.ranks().end()}, piece.parity()))
    return answer(Error(ErrorCode::BUSY, absl::StrCat("job ", request.copy().job(), " rank ", request.copy().rank(),
                                                      ": its parity group is another one as this node knows")));
  const bool loading = state.phase() == v1::State::LOAD;
  parity_.Offer(peer, request, loading, std::move(answer));
}

absl::StatusOr<v1::OfferResponse> CopyKeeper::Take(const std::string& peer, const v1::OfferRequest& request) {
  CKPTD_ASSIGN_OR_RETURN(const region::PeerSpec spec, SpecOf(request));
  v1::OfferResponse response;
  const SnapshotId id = ToId(request.copy().snapshot());
  if (IsComplete(request.copy().job(), request.copy().rank(), id)) {
    response.set_have(true);
    return response;
  }
  if (!region_.peers().Ready(spec)) return Prepare(spec);
  const Key key{request.copy().job(), request.copy().rank(), id, peer};
  CKPTD_ASSIGN_OR_RETURN(Incoming * incoming, Begin(key, spec, request.marks()));
  CKPTD_ASSIGN_OR_RETURN(const auto token, Issue(NameOf(peer, request.copy(), incoming->number)));
  response.set_token(token.data(), token.size());
  response.set_slot(incoming->number);
  return response;
}

// Always an error: LAYOUT_PREPARING, or why it cannot be.
absl::Status CopyKeeper::Prepare(const region::PeerSpec& spec) {
  auto build = std::make_shared<std::unique_ptr<region::PeerBuild>>();
  auto made = scope_.Bind([this, build, job = spec.layout.job](const absl::Status& status) {
    const absl::Status finished =
        status.ok() && *build != nullptr ? region_.peers().FinishLayout(std::move(*build)) : status;
    build->reset();
    if (!finished.ok()) Log(kWarning, "copy.no_memory").Job(job).Error(finished);
  });
  auto done = [&loop = loop_, made](const absl::Status& status) {
    (void)loop.Post([made, status]() mutable { made(status); });
  };
  CKPTD_ASSIGN_OR_RETURN(*build, StartLayout(spec, done));
  return Error(ErrorCode::LAYOUT_PREPARING, absl::StrCat("job ", spec.layout.job, " rank ", spec.layout.rank,
                                                         ": memory for copies is being prepared"));
}

absl::StatusOr<std::unique_ptr<region::PeerBuild>> CopyKeeper::StartLayout(const region::PeerSpec& spec,
                                                                           const region::SlotBuild::Done& done) {
  auto started = StartInRoom(spec, done);
  if (started.ok()) region_.under_way().Add((*started)->shared_progress());
  return started;
}

// Where there is no room, what the job once had here, or has in an older layout, makes some; while ranks load they may
// need it.
absl::StatusOr<std::unique_ptr<region::PeerBuild>> CopyKeeper::StartInRoom(const region::PeerSpec& spec,
                                                                           const region::SlotBuild::Done& done) {
  auto started = region_.peers().StartLayout(spec, region::Preparation::kPopulated, work_, done);
  const ErrorCode code = CodeOf(started.status());
  const auto state = handler_.state(spec.layout.job);
  const bool full = code == ErrorCode::QUOTA_EXCEEDED || code == ErrorCode::REGION_FULL;
  if (!full || state == nullptr || state->phase() != v1::State::RUN) return started;
  const bool older = region_.peers().GiveUpOlder(spec);
  const bool others = region_.peers().GiveUpAllBut(spec.layout.job, handler_.wanted(spec.layout.job));
  if (!older && !others) return started;
  handler_.changed(spec.layout.job);
  return region_.peers().StartLayout(spec, region::Preparation::kPopulated, work_, done);
}

absl::StatusOr<CopyKeeper::Incoming*> CopyKeeper::Begin(const Key& key, const region::PeerSpec& spec,
                                                        const v1::CopyMarks& marks) {
  const auto found = incoming_.find(key);
  if (found != incoming_.end() && !found->second.fill->fenced()) {
    found->second.touched = clock_.Monotonic();
    return &found->second;
  }
  const size_t complete = CountComplete(key);
  auto fill = region_.peers().Begin(spec, key.id, ToMarks(marks));
  // Of another owner, or an older snapshot: this one has fenced it, and perhaps waits for just its slot.
  const auto fenced = std::erase_if(incoming_, [](const auto& entry) { return entry.second.fill->fenced(); });
  if (fenced != 0 && CodeOf(fill.status()) == ErrorCode::BUSY)
    fill = region_.peers().Begin(spec, key.id, ToMarks(marks));
  CKPTD_RETURN_IF_ERROR(fill.status());
  Incoming& incoming = incoming_[key];
  incoming = {++last_number_, *std::move(fill), clock_.Monotonic()};
  if (CountComplete(key) != complete) handler_.changed(key.job);  // before the one that gave its slot is written over
  return &incoming;
}

void CopyKeeper::Seal(const std::string& peer, const v1::SealRequest& request,
                      transport::CopyAnswer<v1::SealResponse> answer) {
  const absl::Status may = MayAsk(peer, request.copy(), request.attempt(), "");
  if (!may.ok()) return answer(may);
  if (request.has_parity()) {
    const absl::Status sealed = parity_.Seal(peer, request);
    return sealed.ok() ? answer(v1::SealResponse()) : answer(sealed);
  }
  const SnapshotId id = ToId(request.copy().snapshot());
  if (IsComplete(request.copy().job(), request.copy().rank(), id)) return answer(v1::SealResponse());
  const Key key{request.copy().job(), request.copy().rank(), id, peer};
  const auto found = incoming_.find(key);
  if (found == incoming_.end())
    return answer(
        Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", request.copy().job(), " rank ", request.copy().rank(),
                                                 ": nothing of this step is on its way here")));
  CKPTD_FP("copy.seal");
  const absl::Status sealed = region_.peers().Complete(*found->second.fill, SealOf(request));
  if (CodeOf(sealed) == ErrorCode::CORRUPT) Failed(key, found->second.number, sealed);  // it went early
  if (!sealed.ok()) return answer(sealed);
  incoming_.erase(found);
  CKPTD_FP("copy.sealed");
  Log(kInfo, "copy.complete").Job(request.copy().job()).Rank(request.copy().rank()).Snapshot(id).Field("of", peer);
  handler_.changed(request.copy().job());
  answer(v1::SealResponse());
}

// ------------------------------------------------------------------------------------------------------------ outgoing

void CopyKeeper::Describe(const std::string& peer, const v1::DescribeRequest& request,
                          transport::CopyAnswer<v1::DescribeResponse> answer) {
  const absl::Status may = MayAsk(peer, request.copy(), request.attempt(), request.user(), true);
  if (!may.ok()) return answer(may);
  answer(request.has_parity() ? parity_.Describe(peer, request) : reads_.Describe(peer, request));
}

// ----------------------------------------------------------------------------------------------------------- the bytes

absl::StatusOr<transport::BulkEnd> CopyKeeper::Redeem(const std::string& peer, const transport::Hello& hello) {
  CKPTD_RETURN_IF_ERROR(tokens_.Redeem(hello.token, hello.name, clock_.Monotonic()));
  if (hello.name.peer != peer)
    return Error(ErrorCode::PERMISSION, absl::StrCat(transport::ToString(hello.name), ": asked for by node ", peer));
  const Key key{hello.name.job, hello.name.rank, hello.name.snapshot, peer};
  const auto in = incoming_.find(key);
  if (in != incoming_.end() && in->second.number == hello.name.slot) return EndOf(hello.name, in->second);
  if (auto out = reads_.Redeem(hello.name)) return *std::move(out);
  if (auto parity = parity_.Redeem(hello.name)) return *std::move(parity);
  return Error(ErrorCode::FENCED, absl::StrCat(transport::ToString(hello.name), ": is not wanted any more"));
}

transport::BulkEnd CopyKeeper::EndOf(const transport::TransferName& name, Incoming& incoming) {
  incoming.touched = clock_.Monotonic();
  const std::shared_ptr<region::PeerFill> fill = incoming.fill;
  transport::BulkEnd end;
  end.name = name;
  end.image_bytes = fill->place().slot_bytes;
  end.chunk_bytes = fill->place().chunk_bytes;
  transport::ServedReceive receive;
  receive.target.bytes = fill->bytes();
  receive.target.keep = fill;
  receive.target.verified = [fill](uint32_t chunk, uint32_t crc) { return fill->ChunkVerified(chunk, crc); };
  receive.limits.deadline = clock_.Monotonic() + transport::kLongestTransfer;
  receive.limits.alone = kAbandoned;
  end.end = std::move(receive);
  end.wanted = [weak = std::weak_ptr<region::PeerFill>(fill)] {
    const auto still = weak.lock();
    return still != nullptr && !still->fenced();
  };
  end.done = scope_.Bind([this, key = Key{name.job, name.rank, name.snapshot, name.peer},
                          number = incoming.number](const absl::Status& status) {
    if (!status.ok()) Failed(key, number, status);
  });
  return end;
}

// Whoever asked and does not come, or came and left in the middle, holds nothing for ever.
void CopyKeeper::Sweep() {
  sweep_ = loop_.After(kSweepEvery, [this] { Sweep(); });
  reads_.Sweep();
  parity_.Sweep();
  for (auto at = incoming_.begin(); at != incoming_.end();) {
    at = IsAbandoned(at->first, at->second) ? incoming_.erase(at) : std::next(at);
  }
}

// A new transfer would write chunks that count already: it begins with an empty fill.
void CopyKeeper::Failed(const Key& key, uint32_t number, const absl::Status& why) {
  const auto found = incoming_.find(key);
  if (found == incoming_.end() || found->second.number != number) return;
  Log(kWarning, "copy.not_received").Job(key.job).Rank(key.rank).Snapshot(key.id).Field("of", key.peer).Error(why);
  const absl::Status aborted = region_.peers().Abort(*found->second.fill);
  if (!aborted.ok()) Log(kWarning, "copy.abort").Job(key.job).Rank(key.rank).Error(aborted);
  incoming_.erase(found);
}

// Its slot is given back.
bool CopyKeeper::IsAbandoned(const Key& key, Incoming& incoming) {
  const Nanos now = clock_.Monotonic();
  const size_t missing = incoming.fill->missing();
  if (missing != incoming.missing) incoming.touched = now;
  incoming.missing = missing;
  if (incoming.fill->fenced()) return true;
  if (now - incoming.touched <= kAbandoned) return false;
  const absl::Status aborted = region_.peers().Abort(*incoming.fill);
  Log(kWarning, "copy.abandoned").Job(key.job).Rank(key.rank).Snapshot(key.id).Error(aborted);
  return true;
}

}  // namespace ckptd::protect
