#include "daemon/protect/parity_keeper.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/os/run_async.h"
#include "daemon/protect/copy_messages.h"

namespace ckptd::protect {
namespace {

constexpr Nanos kWaitsForOthers = std::chrono::seconds(5);  // then an offer is BUSY, and comes again
constexpr Nanos kLeftAlone = std::chrono::seconds(60);      // nothing moves: its slot is given back

absl::Status NotWanted(const std::string& job, absl::string_view why) {
  return Error(ErrorCode::BUSY, absl::StrCat("job ", job, ": parity of this step is not made now: ", why));
}

bool IsFull(const absl::Status& status) {
  const ErrorCode code = CodeOf(status);
  return code == ErrorCode::QUOTA_EXCEEDED || code == ErrorCode::REGION_FULL;
}

}  // namespace

ParityKeeper::ParityKeeper(Loop& loop, const Clock& clock, region::Region& region, Executor& work, Handler handler)
    : loop_(loop),
      clock_(clock),
      region_(region),
      work_(work),
      handler_(std::move(handler)),
      reads_(loop, clock, region, {handler_.issue, handler_.number}) {}

// ------------------------------------------------------------------------------------------------------ what there is

std::vector<v1::HeldParity> ParityKeeper::HeldOf(const std::string& job) const {
  std::map<uint32_t, std::vector<v1::HeldParity>> by_number;
  for (const region::PeerEntry& entry : region_.peers().List()) {
    if (entry.job != job || entry.key.kind != region::PeerKind::kParity || !entry.complete) continue;
    const auto place = PlaceOf(*entry.parity);
    if (!place) continue;
    v1::HeldParity held;
    held.mutable_ranks()->Assign(place->ranks.begin(), place->ranks.end());
    held.set_parity(place->shape.parity);
    held.set_stripe(place->stripe);
    held.set_row(place->row);
    SetRef(entry.id, held.add_complete());
    by_number[entry.key.number].push_back(std::move(held));
  }
  std::vector<v1::HeldParity> out;
  for (auto& [number, all] : by_number) out.insert(out.end(), all.begin(), all.end());
  return out;
}

bool ParityKeeper::IsComplete(const std::string& job, const ParityPlace& place, const SnapshotId& id) const {
  const auto copy = region_.peers().OpenCopy(job, place.key(), id, LayoutCrcOf(place));
  return copy.ok() && copy->parity != nullptr && PlaceOf(*copy->parity) == place;
}

// ------------------------------------------------------------------------------------------------------------ offers

void ParityKeeper::Offer(const std::string& peer, const v1::OfferRequest& request, bool loading,
                         transport::CopyAnswer<v1::OfferResponse> answer) {
  const ParityPlace place = protect::PlaceOf(request.parity());
  const Key key{request.copy().job(), place.key().number};
  if (IsComplete(key.first, place, ToId(request.copy().snapshot()))) {
    v1::OfferResponse have;
    have.set_have(true);
    return answer(std::move(have));
  }
  auto making = Join(key, request, loading);
  if (!making.ok()) return answer(making.status());
  auto piece = PieceOf(**making, peer, request);
  if (!piece.ok()) return answer(piece.status());
  if ((*piece)->waiting != nullptr) (*piece)->waiting(NotWanted(key.first, "it was offered again"));
  (*piece)->waiting = std::move(answer);
  (*making)->touched = clock_.Monotonic();
  Advance(key);
}

// By what anybody told of the job: an order may be older than what came since.
bool ParityKeeper::Overtakes(const v1::OfferRequest& request, const Making& now) const {
  region::PeerMarks marks = region_.peers().MarksOf(request.copy().job());
  (void)region::Advance(marks, now.marks);
  (void)region::Advance(marks, ToMarks(request.marks()));
  return region::Overtakes(ToId(request.copy().snapshot()), now.id, marks);
}

absl::StatusOr<ParityKeeper::Making*> ParityKeeper::Join(const Key& key, const v1::OfferRequest& request,
                                                         bool loading) {
  const ParityPlace place = protect::PlaceOf(request.parity());
  const SnapshotId id = ToId(request.copy().snapshot());
  const auto found = making_.find(key);
  if (found != making_.end()) {
    Making& now = found->second;
    if (now.work != nullptr && now.work->fill().fenced()) {
      Drop(key, NotWanted(key.first, "it was given up"));
    } else if (now.attempt == request.attempt() && now.id == id && now.place == place) {
      now.loading = loading;
      (void)region::Advance(now.marks, ToMarks(request.marks()));
      return &now;
    } else if (now.attempt > request.attempt() || (now.attempt == request.attempt() && !Overtakes(request, now))) {
      return Error(ErrorCode::SUPERSEDED, absl::StrCat("job ", key.first, ": step ", now.id.step, "'s goes first"));
    } else {
      Drop(key, NotWanted(key.first, "another one goes first"));
    }
  }
  Making& making = making_[key];
  making.place = place;
  making.id = id;
  making.attempt = request.attempt();
  making.user = request.user();
  making.marks = ToMarks(request.marks());
  making.loading = loading;
  return &making;
}

absl::StatusOr<ParityKeeper::Piece*> ParityKeeper::PieceOf(Making& making, const std::string& peer,
                                                           const v1::OfferRequest& request) {
  const Rank rank = request.copy().rank();
  const auto found = making.pieces.find(rank);
  if (found == making.pieces.end()) {
    Piece piece;
    piece.peer = peer;
    piece.layout = request.layout();
    piece.world = request.world_size();
    piece.number = handler_.number();
    return &making.pieces.emplace(rank, std::move(piece)).first->second;
  }
  Piece& piece = found->second;
  if (piece.peer == peer && piece.layout.SerializeAsString() == request.layout().SerializeAsString()) return &piece;
  return Error(ErrorCode::FENCED, absl::StrCat("job ", request.copy().job(), " rank ", rank, " step ", making.id.step,
                                               ": parity is being made with what node ", piece.peer, " offered of it"));
}

void ParityKeeper::Advance(const Key& key) {
  Making& making = making_.at(key);
  if (making.pieces.size() < making.place.shape.data || making.preparing) return;
  if (making.work == nullptr) {
    const absl::Status begun = Begin(key, making);
    if (making.preparing) return;
    if (!begun.ok()) return AnswerAll(making, begun);
  }
  for (auto& [rank, piece] : making.pieces) {
    if (piece.waiting == nullptr) continue;
    const auto answer = std::exchange(piece.waiting, nullptr);
    const auto token = handler_.issue({piece.peer, key.first, rank, making.id, piece.number});
    if (!token.ok()) {
      answer(token.status());
      continue;
    }
    v1::OfferResponse response;
    response.set_token(token->data(), token->size());
    response.set_slot(piece.number);
    answer(std::move(response));
  }
}

void ParityKeeper::AnswerAll(Making& making, const absl::Status& status) {
  for (auto& [rank, piece] : making.pieces) {
    if (const auto answer = std::exchange(piece.waiting, nullptr)) answer(status);
  }
}

// ------------------------------------------------------------------------------------------------------- memory, slot

absl::Status ParityKeeper::Begin(const Key& key, Making& making) {
  std::vector<v1::CopyLayout> layouts;
  uint32_t world = 0;
  for (const Rank rank : making.place.DataRanks()) {
    layouts.push_back(making.pieces.at(rank).layout);
    world = std::max(world, making.pieces.at(rank).world);
  }
  CKPTD_ASSIGN_OR_RETURN(ParitySizes sizes, SizesOf(making.place, layouts));
  region::PeerSpec spec;
  spec.kind = region::PeerKind::kParity;
  spec.layout.job = key.first;
  if (!absl::SimpleAtoi(making.user, &spec.layout.uid))
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("job ", key.first, ": no user id: ", making.user));
  spec.layout.rank = key.second;
  spec.layout.world = std::max(world, key.second + 1);
  spec.layout.chunk_bytes = sizes.chunk_bytes;
  spec.layout.images = {{0, sizes.slot_bytes, 8}};
  spec.layout.header_crc = LayoutCrcOf(making.place);
  if (!region_.peers().Ready(spec)) return Prepare(key, making, spec);
  CKPTD_ASSIGN_OR_RETURN(auto fill, OpenFill(key, making, spec));
  CKPTD_ASSIGN_OR_RETURN(making.work, ParityWork::Make(making.place, std::move(sizes), std::move(fill)));
  return absl::OkStatus();
}

