// Between the messages of copies.proto and what room region has.
#ifndef CKPTD_DAEMON_PROTECT_COPY_MESSAGES_H_
#define CKPTD_DAEMON_PROTECT_COPY_MESSAGES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "daemon/region/peer_store.h"
#include "daemon/region/record.h"
#include "daemon/transport/copies.h"
#include "daemon/transport/transfer_token.h"
#include "proto/ckptd/v1/copy.pb.h"
#include "proto/ckptd/v1/job.pb.h"

namespace ckptd::protect {

[[nodiscard]] v1::CopyName NameOfCopy(const std::string& job, Rank rank, const SnapshotId& id);

[[nodiscard]] v1::CopyLayout LayoutOf(const region::CtlHead& head);
// The images' places in the slot: back to back, in this order.
[[nodiscard]] std::vector<ImageExtent> ExtentsOf(const v1::CopyLayout& layout);

// The chunks of an image that are asked for; all of them where the request names none. INVALID_ARGUMENT.
struct ChunkRange {
  size_t first_chunk = 0;
  size_t chunks = 0;
};
[[nodiscard]] absl::StatusOr<ChunkRange> RangeOf(const v1::DescribeRequest& request, const region::SlotRecord& record);

// With the list of checksums.
[[nodiscard]] v1::CopyRecord RecordOf(const region::SlotRecord& record);

[[nodiscard]] v1::SealRequest SealOf(const std::string& job, Rank rank, AttemptId attempt, const region::CtlHead& head,
                                     const region::SlotRecord& record);
[[nodiscard]] region::PeerSeal SealOf(const v1::SealRequest& request);

[[nodiscard]] region::PeerMarks ToMarks(const v1::CopyMarks& marks);
// Of the newest STATE that is heard. What stands for W is the step that all ranks copy now, which W may have left
// behind.
[[nodiscard]] v1::CopyMarks MarksOf(const v1::State& state);

// Whether whoever was told `told` has heard of later steps of the attempt than whoever was told `known`.
[[nodiscard]] bool IsAhead(const v1::CopyMarks& told, const v1::CopyMarks& known);
// To an Offer of somebody who is ahead: what is not wanted here may be so when the same is heard here.
[[nodiscard]] transport::CopyAnswer<v1::OfferResponse> LaterIfUnwanted(transport::CopyAnswer<v1::OfferResponse> answer);

// INVALID_ARGUMENT when the user is no number. Nothing else is checked here.
[[nodiscard]] absl::StatusOr<region::PeerSpec> SpecOf(const v1::OfferRequest& request);

// What was told of a copy is of the slot's own layout, and has a checksum for each chunk. CORRUPT.
[[nodiscard]] absl::Status CheckFits(const v1::DescribeResponse& told, const region::CtlHead& head);

// PROTOCOL when it is none.
[[nodiscard]] absl::StatusOr<transport::TransferToken> TokenOf(const std::string& bytes);

// For the next connection of the transfer that has this number at its other end. FENCED when that began anew, with a
// restart of the agent or after a long pause: the token is for another one.
template <typename Response>
[[nodiscard]] absl::StatusOr<transport::TransferToken> RenewedToken(uint32_t slot,
                                                                    const absl::StatusOr<Response>& answer) {
  if (!answer.ok()) return answer.status();
  if (answer->slot() == slot) return TokenOf(answer->token());
  return Error(ErrorCode::FENCED, "the other agent has begun anew");
}

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_COPY_MESSAGES_H_
