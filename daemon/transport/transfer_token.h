// One-time tokens: the right to one bulk connection for one transfer. Handed out over the control link, which is
// authenticated; presented first on the bulk connection, which is not. A token is 128 random bits, is good for the
// transfer that it was made for and nothing else, until its deadline, and once: whoever presents it wrongly has spent
// it, so that nothing can be tried out.
#ifndef CKPTD_DAEMON_TRANSPORT_TRANSFER_TOKEN_H_
#define CKPTD_DAEMON_TRANSPORT_TRANSFER_TOKEN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/transport/transfer_shape.h"

namespace ckptd::transport {

using TransferToken = std::array<uint8_t, 16>;

// From the kernel's random numbers. Any thread.
[[nodiscard]] TransferToken RandomToken();

// In a time that does not depend on where they differ.
[[nodiscard]] bool SameToken(const TransferToken& a, const TransferToken& b);

inline constexpr size_t kMaxTokens = 4096;
inline constexpr size_t kMaxTokensOfPeer = 2048;  // so that one that asks and never comes leaves some to others

// Pure; one thread. Times are monotonic.
class TokenTable {
 public:
  explicit TokenTable(size_t capacity = kMaxTokens, size_t of_one_peer = kMaxTokensOfPeer)
      : capacity_(capacity), of_one_peer_(of_one_peer) {}

  // `token` from RandomToken(). BUSY when `capacity` tokens are out that have not passed their deadlines, or this peer
  // has `of_one_peer`; INVALID_ARGUMENT for a bad name or a token that is out already.
  [[nodiscard]] absl::Status Issue(const TransferToken& token, const TransferName& name, Nanos deadline, Nanos now);

  // Who presents it says what for. PERMISSION when there is no such token (any more), its deadline has passed, or it
  // was made for another transfer. It is spent afterwards, whatever the answer.
  [[nodiscard]] absl::Status Redeem(const TransferToken& token, const TransferName& name, Nanos now);

  // Takes back what was handed out for this transfer (aborted, fenced).
  void Revoke(const TransferName& name);

  [[nodiscard]] size_t size() const { return issued_.size(); }

 private:
  struct Issued {
    TransferToken token;
    TransferName name;
    Nanos deadline;
  };

  void Expire(Nanos now);

  const size_t capacity_;
  const size_t of_one_peer_;
  std::vector<Issued> issued_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TRANSFER_TOKEN_H_