// Where this step's parity is complete for another grouping of the ranks, it is not begun while they load: there may be
// no memory for both, and somebody may rebuild. Once all ranks run, each has its image.
absl::StatusOr<std::shared_ptr<region::PeerFill>> ParityKeeper::OpenFill(const Key& key, Making& making,
                                                                         const region::PeerSpec& spec) {
  const bool other = region_.peers().OpenCopy(key.first, making.place.key(), making.id).ok();
  if (other && making.loading) return NotWanted(key.first, "ranks are loading from another one");
  const size_t held = HeldOf(key.first).size();
  auto fill = region_.peers().Begin(spec, making.id, making.marks);
  if (HeldOf(key.first).size() != held) handler_.changed(key.first);
  return fill;
}

// Where there is no memory for both, it goes before: this step's parity for another grouping, by the same rule.
bool ParityKeeper::GiveUpOther(const Key& key, const Making& making) {
  if (making.loading) return false;
  bool any = false;
  while (region_.peers().Delete(key.first, making.place.key(), making.id).ok()) any = true;
  if (any) handler_.changed(key.first);
  return any;
}

absl::Status ParityKeeper::Prepare(const Key& key, Making& making, const region::PeerSpec& spec) {
  auto build = std::make_shared<std::unique_ptr<region::PeerBuild>>();
  auto made = scope_.Bind([this, build, key](const absl::Status& status) {
    const absl::Status finished =
        status.ok() && *build != nullptr ? region_.peers().FinishLayout(std::move(*build)) : status;
    build->reset();
    Prepared(key, finished);
  });
  auto done = [&loop = loop_, made](const absl::Status& status) {
    (void)loop.Post([made, status]() mutable { made(status); });
  };
  auto started = handler_.start_layout(spec, done);
  if (IsFull(started.status()) && GiveUpOther(key, making)) started = handler_.start_layout(spec, done);
  CKPTD_ASSIGN_OR_RETURN(*build, std::move(started));
  making.preparing = true;
  return absl::OkStatus();
}

