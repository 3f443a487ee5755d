// Images of this node's memory, as others read them who restore: what they are, and a range of their chunks.
//
// On the loop's thread, but for what the transport reads.
#ifndef CKPTD_DAEMON_PROTECT_COPY_READS_H_
#define CKPTD_DAEMON_PROTECT_COPY_READS_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/callback_scope.h"
#include "daemon/base/clock.h"
#include "daemon/os/loop.h"
#include "daemon/protect/copy_messages.h"
#include "daemon/protect/held_snapshot.h"
#include "daemon/transport/copies.h"

namespace ckptd::protect {

class CopyReads {
 public:
  struct Handler {
    // Wherever it lies on this node. NOT_FOUND.
    std::function<absl::StatusOr<HeldSnapshot>(const std::string& job, Rank rank, const SnapshotId& id)> open;
    std::function<absl::StatusOr<transport::TransferToken>(const transport::TransferName& name)> issue;
    std::function<uint32_t()> number;  // another one each time, of all transfers of this node
  };

  // Both outlive it.
  CopyReads(Loop& loop, const Clock& clock, Handler handler);

  // The snapshot stays until it was read, all ranks have loaded, or nobody has come for a minute. NOT_FOUND,
  // INVALID_ARGUMENT; BUSY when the peer has asked for too many ranges.
  [[nodiscard]] absl::StatusOr<v1::DescribeResponse> Describe(const std::string& peer,
                                                              const v1::DescribeRequest& request);
  // Nothing when the transfer is none of these.
  [[nodiscard]] std::optional<transport::BulkEnd> Redeem(const transport::TransferName& name);
  // All ranks of the job have loaded: what is not read now will not be, and its slot is wanted for the next copy.
  void HaveLoaded(const std::string& job);
  // A few times a minute: what nobody reads any more is let go of.
  void Sweep();

 private:
  struct Image {
    std::string peer;  // who reads it
    std::string job;
    Rank rank = 0;
    SnapshotId id;
    auto operator<=>(const Image&) const = default;
  };
  struct Key {
    Image image;
    uint64_t first_chunk = 0;
    uint64_t chunks = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Reading {
    uint32_t number = 0;
    ChunkRange range;
    HeldSnapshot held;
    Nanos touched{0};
    std::weak_ptr<void> moving;                                          // a transport's end, as long as it has one
    std::shared_ptr<const char> there = std::make_shared<const char>();  // as long as this is
  };
  [[nodiscard]] absl::StatusOr<Reading*> Begin(const Key& key, const v1::DescribeRequest& request);
  [[nodiscard]] absl::Status MayHaveMore(const Image& image) const;
  [[nodiscard]] transport::BulkEnd EndOf(const transport::TransferName& name, Reading& reading);
  void WasRead(uint32_t number);

  Loop& loop_;
  const Clock& clock_;
  const Handler handler_;
  std::map<Key, Reading> readings_;
  CallbackScope scope_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_COPY_READS_H_
