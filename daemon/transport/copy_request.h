// What may stand in the messages of proto/ckptd/v1/copies.proto: bounds of everything that comes from another agent,
// before anybody acts on it. PROTOCOL with job, rank, step and what is wrong. Pure; any thread.
#ifndef CKPTD_DAEMON_TRANSPORT_COPY_REQUEST_H_
#define CKPTD_DAEMON_TRANSPORT_COPY_REQUEST_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/transport/transfer_token.h"
#include "proto/ckptd/v1/copy.pb.h"

namespace ckptd::transport {

inline constexpr uint64_t kMaxImageHeader = uint64_t{64} << 20;

[[nodiscard]] absl::Status CheckRequest(const v1::OfferRequest& request);
[[nodiscard]] absl::Status CheckRequest(const v1::SealRequest& request);
[[nodiscard]] absl::Status CheckRequest(const v1::DescribeRequest& request);
// Of what was asked.
[[nodiscard]] absl::Status CheckResponse(const v1::OfferRequest& request, const v1::OfferResponse& response);
[[nodiscard]] absl::Status CheckResponse(const v1::SealRequest& request, const v1::SealResponse& response);
[[nodiscard]] absl::Status CheckResponse(const v1::DescribeRequest& request, const v1::DescribeResponse& response);

[[nodiscard]] std::string BytesOf(const TransferToken& token);
// PROTOCOL unless there are 16 bytes.
[[nodiscard]] absl::StatusOr<TransferToken> TokenOf(const std::string& bytes);

// "job gpt, rank 3, step 1000.a3", whatever stands in it.
[[nodiscard]] std::string Describe(const v1::CopyName& copy);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_COPY_REQUEST_H_