void ParityKeeper::Prepared(const Key& key, const absl::Status& status) {
  if (!status.ok()) Log(kWarning, "parity.no_memory").Job(key.first).Error(status);
  const auto found = making_.find(key);
  if (found == making_.end()) return;
  found->second.preparing = false;
  if (!status.ok()) return AnswerAll(found->second, status);
  Advance(key);
}

// ---------------------------------------------------------------------------------------------------------- complete

absl::Status ParityKeeper::Seal(const std::string& peer, const v1::SealRequest& request) {
  const ParityPlace place = protect::PlaceOf(request.parity());
  const SnapshotId id = ToId(request.copy().snapshot());
  const Key key{request.copy().job(), place.key().number};
  if (IsComplete(key.first, place, id)) return absl::OkStatus();
  const auto found = making_.find(key);
  const bool this_one = found != making_.end() && found->second.id == id && found->second.place == place;
  const auto piece = this_one ? found->second.pieces.find(request.copy().rank()) : std::map<Rank, Piece>::iterator();
  if (!this_one || found->second.work == nullptr || piece == found->second.pieces.end() || piece->second.peer != peer)
    return Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", key.first, " rank ", request.copy().rank(),
                                                    ": nothing of step ", id.step, " is on its way into parity here"));
  absl::Status sealed = SealPiece(found->second, piece->second, request);
  if (sealed.ok()) return Complete(key, found->second);
  (void)DropIfContradicted(key, request.copy().rank());
  return sealed;
}

