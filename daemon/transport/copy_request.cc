#include "daemon/transport/copy_request.h"

#include <algorithm>
#include <bit>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "daemon/base/status_macros.h"
#include "daemon/erasure/rotation.h"
#include "daemon/transport/link_message.h"
#include "daemon/transport/shown.h"
#include "daemon/transport/transfer_shape.h"
#include "proto/local/region.h"

namespace ckptd::transport {
namespace {

absl::Status WrongCopy(const v1::CopyName& copy, absl::string_view what) {
  return Error(ErrorCode::PROTOCOL, absl::StrCat(Describe(copy), ": ", what));
}

absl::Status CheckName(const v1::CopyName& copy) {
  if (!CheckJobName(copy.job()).ok()) return WrongCopy(copy, "no name of a job");
  if (copy.rank() >= kMaxLinkRanks) return WrongCopy(copy, "no rank");
  if (copy.snapshot().attempt() == 0) return WrongCopy(copy, "no snapshot");
  return absl::OkStatus();
}

// Under an older attempt than its own nobody has captured it.
absl::Status CheckAttempt(const v1::CopyName& copy, uint64_t attempt) {
  if (attempt >= copy.snapshot().attempt()) return absl::OkStatus();
  return WrongCopy(copy, absl::StrCat("asked for under attempt ", attempt));
}

// They fence: a higher attempt than the one that may ask would end the job's copies here for good.
absl::Status CheckMarks(const v1::CopyName& copy, uint64_t attempt, const v1::CopyMarks& marks) {
  const bool own =
      marks.attempt() == attempt && marks.protected_().attempt() <= attempt && marks.captured().attempt() <= attempt;
  if (own) return absl::OkStatus();
  return WrongCopy(copy, absl::StrCat("marks of attempt ", marks.attempt(), ", asked for under attempt ", attempt));
}

absl::Status CheckUser(const v1::CopyName& copy, const std::string& user) {
  uint32_t uid = 0;
  const bool digits =
      !user.empty() && std::all_of(user.begin(), user.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (digits && absl::SimpleAtoi(user, &uid)) return absl::OkStatus();
  return WrongCopy(copy, absl::StrCat("user ", Shown(user), " is no uid"));
}

absl::Status CheckWorld(const v1::CopyName& copy, uint32_t world) {
  if (world > copy.rank() && world <= kMaxLinkRanks) return absl::OkStatus();
  return WrongCopy(copy, absl::StrCat("a world of ", world, " ranks"));
}

absl::Status CheckImages(const v1::CopyName& copy, const v1::CopyLayout& layout) {
  if (layout.images_size() < 1 || layout.images_size() > static_cast<int>(kMaxImages))
    return WrongCopy(copy, absl::StrCat(layout.images_size(), " images; 1 to ", kMaxImages));
  uint64_t end = 0;
  for (const v1::ImageSize& image : layout.images()) {
    if (image.bytes() == 0 || image.bytes() % kImageAlignment != 0 || image.bytes() > layout.slot_bytes() - end)
      return WrongCopy(copy, absl::StrCat("an image of ", image.bytes(), " bytes"));
    if (image.header_bytes() < 8 || image.header_bytes() > std::min(image.bytes(), kMaxImageHeader))
      return WrongCopy(
          copy, absl::StrCat("an image's header of ", image.header_bytes(), " bytes; at most ", kMaxImageHeader));
    end += image.bytes();
  }
  if (end == layout.slot_bytes()) return absl::OkStatus();
  return WrongCopy(copy, absl::StrCat("a slot of ", layout.slot_bytes(), " bytes, images of ", end));
}

absl::Status CheckLayout(const v1::CopyName& copy, const v1::CopyLayout& layout) {
  const uint64_t chunk = layout.chunk_bytes();
  if (!std::has_single_bit(chunk) || chunk < ckptd::kMinChunkBytes || chunk > ckptd::kMaxChunkBytes)
    return WrongCopy(copy, absl::StrCat("chunks of ", chunk, " bytes"));
  if (layout.slot_bytes() == 0 || (layout.slot_bytes() - 1) / chunk >= ckptd::kMaxChunks)
    return WrongCopy(copy, absl::StrCat("a slot of ", layout.slot_bytes(), " bytes in chunks of ", chunk));
  return CheckImages(copy, layout);
}

// The ranks are a code, the numbers are in it, and the rank gives a block to this stripe.
absl::Status CheckPiece(const v1::CopyName& copy, const v1::ParityPiece& piece) {
  const auto members = static_cast<uint32_t>(piece.ranks_size());
  if (members == 0 || members > erasure::kMaxMembers)
    return WrongCopy(copy, absl::StrCat("a parity group of ", members, " ranks"));
  const std::set<uint32_t> ranks(piece.ranks().begin(), piece.ranks().end());
  if (ranks.size() != members || *ranks.rbegin() >= kMaxLinkRanks)
    return WrongCopy(copy, absl::StrCat("a parity group of ", ranks.size(), " ranks, the last one ", *ranks.rbegin()));
  if (piece.parity() == 0 || piece.parity() >= members || piece.stripe() >= members || piece.row() >= piece.parity())
    return WrongCopy(copy, absl::StrCat("stripe ", piece.stripe(), " row ", piece.row(), " of ", members,
                                        " ranks with ", piece.parity(), " of parity"));
  const auto place = std::find(piece.ranks().begin(), piece.ranks().end(), copy.rank()) - piece.ranks().begin();
  const erasure::Shape shape{members - piece.parity(), piece.parity()};
  const bool gives =
      place < piece.ranks_size() && !erasure::HoldsParity(shape, piece.stripe(), static_cast<uint32_t>(place));
  if (gives) return absl::OkStatus();
  return WrongCopy(copy, absl::StrCat("the rank gives nothing to stripe ", piece.stripe()));
}

absl::Status CheckRecord(const v1::CopyName& copy, const v1::CopyRecord& record) {
  if (record.snapshot().attempt() != copy.snapshot().attempt() || record.snapshot().step() != copy.snapshot().step())
    return WrongCopy(copy, "the record of another snapshot");
  if (record.chunk_count() >= 1 && record.chunk_count() <= ckptd::kMaxChunks) return absl::OkStatus();
  return WrongCopy(copy, absl::StrCat("a record of ", record.chunk_count(), " chunks"));
}

// No block is longer than the longest image of a slot; where all are empty so is the parity.
absl::Status CheckParity(const v1::CopyName& copy, const v1::DescribeResponse& response) {
  const uint64_t chunk = response.layout().chunk_bytes();
  const uint64_t most = chunk * ckptd::kMaxChunks;
  const uint64_t chunks = response.parity_bytes() / chunk + (response.parity_bytes() % chunk != 0 ? 1 : 0);
  const bool fits = response.parity_bytes() <= most;
  if (fits && static_cast<uint64_t>(response.parity_crc_size()) == chunks) return absl::OkStatus();
  return WrongCopy(
      copy, absl::StrCat("parity of ", response.parity_bytes(), " bytes, ", response.parity_crc_size(), " checksums"));
}

absl::Status CheckPort(const v1::CopyName& copy, uint32_t port) {
  if (port <= UINT16_MAX) return absl::OkStatus();
  return WrongCopy(copy, absl::StrCat("a port ", port));
}

absl::Status CheckToken(const v1::CopyName& copy, const std::string& token) {
  if (TokenOf(token).ok()) return absl::OkStatus();
  return WrongCopy(copy, absl::StrCat("a token of ", token.size(), " bytes"));
}

}  // namespace

std::string Describe(const v1::CopyName& copy) {
  const SnapshotId id{copy.snapshot().attempt(), copy.snapshot().step()};
  return absl::StrCat("job ", Shown(copy.job()), ", rank ", copy.rank(), ", step ", ToString(id));
}

std::string BytesOf(const TransferToken& token) { return {token.begin(), token.end()}; }

absl::StatusOr<TransferToken> TokenOf(const std::string& bytes) {
  TransferToken token{};
  if (bytes.size() != token.size())
    return Error(ErrorCode::PROTOCOL, absl::StrCat("a token of ", bytes.size(), " bytes"));
  std::copy(bytes.begin(), bytes.end(), token.begin());
  return token;
}

absl::Status CheckRequest(const v1::OfferRequest& request) {
  const v1::CopyName& copy = request.copy();
  CKPTD_RETURN_IF_ERROR(CheckName(copy));
  CKPTD_RETURN_IF_ERROR(CheckUser(copy, request.user()));
  CKPTD_RETURN_IF_ERROR(CheckWorld(copy, request.world_size()));
  CKPTD_RETURN_IF_ERROR(CheckAttempt(copy, request.attempt()));
  if (request.has_marks()) CKPTD_RETURN_IF_ERROR(CheckMarks(copy, request.attempt(), request.marks()));
  if (request.has_parity()) CKPTD_RETURN_IF_ERROR(CheckPiece(copy, request.parity()));
  return CheckLayout(copy, request.layout());
}

absl::Status CheckRequest(const v1::SealRequest& request) {
  CKPTD_RETURN_IF_ERROR(CheckName(request.copy()));
  CKPTD_RETURN_IF_ERROR(CheckAttempt(request.copy(), request.attempt()));
  CKPTD_RETURN_IF_ERROR(CheckRecord(request.copy(), request.record()));
  if (request.has_parity()) CKPTD_RETURN_IF_ERROR(CheckPiece(request.copy(), request.parity()));
  const auto wanted = request.has_parity() ? request.record().chunk_count() : 0;
  if (static_cast<uint32_t>(request.record().chunk_crc_size()) == wanted) return absl::OkStatus();
  return WrongCopy(request.copy(), absl::StrCat(request.record().chunk_crc_size(), " checksums, not ", wanted));
}

absl::Status CheckRequest(const v1::DescribeRequest& request) {
  CKPTD_RETURN_IF_ERROR(CheckName(request.copy()));
  CKPTD_RETURN_IF_ERROR(CheckAttempt(request.copy(), request.attempt()));
  if (request.has_parity()) CKPTD_RETURN_IF_ERROR(CheckPiece(request.copy(), request.parity()));
  const uint64_t most = ckptd::kMaxChunks;
  if (request.first_chunk() >= most || request.chunks() > most - request.first_chunk())
    return WrongCopy(request.copy(), absl::StrCat("chunks from ", request.first_chunk(), " on"));
  return CheckUser(request.copy(), request.user());
}

absl::Status CheckResponse(const v1::OfferRequest& request, const v1::OfferResponse& response) {
  CKPTD_RETURN_IF_ERROR(CheckPort(request.copy(), response.ucx_port()));
  CKPTD_RETURN_IF_ERROR(CheckPort(request.copy(), response.tls_port()));
  CKPTD_RETURN_IF_ERROR(CheckPort(request.copy(), response.tcp_port()));
  return response.have() ? absl::OkStatus() : CheckToken(request.copy(), response.token());
}

absl::Status CheckResponse(const v1::SealRequest&, const v1::SealResponse&) { return absl::OkStatus(); }

absl::Status CheckResponse(const v1::DescribeRequest& request, const v1::DescribeResponse& response) {
  const v1::CopyName& copy = request.copy();
  CKPTD_RETURN_IF_ERROR(CheckWorld(copy, response.world_size()));
  CKPTD_RETURN_IF_ERROR(CheckLayout(copy, response.layout()));
  CKPTD_RETURN_IF_ERROR(CheckRecord(copy, response.record()));
  CKPTD_RETURN_IF_ERROR(CheckToken(copy, response.token()));
  CKPTD_RETURN_IF_ERROR(CheckPort(copy, response.ucx_port()));
  CKPTD_RETURN_IF_ERROR(CheckPort(copy, response.tls_port()));
  CKPTD_RETURN_IF_ERROR(CheckPort(copy, response.tcp_port()));
  const uint64_t chunks = (response.layout().slot_bytes() - 1) / response.layout().chunk_bytes() + 1;
  const auto said = static_cast<uint64_t>(response.record().chunk_crc_size());
  if (response.record().chunk_count() != chunks || said != chunks)
    return WrongCopy(copy, absl::StrCat(said, " checksums of ", chunks, " chunks"));
  return request.has_parity() ? CheckParity(copy, response) : absl::OkStatus();
}

}  // namespace ckptd::transport
