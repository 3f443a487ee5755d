// What another agent asks of this node's memory, and what it answers: Offer, Seal and Describe (copy.proto), as they
// are checked (daemon/transport/copy_request.h) and then understood (daemon/protect): a copy's place, a piece of
// parity, what a lost image is rebuilt from.
//
// What passes the check is within the limits of a slot, names no group that is none, and everything that is reckoned
// from it stays inside the image.
//
//   byte 0   low 3 bits: which message; then the message on the wire, without its Hello
//   answers  u16 length of the question before it, and the question
#include <algorithm>
#include <set>

#include "daemon/base/ids.h"
#include "daemon/protect/copy_messages.h"
#include "daemon/protect/parity_piece.h"
#include "daemon/protect/parity_plan.h"
#include "daemon/protect/parity_work.h"
#include "daemon/protect/stripe_fetch.h"
#include "daemon/transport/copy_request.h"
#include "daemon/transport/link_message.h"
#include "proto/local/region.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/wire.h"

namespace ckptd::fuzz {

// A repeated empty message costs two bytes on the wire and a hundred in memory; a group's code is made for each plan.
const Allowed kAllowed = {1 << 20, 256};

namespace {

constexpr size_t kMostStripes = 3;  // a code of 255 members takes its time for each
constexpr int kMostLost = 4;

void CheckName(const v1::CopyName& copy) {
  FUZZ_CHECK(CheckJobName(copy.job()).ok() && copy.rank() < transport::kMaxLinkRanks);
  FUZZ_CHECK(copy.snapshot().attempt() > 0);
}

void CheckLayout(const v1::CopyLayout& layout) {
  const std::vector<ImageExtent> images = protect::ExtentsOf(layout);
  FUZZ_CHECK(images.size() == static_cast<size_t>(layout.images_size()) && images.size() <= kMaxImages);
  uint64_t end = 0;
  for (const ImageExtent& image : images) {
    FUZZ_CHECK(image.offset == end && image.bytes % kImageAlignment == 0 && image.header_bytes <= image.bytes);
    end += image.bytes;
  }
  FUZZ_CHECK(end == layout.slot_bytes() && end > 0);
  FUZZ_CHECK(transport::TransferShape::Make(layout.slot_bytes(), layout.chunk_bytes()).ok());
}

void CheckPiece(const v1::ParityPiece& piece, Rank rank, const v1::CopyLayout* layout) {
  const protect::ParityPlace place = protect::PlaceOf(piece);
  FUZZ_CHECK(protect::PlaceOf(protect::PieceOf(place)) == place);
  FUZZ_CHECK(place.stripe < place.ranks.size() && place.row < place.shape.parity);
  FUZZ_CHECK(std::set<Rank>(place.ranks.begin(), place.ranks.end()).size() == place.ranks.size());
  FUZZ_CHECK(place.DataIndexOf(rank).has_value() && place.DataRanks().size() == place.shape.data);
  if (layout == nullptr) return;
  const erasure::Extent block = protect::BlockGivenBy(place, rank, layout->slot_bytes(), layout->chunk_bytes());
  FUZZ_CHECK(block.begin <= layout->slot_bytes() && block.size <= layout->slot_bytes() - block.begin);
  const auto sizes = protect::SizesOf(place, std::vector<v1::CopyLayout>(place.shape.data, *layout));
  if (!sizes.ok()) return;
  FUZZ_CHECK(sizes->contents_begin() <= sizes->slot_bytes && sizes->parity_bytes % sizes->chunk_bytes == 0);
  for (const uint64_t bytes : sizes->blocks) FUZZ_CHECK(bytes <= sizes->parity_bytes);
}

void CheckOffer(std::string_view wire) {
  v1::OfferRequest offer;
  if (!Parse(wire, offer) || !transport::CheckRequest(offer).ok()) return;
  CheckName(offer.copy());
  CheckLayout(offer.layout());
  FUZZ_CHECK(offer.copy().rank() < offer.world_size() && offer.attempt() >= offer.copy().snapshot().attempt());
  if (offer.has_parity()) CheckPiece(offer.parity(), offer.copy().rank(), &offer.layout());
  (void)protect::ToMarks(offer.marks());
  const auto spec = protect::SpecOf(offer);
  FUZZ_CHECK(spec.ok() && spec->layout.rank < spec->layout.world);
}

void CheckSeal(std::string_view wire) {
  v1::SealRequest seal;
  if (!Parse(wire, seal) || !transport::CheckRequest(seal).ok()) return;
  CheckName(seal.copy());
  if (seal.has_parity()) CheckPiece(seal.parity(), seal.copy().rank(), nullptr);
  (void)protect::SealOf(seal);
}

void CheckDescribe(const v1::DescribeRequest& describe) {
  CheckName(describe.copy());
  if (describe.has_parity()) CheckPiece(describe.parity(), describe.copy().rank(), nullptr);
}

// The answer to a question that was in order: ours.
void CheckDescribed(Reader& in) {
  v1::DescribeRequest request;
  v1::DescribeResponse response;
  const std::string_view asked = TextOf(in.Bytes(in.Take<uint16_t>()));
  if (!Parse(asked, request) || !transport::CheckRequest(request).ok()) return;
  CheckDescribe(request);
  if (!Parse(TextOf(in.Bytes(SIZE_MAX)), response)) return;
  if (!transport::CheckResponse(request, response).ok()) return;
  CheckLayout(response.layout());
  FUZZ_CHECK(transport::TokenOf(response.token()).ok() && protect::TokenOf(response.token()).ok());
  const SnapshotId asked_for{request.copy().snapshot().attempt(), request.copy().snapshot().step()};
  if (!protect::CheckTold(response, asked_for).ok()) return;
  const uint64_t bytes = response.layout().slot_bytes(), chunk = response.layout().chunk_bytes();
  FUZZ_CHECK(static_cast<uint64_t>(response.record().chunk_crc_size()) == (bytes + chunk - 1) / chunk);
}

void CheckOffered(Reader& in) {
  v1::OfferRequest request;
  v1::OfferResponse response;
  const std::string_view asked = TextOf(in.Bytes(in.Take<uint16_t>()));
  if (!Parse(asked, request) || !transport::CheckRequest(request).ok()) return;
  if (!Parse(TextOf(in.Bytes(SIZE_MAX)), response)) return;
  if (transport::CheckResponse(request, response).ok() && !response.have())
    FUZZ_CHECK(transport::TokenOf(response.token()).ok());
}

// Source after source is lost, until too few are left: which comes to an end.
void LoseAll(protect::ParityPlan& plan, Rank rank, uint32_t stripe) {
  for (int lost = 0; lost < kMostLost; ++lost) {
    const auto chosen = plan.Choose(stripe);
    if (!chosen.ok()) return;
    FUZZ_CHECK(chosen->place.stripe == stripe && chosen->sources.size() == chosen->place.shape.data);
    for (const auto& source : chosen->sources) FUZZ_CHECK(source.parity || source.rank != rank);
    plan.Lose(stripe, chosen->sources.back(), absl::UnavailableError("lost"));
  }
}

// Of a decision: State.sources.
void CheckSources(Reader& in) {
  const Rank rank = in.Take<uint8_t>();
  v1::ParitySources sources;
  if (!Parse(TextOf(in.Bytes(SIZE_MAX)), sources)) return;
  auto plan = protect::ParityPlan::Make(sources, rank, "me");
  if (!plan.ok()) return;
  std::vector<uint32_t> stripes = plan->Stripes();
  stripes.resize(std::min(stripes.size(), kMostStripes));
  for (const uint32_t stripe : stripes) LoseAll(*plan, rank, stripe);
}

}  // namespace

void Run(Input input) {
  Reader in(input);
  const uint8_t which = in.Take<uint8_t>() % 8;
  if (which == 0) return CheckDescribed(in);
  if (which == 1) return CheckOffered(in);
  if (which == 2) return CheckSources(in);
  const std::string_view wire = TextOf(in.Bytes(SIZE_MAX));
  if (which == 3) return CheckSeal(wire);
  if (which < 6) return CheckOffer(wire);
  v1::DescribeRequest describe;
  if (Parse(wire, describe) && transport::CheckRequest(describe).ok()) CheckDescribe(describe);
}

}  // namespace ckptd::fuzz
