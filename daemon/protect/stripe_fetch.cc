#include "daemon/protect/stripe_fetch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/os/run_async.h"
#include "daemon/protect/copy_messages.h"

namespace ckptd::protect {
namespace {

uint64_t ChunksOf(uint64_t bytes, uint64_t chunk_bytes) { return bytes / chunk_bytes + (bytes % chunk_bytes != 0); }

bool SameChecksums(const v1::CopyRecord& a, const v1::CopyRecord& b) {
  return std::equal(a.chunk_crc().begin(), a.chunk_crc().end(), b.chunk_crc().begin(), b.chunk_crc().end());
}

// A piece that lies on this node, chunk by chunk.
absl::Status ReadPiece(const region::SlotFile& file, uint64_t begin, uint64_t chunk_bytes, size_t input,
                       StripeRebuild& rebuild) {
  const std::span<std::byte> into = rebuild.bytes(input);
  for (uint64_t at = 0; at < into.size(); at += chunk_bytes) {
    if (rebuild.stopped()) return Error(ErrorCode::CANCELLED, "not wanted any more");
    const auto bytes = into.subspan(at, std::min<uint64_t>(chunk_bytes, into.size() - at));
    CKPTD_RETURN_IF_ERROR(file.Read(begin + at, bytes));
    const uint32_t crc = Crc32c(0, bytes.data(), bytes.size());
    CKPTD_RETURN_IF_ERROR(rebuild.Came(input, static_cast<uint32_t>(at / chunk_bytes), crc));
  }
  return absl::OkStatus();
}

}  // namespace

std::string RebuildEnds::Name(const SnapshotId& id) const {
  return absl::StrCat("job ", whose.job, " rank ", whose.rank, " step ", id.step);
}

v1::DescribeRequest RebuildEnds::RequestFor(const ParityPlan::Source& source, const SnapshotId& id) const {
  v1::DescribeRequest request;
  *request.mutable_copy() = NameOfCopy(whose.job, source.rank, id);
  request.set_user(std::to_string(whose.uid));
  if (source.parity) *request.mutable_parity() = PieceOf(*source.parity);
  return request;
}

v1::DescribeResponse DescriptionOf(const HeldSnapshot& held) {
  v1::DescribeResponse response;
  response.set_world_size(held.head.block.world);
  *response.mutable_layout() = LayoutOf(held.head);
  *response.mutable_record() = RecordOf(*held.record);
  return response;
}

absl::StatusOr<v1::DescribeResponse> DescriptionOf(const HeldParity& held, Rank rank) {
  for (const v1::ParityContents::Member& member : held.contents.members()) {
    if (member.rank() != rank) continue;
    v1::DescribeResponse response;
    response.set_world_size(member.world_size());
    *response.mutable_layout() = member.layout();
    *response.mutable_record() = member.record();
    response.set_parity_bytes(held.bytes);
    response.mutable_parity_crc()->Assign(held.crcs.begin(), held.crcs.end());
    return response;
  }
  return Error(ErrorCode::NOT_FOUND, absl::StrCat("the parity has no block of rank ", rank));
}

absl::Status CheckTold(const v1::DescribeResponse& told, const SnapshotId& id) {
  const SnapshotId of = ToId(told.record().snapshot());
  if (of != id) return Error(ErrorCode::CORRUPT, absl::StrCat("it has step ", ToString(of), ", not ", ToString(id)));
  const uint64_t chunk_bytes = told.layout().chunk_bytes();
  const auto said = static_cast<uint64_t>(told.record().chunk_crc_size());
  if (chunk_bytes != 0 && said != 0 && said == ChunksOf(told.layout().slot_bytes(), chunk_bytes))
    return absl::OkStatus();
  return Error(ErrorCode::CORRUPT, absl::StrCat("its record has ", said, " checksums for an image of ",
                                                told.layout().slot_bytes(), " bytes"));
}

struct StripeFetch::Piece {
  ParityPlan::Source from;
  PieceSource source;
  bool own = false;
  v1::DescribeResponse told;  // token and slot
  erasure::Extent stretch;    // in the image or in the parity
  std::vector<uint32_t> crcs;
  std::shared_ptr<region::SlotFile> file;  // of what is this node's own
  std::shared_ptr<void> keep;
};

StripeFetch::StripeFetch(const RebuildEnds& ends, Lengths& lengths, ParityPlan::Stripe stripe, Order order, Ended ended)
    : ends_(ends),
      lengths_(lengths),
      stripe_(std::move(stripe)),
      order_(std::move(order)),
      ended_(std::move(ended)),
      untold_(stripe_.sources.size()) {
  const auto missing = [](bool rebuilt) { return !rebuilt; };
  const std::vector<bool>& rebuilt = order_.rebuilt;
  const auto first = std::find_if(rebuilt.begin(), rebuilt.end(), missing);
  const auto last = std::find_if(rebuilt.rbegin(), rebuilt.rend(), missing);
  first_ = static_cast<size_t>(first - rebuilt.begin());
  const uint64_t of_each_chunk = std::max<uint64_t>(1, stripe_.sources.size()) * order_.into.head.block.chunk_bytes;
  count_ = std::min(static_cast<size_t>(last.base() - first),
                    static_cast<size_t>(std::max<uint64_t>(1, ends_.memory / of_each_chunk)));
  for (const ParityPlan::Source& from : stripe_.sources) {
    const bool own = from.agent == ends_.whose.agent;
    const bool spare = from.spare || order_.spare;
    pieces_.push_back(std::unique_ptr<Piece>(new Piece{
        from, {ends_.loop, ends_.clock, ends_.calls, ends_.attempt, from.agent, spare}, own, {}, {}, {}, {}, {}}));
  }
}

StripeFetch::~StripeFetch() {
  if (rebuild_) rebuild_->Stop();
}

// ---------------------------------------------------------------------------------------------------- what there is

void StripeFetch::Start() {
  for (size_t i = 0; i < pieces_.size() && !over_; ++i) Ask(i);
}

void StripeFetch::CanBeSpared() {
  for (const auto& piece : pieces_) piece->source.set_spare(true);
}

// Of an image that nobody has told of yet only the first chunk is asked for: which chunks the block is, depends on how
// long the image is.
void StripeFetch::Ask(size_t i) {
  Piece& piece = *pieces_[i];
  if (piece.own) return AskSelf(i);
  v1::DescribeRequest request = ends_.RequestFor(piece.from, order_.id);
  erasure::Extent chunks{first_, count_};
  if (!piece.from.parity) {
    const auto length = lengths_.find({piece.from.rank, piece.from.agent});
    chunks = {0, 1};
    if (length != lengths_.end()) {
      const uint64_t chunk_bytes = order_.into.head.block.chunk_bytes;
      const erasure::Extent bytes = StretchOf(piece, length->second);
      if (bytes.size == 0) return Told();
      chunks = {bytes.begin / chunk_bytes, ChunksOf(bytes.size, chunk_bytes)};
    }
  }
  request.set_first_chunk(chunks.begin);
  request.set_chunks(chunks.size);
  piece.source.Ask(std::move(request),
                   [this, i](absl::StatusOr<v1::DescribeResponse> answer) { Answered(i, std::move(answer)); });
}

void StripeFetch::AskSelf(size_t i) {
  Piece& piece = *pieces_[i];
  if (piece.from.parity) {
    auto held = ends_.parity(*piece.from.parity, order_.id);
    if (!held.ok()) return Lose(i, held.status());
    piece.file = held->file;
    piece.keep = held->keep;
    return Answered(i, DescriptionOf(*held, piece.from.rank));
  }
  auto held = ends_.open(piece.from.rank, order_.id);
  if (!held.ok()) return Lose(i, held.status());
  piece.file = held->file;
  piece.keep = held->keep;
  lengths_[{piece.from.rank, piece.from.agent}] = held->head.block.slot_bytes;
  Answered(i, DescriptionOf(*held));
}

void StripeFetch::Answered(size_t i, absl::StatusOr<v1::DescribeResponse> answer) {
  if (over_) return;
  Piece& piece = *pieces_[i];
  absl::Status status = answer.status();
  if (status.ok()) status = CheckTold(*answer, order_.id);
  if (!status.ok()) return Lose(i, status);
  const std::pair<Rank, std::string> image{piece.from.rank, piece.from.agent};
  if (!piece.from.parity && lengths_.emplace(image, answer->layout().slot_bytes()).second) return Ask(i);
  status = piece.from.parity ? TakeParity(piece, *answer) : TakeImage(piece, *answer);
  if (!status.ok()) return Lose(i, status);
  piece.told.set_token(answer->token());
  piece.told.set_slot(answer->slot());
  Told();
}

// What the image has of the stretch that is missing.
erasure::Extent StripeFetch::StretchOf(const Piece& piece, uint64_t image_bytes) const {
  const uint64_t chunk_bytes = order_.into.head.block.chunk_bytes;
  const erasure::Extent block = BlockGivenBy(stripe_.place, piece.from.rank, image_bytes, chunk_bytes);
  const uint64_t skipped = first_ * chunk_bytes;
  return {block.begin + skipped, erasure::PieceBytes(block.size, skipped, count_ * chunk_bytes)};
}

absl::Status StripeFetch::TakeImage(Piece& piece, const v1::DescribeResponse& told) const {
  const uint64_t chunk_bytes = order_.into.head.block.chunk_bytes;
  if (told.layout().chunk_bytes() != chunk_bytes ||
      told.layout().slot_bytes() != lengths_.at({piece.from.rank, piece.from.agent}))
    return Error(ErrorCode::CORRUPT, absl::StrCat("it tells of an image of ", told.layout().slot_bytes(),
                                                  " bytes in chunks of ", told.layout().chunk_bytes()));
  piece.stretch = StretchOf(piece, told.layout().slot_bytes());
  if (piece.stretch.size == 0) return absl::OkStatus();
  const auto crcs = told.record().chunk_crc().begin() + static_cast<ptrdiff_t>(piece.stretch.begin / chunk_bytes);
  piece.crcs.assign(crcs, crcs + static_cast<ptrdiff_t>(ChunksOf(piece.stretch.size, chunk_bytes)));
  return absl::OkStatus();
}

absl::Status StripeFetch::TakeParity(Piece& piece, const v1::DescribeResponse& told) {
  const region::CtlHead& head = order_.into.head;
  const uint64_t chunk_bytes = head.block.chunk_bytes;
  const v1::CopyLayout& layout = told.layout();
  if (layout.header_crc() != head.block.header_crc || layout.slot_bytes() != head.block.slot_bytes ||
      layout.chunk_bytes() != chunk_bytes)
    return Error(ErrorCode::CORRUPT, "it is of an image with another layout than the one that is rebuilt");
  if (order_.record != nullptr && !SameChecksums(*order_.record, told.record()))
    return Error(ErrorCode::CORRUPT, "it is of an image with other checksums than the parity before");
  const bool whole = told.parity_bytes() >= order_.block.size &&
                     static_cast<uint64_t>(told.parity_crc_size()) == ChunksOf(told.parity_bytes(), chunk_bytes);
  if (!whole)
    return Error(ErrorCode::CORRUPT,
                 absl::StrCat("parity of ", told.parity_bytes(), " bytes with ", told.parity_crc_size(),
                              " checksums for a block of ", order_.block.size));
  if (order_.record == nullptr) order_.record = std::make_shared<const v1::CopyRecord>(told.record());
  const uint64_t begin = first_ * chunk_bytes;
  piece.stretch = {begin, erasure::PieceBytes(told.parity_bytes(), begin, count_ * chunk_bytes)};
  const auto crcs = told.parity_crc().begin() + static_cast<ptrdiff_t>(first_);
  piece.crcs.assign(crcs, crcs + static_cast<ptrdiff_t>(count_));
  return absl::OkStatus();
}

void StripeFetch::Told() {
  if (--untold_ == 0) Begin();
}

// ------------------------------------------------------------------------------------------------------- the bytes

// At least one source is parity, so that the record is known.
void StripeFetch::Begin() {
  const uint64_t chunk_bytes = order_.into.head.block.chunk_bytes;
  StripeRebuild::Stretch stretch{ends_.Name(order_.id), order_.into.file, 0, 0, chunk_bytes, {}, {}};
  stretch.begin = order_.block.begin + first_ * chunk_bytes;
  stretch.bytes = erasure::PieceBytes(order_.block.size, first_ * chunk_bytes, count_ * chunk_bytes);
  const auto crcs = order_.record->chunk_crc().begin() + static_cast<ptrdiff_t>(stretch.begin / chunk_bytes);
  stretch.crcs.assign(crcs, crcs + static_cast<ptrdiff_t>(count_));
  const auto rebuilt = order_.rebuilt.begin() + static_cast<ptrdiff_t>(first_);
  stretch.rebuilt.assign(rebuilt, rebuilt + static_cast<ptrdiff_t>(count_));
  std::vector<StripeRebuild::Input> inputs;
  for (const auto& piece : pieces_) inputs.push_back({piece->stretch.size, piece->crcs});
  auto made = StripeRebuild::Make(stripe_.decoder, std::move(stretch), std::move(inputs));
  failed_ = made.status();
  if (!made.ok()) return GiveUp();
  rebuild_ = *std::move(made);
  for (size_t i = 0; i < pieces_.size() && !over_; ++i) {
    if (pieces_[i]->stretch.size == 0) continue;
    if (const absl::Status begun = Bring(i); !begun.ok()) Lose(i, begun);
  }
}

absl::Status StripeFetch::Bring(size_t i) {
  Piece& piece = *pieces_[i];
  if (piece.own) {
    BringFromSelf(i);
    return absl::OkStatus();
  }
  transport::BulkTarget target;
  target.bytes = rebuild_->bytes(i);
  target.keep = rebuild_;
  target.verified = [rebuild = rebuild_, i](uint32_t chunk, uint32_t crc) { return rebuild->Came(i, chunk, crc); };
  CKPTD_RETURN_IF_ERROR(piece.source.Receive(piece.told, piece.stretch.size, order_.into.head.block.chunk_bytes,
                                             std::move(target),
                                             [this, i](const absl::Status& status) { BroughtBy(i, status); }));
  ++moving_;
  return absl::OkStatus();
}

void StripeFetch::BringFromSelf(size_t i) {
  const Piece& piece = *pieces_[i];
  ++moving_;
  RunAsync<absl::Status>(
      ends_.loop, ends_.work,
      [file = piece.file, begin = piece.stretch.begin, chunk = uint64_t{order_.into.head.block.chunk_bytes}, i,
       rebuild = rebuild_] { return ReadPiece(*file, begin, chunk, i, *rebuild); },
      scope_.Bind([this, i](const absl::Status& status) { BroughtBy(i, status); }));
}

void StripeFetch::BroughtBy(size_t i, const absl::Status& status) {
  --moving_;
  if (over_) return MaybeFinish();
  if (!status.ok()) return Lose(i, status);
  if (moving_ == 0) GiveUp();
}

// Whoever brought the last chunk is not to blame for a slot that cannot be written, or for parity of other images.
void StripeFetch::Lose(size_t i, const absl::Status& why) {
  if (over_) return;
  const absl::Status failed = rebuild_ ? rebuild_->failed() : absl::OkStatus();
  const absl::Status mismatch = rebuild_ ? rebuild_->mismatch() : absl::OkStatus();
  size_t blamed = mismatch.ok() ? i : 0;
  while (!mismatch.ok() && !pieces_[blamed]->from.parity) ++blamed;
  failed_.Update(failed);
  if (failed.ok()) lost_.emplace_back(pieces_[blamed]->from, mismatch.ok() ? why : mismatch);
  GiveUp();
}

void StripeFetch::GiveUp() {
  over_ = true;
  if (rebuild_) rebuild_->Stop();
  for (const auto& piece : pieces_) piece->source.Cancel();
  MaybeFinish();
}

// In its own turn: this may be a move's own call.
void StripeFetch::MaybeFinish() {
  if (moving_ != 0 || std::exchange(finished_, true)) return;
  ends_.loop.After(Nanos(0), scope_.Bind([this] {
    const Ended ended = std::move(ended_);
    ended(Result());
  }));
}

StripeFetch::Outcome StripeFetch::Result() const {
  Outcome outcome{order_.rebuilt, order_.record, lost_, failed_};
  if (rebuild_ == nullptr) return outcome;
  const std::vector<bool> rebuilt = rebuild_->rebuilt();
  std::copy(rebuilt.begin(), rebuilt.end(), outcome.rebuilt.begin() + static_cast<ptrdiff_t>(first_));
  return outcome;
}

}  // namespace ckptd::protect
