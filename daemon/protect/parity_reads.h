// Complete parity of this node's peer store, as others read it who rebuild an image: what it was made of, and its
// bytes.
//
// On the loop's thread, but for what the transport reads.
#ifndef CKPTD_DAEMON_PROTECT_PARITY_READS_H_
#define CKPTD_DAEMON_PROTECT_PARITY_READS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/base/callback_scope.h"
#include "daemon/base/clock.h"
#include "daemon/os/loop.h"
#include "daemon/protect/held_parity.h"
#include "daemon/protect/parity_piece.h"
#include "daemon/region/region.h"
#include "daemon/transport/copies.h"

namespace ckptd::protect {

inline constexpr size_t kMostRanges = 1024;  // of one image, or of one parity, that one node reads

// What a record says of parity that passed region::ParseParity; nothing when it is of no stripe of its group.
[[nodiscard]] std::optional<ParityPlace> PlaceOf(const region::ParityRecord& record);

class ParityReads {
 public:
  struct Handler {
    std::function<absl::StatusOr<transport::TransferToken>(const transport::TransferName& name)> issue;
    std::function<uint32_t()> number;  // another one each time, of all transfers of this node
  };

  // All outlive it.
  ParityReads(Loop& loop, const Clock& clock, region::Region& region, Handler handler,
              size_t most_ranges = kMostRanges);

  // NOT_FOUND, CORRUPT, INVALID_ARGUMENT; BUSY when the peer has asked for too many ranges.
  [[nodiscard]] absl::StatusOr<v1::DescribeResponse> Describe(const std::string& peer,
                                                              const v1::DescribeRequest& request);
  // For this node's own ranks. NOT_FOUND, CORRUPT.
  [[nodiscard]] absl::StatusOr<HeldParity> Open(const std::string& job, const ParityPlace& place,
                                                const SnapshotId& id) const;
  // Nothing when the transfer is none of these.
  [[nodiscard]] std::optional<transport::BulkEnd> Redeem(const transport::TransferName& name);
  // All ranks of the job have loaded: what is not read now will not be, and its slot is wanted for the next parity.
  void HaveLoaded(const std::string& job);
  // A few times a minute: what nobody reads any more is let go of.
  void Sweep();

 private:
  struct Reading {
    transport::TransferName name;
    ParityPlace place;
    HeldParity held;     // its `keep` is also with a transport's end, as long as it has one
    uint64_t begin = 0;  // in the slot
    uint64_t bytes = 0;
    Nanos touched{0};
    std::shared_ptr<const char> there = std::make_shared<const char>();  // as long as this is
  };
  [[nodiscard]] absl::StatusOr<Reading*> Read(const transport::TransferName& name, const ParityPlace& place,
                                              HeldParity held, uint64_t begin, uint64_t bytes);

  Loop& loop_;
  const Clock& clock_;
  region::Region& region_;
  const Handler handler_;
  const size_t most_ranges_;
  std::map<uint32_t, Reading> readings_;  // by number
  CallbackScope scope_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_PARITY_READS_H_