absl::Status ParityKeeper::SealPiece(Making& making, Piece& piece, const v1::SealRequest& request) const {
  const v1::CopyRecord& record = request.record();
  const std::vector<uint32_t> crcs(record.chunk_crc().begin(), record.chunk_crc().end());
  const std::string name =
      absl::StrCat("job ", request.copy().job(), " rank ", request.copy().rank(), " step ", making.id.step, ": ");
  const uint64_t chunk_bytes = piece.layout.chunk_bytes();
  if (crcs.size() != (piece.layout.slot_bytes() - 1) / chunk_bytes + 1 ||
      request.header_crc() != piece.layout.header_crc() || region::RootCrc(crcs) != request.root_crc())
    return Error(ErrorCode::CORRUPT, absl::StrCat(name, "the record is not of what was offered"));
  const erasure::Extent block =
      BlockGivenBy(making.place, request.copy().rank(), piece.layout.slot_bytes(), chunk_bytes);
  const std::span<const uint32_t> of_block =
      std::span(crcs).subspan(block.begin / chunk_bytes, (block.size + chunk_bytes - 1) / chunk_bytes);
  CKPTD_RETURN_IF_ERROR(making.work->CheckBlock(*making.place.DataIndexOf(request.copy().rank()), of_block));
  piece.record = record;
  making.touched = clock_.Monotonic();
  return absl::OkStatus();
}

// With the last piece; until then all is well as it is.
absl::Status ParityKeeper::Complete(const Key& key, Making& making) {
  v1::ParityContents contents;
  auto parity = std::make_shared<region::ParityRecord>();
  const ParityPlace& place = making.place;
  *parity = {key.second,
             place.shape.data,
             place.shape.parity,
             erasure::ParityHolder(place.shape, place.stripe, place.row),
             {}};
  for (const Rank rank : place.ranks) {
    ParityMember& member = parity->members.emplace_back(ParityMember{rank, 0, making.id.step, 0});
    const auto piece = making.pieces.find(rank);
    if (piece == making.pieces.end()) continue;  // it keeps parity of the stripe
    if (!piece->second.record) return absl::OkStatus();
    const v1::CopyRecord& record = *piece->second.record;
    const std::vector<uint32_t> crcs(record.chunk_crc().begin(), record.chunk_crc().end());
    member.crc = region::RootCrc(crcs);
    member.bytes = piece->second.layout.slot_bytes();
    v1::ParityContents::Member* out = contents.add_members();
    out->set_rank(rank);
    out->set_world_size(piece->second.world);
    *out->mutable_layout() = piece->second.layout;
    *out->mutable_record() = record;
  }
  region::PeerSeal seal;
  seal.head.attempt = making.id.attempt;
  seal.head.step = making.id.step;
  seal.head.parent_attempt = contents.members(0).record().parent().attempt();
  seal.head.parent_step = contents.members(0).record().parent().step();
  seal.parity = std::move(parity);
  CKPTD_FP("copy.parity.seal");
  CKPTD_ASSIGN_OR_RETURN(seal.root_crc, making.work->Finish(std::move(contents)));
  CKPTD_RETURN_IF_ERROR(region_.peers().Complete(making.work->fill(), seal));
  CKPTD_FP("copy.parity.sealed");
  Log(kInfo, "parity.complete").Job(key.first).Snapshot(making.id).Field("stripe", uint64_t{place.stripe});
  making_.erase(key);
  handler_.changed(key.first);
  return absl::OkStatus();
}

void ParityKeeper::Drop(const Key& key, const absl::Status& why) {
  const auto found = making_.find(key);
  if (found == making_.end()) return;
  Making dropped = std::move(found->second);
  making_.erase(found);
  AnswerAll(dropped, why);
  if (dropped.work == nullptr) return;
  const absl::Status aborted = region_.peers().Abort(dropped.work->fill());
  if (!aborted.ok()) Log(kWarning, "parity.abort").Job(key.first).Error(aborted);
}

// A capture went early, and is not what was sealed in the end.
bool ParityKeeper::DropIfContradicted(const Key& key, Rank rank) {
  const Making& making = making_.at(key);
  if (making.work == nullptr || !making.work->contradicted()) return false;
  Log(kWarning, "parity.contradicted").Job(key.first).Rank(rank).Snapshot(making.id);
  Drop(key, NotWanted(key.first, absl::StrCat("of rank ", rank, " it has other bytes; all come again")));
  return true;
}

// --------------------------------------------------------------------------------------------------------- the bytes

std::optional<transport::BulkEnd> ParityKeeper::Redeem(const transport::TransferName& name) {
  if (auto reading = reads_.Redeem(name)) return reading;
  for (auto& [key, making] : making_) {
    if (key.first != name.job || making.id != name.snapshot || making.work == nullptr) continue;
    const auto piece = making.pieces.find(name.rank);
    const bool its = piece != making.pieces.end() && piece->second.number == name.slot;
    if (its && piece->second.peer == name.peer) return EndOf(key, making, name);
  }
  return std::nullopt;
}

transport::BulkEnd ParityKeeper::EndOf(const Key& key, Making& making, const transport::TransferName& name) {
  Piece& piece = making.pieces.at(name.rank);
  const uint32_t data = *making.place.DataIndexOf(name.rank);
  const uint64_t chunk_bytes = making.work->sizes().chunk_bytes;
  transport::BulkEnd end;
  end.name = name;
  end.image_bytes = making.work->sizes().blocks[data];
  end.chunk_bytes = chunk_bytes;
  if (piece.scratch == nullptr) {
    auto scratch = Scratch::Make(end.image_bytes);
    if (scratch.ok()) piece.scratch = std::make_shared<Scratch>(*std::move(scratch));
  }
  transport::ServedReceive receive;
  receive.target.keep = piece.scratch;
  if (piece.scratch != nullptr) receive.target.bytes = piece.scratch->bytes();
  receive.target.verified = [work = making.work, scratch = piece.scratch, data, chunk_bytes](
                                uint32_t chunk, uint32_t crc) -> absl::Status {
    const uint64_t offset = chunk * chunk_bytes;
    const std::span<std::byte> bytes = scratch->bytes().subspan(offset);
    const std::span<std::byte> whole = bytes.first(std::min<uint64_t>(chunk_bytes, bytes.size()));
    CKPTD_FP("copy.parity.fold");
    CKPTD_RETURN_IF_ERROR(work->Fold(data, chunk, crc, whole));
    scratch->Discard(offset, whole.size());
    return absl::OkStatus();
  };
  receive.limits.deadline = clock_.Monotonic() + transport::kLongestTransfer;
  receive.limits.alone = kLeftAlone;
  end.end = std::move(receive);
  end.wanted = [weak = std::weak_ptr<ParityWork>(making.work)] {
    const auto work = weak.lock();
    return work != nullptr && !work->fill().fenced();
  };
  end.done = scope_.Bind([this, key, rank = name.rank, number = name.slot](const absl::Status& status) {
    MoveEnded(key, rank, number, status);
  });
  return end;
}

// What came is in, and stays; the next transfer is another one, and may bring it again.
void ParityKeeper::MoveEnded(const Key& key, Rank rank, uint32_t number, const absl::Status& status) {
  const auto found = making_.find(key);
  if (found == making_.end()) return;
  const auto piece = found->second.pieces.find(rank);
  if (piece == found->second.pieces.end() || piece->second.number != number) return;
  piece->second.scratch.reset();
  if (status.ok()) return;
  Log(kWarning, "parity.not_received").Job(key.first).Rank(rank).Snapshot(found->second.id).Error(status);
  if (DropIfContradicted(key, rank)) return;
  piece->second.number = handler_.number();
}

// --------------------------------------------------------------------------------------------------------- abandoned

void ParityKeeper::Sweep() {
  const Nanos now = clock_.Monotonic();
  reads_.Sweep();
  std::vector<Key> abandoned;
  for (auto& [key, making] : making_) {
    const size_t folded = making.work == nullptr ? 0 : making.work->folded();
    if (folded != making.folded || making.preparing) making.touched = now;
    making.folded = folded;
    const bool alone = making.work == nullptr && !making.preparing && now - making.touched > kWaitsForOthers;
    if (alone) AnswerAll(making, NotWanted(key.first, "other ranks of the group have not offered theirs yet"));
    const bool fenced = making.work != nullptr && making.work->fill().fenced();
    if (fenced || now - making.touched > kLeftAlone) abandoned.push_back(key);
  }
  for (const Key& key : abandoned) Drop(key, NotWanted(key.first, "nothing of it came for a minute"));
}

}  // namespace ckptd::protect
